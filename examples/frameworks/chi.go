package main

import (
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// onChi mounts the middleware on routes of chi, in the three usual ways.
func onChi(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	r := chi.NewRouter()
	r.Use(middleware.Recoverer, demo.Authenticate) // authentication goes outside

	// On one route.
	r.With(idem.Handler).Post("/payments", shop.ServeHTTP)

	// On a group of routes.
	r.Group(func(r chi.Router) {
		r.Use(idem.Handler)
		r.Method("POST", "/refunds", shop)
	})

	// On a subrouter. The key is bound to the path that the client asked for, /v1/payouts.
	r.Route("/v1", func(r chi.Router) {
		r.Use(idem.Handler)
		r.Method("POST", "/payouts", shop)
	})
	return guarded{handler: r, paths: []string{"/payments", "/refunds", "/v1/payouts"}}
}
