package main

import (
	"github.com/gorilla/mux"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// onGorilla mounts the middleware on routes of gorilla/mux, in the two usual ways.
func onGorilla(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	r := mux.NewRouter()
	r.Use(demo.Authenticate) // authentication goes outside

	// On one route.
	r.Handle("/payments", idem.Handler(shop)).Methods("POST")

	// On a subrouter. The key is bound to the path that the client asked for, /v1/refunds.
	v1 := r.PathPrefix("/v1").Subrouter()
	v1.Use(idem.Handler)
	v1.Handle("/refunds", shop).Methods("POST")
	return guarded{handler: r, paths: []string{"/payments", "/v1/refunds"}}
}
