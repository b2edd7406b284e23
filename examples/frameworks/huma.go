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

type order struct {
	Body int `minimum:"1" doc:"The amount to charge, in cents."`
}

type payment struct {
	Location string `header:"Location"`
	Body     struct {
		Charge string `json:"charge"`
	}
}

// onHuma guards the operations of huma that change something.
func onHuma(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	r := chi.NewRouter()
	r.Use(demo.Authenticate) // authentication goes outside

	// With puts the middleware behind the router, on its routes only.
	api := humachi.New(r.With(idem.Handler), huma.DefaultConfig("Payments", "1.0.0"))

	huma.Register(api, huma.Operation{
		Method: http.MethodPost, Path: "/payments", DefaultStatus: http.StatusCreated,
	}, func(context.Context, *order) (*payment, error) {
		out := new(payment)
		out.Body.Charge = shop.Charge()
		out.Location = "/payments/" + out.Body.Charge
		return out, nil
	})
	return guarded{handler: r, paths: []string{"/payments"}}
}
