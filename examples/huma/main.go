// Huma guards operations of a huma API on chi. It ends with the line
//
//	operations: 1, requests: 3, charges: 1
package main

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	payments := new(payments)

	r := chi.NewRouter()
	r.Use(demo.Authenticate) // authentication goes outside

	// On all operations that change something. With puts the middleware behind the router, on its routes only.
	api := humachi.New(r.With(idem.Handler), huma.DefaultConfig("Payments", "1.0.0"))

	huma.Register(api, huma.Operation{
		Method: http.MethodPost, Path: "/payments", DefaultStatus: http.StatusCreated,
	}, payments.create)
	payments.shop.Visit(r, "/payments")
}

type payments struct{ shop demo.Shop }

type order struct {
	Body int `minimum:"1" doc:"The amount to charge, in cents."`
}

type payment struct {
	Location string `header:"Location"`
	Body     struct {
		Charge string `json:"charge"`
	}
}

func (p *payments) create(context.Context, *order) (*payment, error) {
	out := new(payment)
	out.Body.Charge = p.shop.Charge()
	out.Location = "/payments/" + out.Body.Charge
	return out, nil
}
