// Oapi guards the operations of a strict server that oapi-codegen has made of an OpenAPI document. It ends with the
// line
//
//	operations: 1, requests: 3, charges: 1
package main

import (
	"context"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/oapi/api"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	payments := new(payments)

	// On all operations that change something. These middlewares run behind the router.
	handler := api.HandlerWithOptions(api.NewStrictHandler(payments, nil), api.StdHTTPServerOptions{
		Middlewares: []api.MiddlewareFunc{idem.Handler},
	})

	payments.shop.Visit(demo.Authenticate(handler), "/payments") // authentication goes outside
}

type payments struct{ shop demo.Shop }

func (p *payments) CreatePayment(
	context.Context, api.CreatePaymentRequestObject,
) (api.CreatePaymentResponseObject, error) {
	charge := p.shop.Charge()
	return api.CreatePayment201JSONResponse{
		Headers: api.CreatePayment201ResponseHeaders{Location: "/payments/" + charge},
		Body:    api.Payment{Charge: charge},
	}, nil
}
