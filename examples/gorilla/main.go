// Gorilla mounts the middleware on routes of a gorilla/mux router in the two usual ways. It ends with the line
//
//	operations: 2, requests: 6, charges: 2
package main

import (
	"github.com/gorilla/mux"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	var shop demo.Shop

	r := mux.NewRouter()
	r.Use(demo.Authenticate) // authentication goes outside

	// On one route.
	r.Handle("/payments", idem.Handler(&shop)).Methods("POST")

	// On a subrouter. The key is bound to the path that the client asked for, /v1/refunds.
	v1 := r.PathPrefix("/v1").Subrouter()
	v1.Use(idem.Handler)
	v1.Handle("/refunds", &shop).Methods("POST")

	shop.Visit(r, "/payments", "/v1/refunds")
}
