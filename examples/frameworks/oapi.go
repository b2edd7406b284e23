package main

import (
	"context"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/frameworks/api"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// onOAPI guards all operations of a strict server that oapi-codegen has generated from an OpenAPI document.
func onOAPI(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	payments := &payments{shop}

	// These middlewares run behind the router.
	handler := api.HandlerWithOptions(api.NewStrictHandler(payments, nil), api.StdHTTPServerOptions{
		Middlewares: []api.MiddlewareFunc{idem.Handler},
	})
	return guarded{handler: demo.Authenticate(handler), paths: []string{"/payments"}}
}

type payments struct{ shop *demo.Shop }

func (p *payments) CreatePayment(
	context.Context, api.CreatePaymentRequestObject,
) (api.CreatePaymentResponseObject, error) {
	charge := p.shop.Charge()
	return api.CreatePayment201JSONResponse{
		Headers: api.CreatePayment201ResponseHeaders{Location: "/payments/" + charge},
		Body:    api.Payment{Charge: charge},
	}, nil
}
