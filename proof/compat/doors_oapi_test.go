package compat_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/frameworks/api"
)

// oapiDoor is the strict server of the examples, with the same guard.
func oapiDoor() door {
	d := &oapiWays{door{name: "oapi-codegen v2, strict server"}}
	answering := func(resp api.CreatePaymentResponseObject, err error) oapiHandler {
		return func(context.Context, *stage) (api.CreatePaymentResponseObject, error) { return resp, err }
	}
	created := api.CreatePayment201JSONResponse{
		Body: api.Payment{Charge: "1"}, Headers: api.CreatePayment201ResponseHeaders{Location: "/charges/1"},
	}
	crash := func(context.Context, *stage) (api.CreatePaymentResponseObject, error) { panic("crash") }
	declined := api.CreatePayment402JSONResponse{Charge: "declined"}
	problem := func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
	decided := func(w http.ResponseWriter, r *http.Request, err error) {
		idempotency.Decide(r.Context(), idempotency.Unknown)
		problem(w, r, err)
	}
	pdf := func(rest func() io.Reader) oapiHandler {
		return func(context.Context, *stage) (api.CreatePaymentResponseObject, error) {
			body := io.MultiReader(strings.NewReader("half "), rest())
			return api.CreatePayment200ApplicationpdfResponse{Body: body}, nil
		}
	}

	d.way(returned, "return 201, header and body", replayed, answering(created, nil))
	d.way(erring, "return 402", replayed, answering(declined, nil))
	d.way(erring, "return 503", runsAgain, answering(api.CreatePayment503Response{}, nil))
	d.way(erring, `return nil, errors.New("down")`, runsAgain, answering(nil, errors.New("down")))
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain,
		func(context.Context, *stage) (api.CreatePaymentResponseObject, error) { panic(http.ErrAbortHandler) })
	d.way(panicking, "panic", runsAgain, crash)
	d.way(asJSON, "JSONResponse", replayed, answering(created, nil))
	d.way(asString, "TextResponse", replayed, answering(api.CreatePayment202TextResponse("charged"), nil))
	d.way(redirecting, "303 and Location", replayed,
		answering(api.CreatePayment303Response{Headers: api.CreatePayment303ResponseHeaders{Location: "/done"}}, nil))
	whole := func() io.Reader { return strings.NewReader("whole") }
	broken := func() io.Reader { return iotest.ErrReader(errors.New("broken off")) }
	d.way(asFile, "application/pdf", replayed, pdf(whole))
	d.way(streaming, "io.Reader", replayed, pdf(whole))
	d.add(streaming, "io.Reader that breaks off, ResponseErrorHandlerFunc decides", runsAgain,
		api.StrictHTTPServerOptions{ResponseErrorHandlerFunc: decided}, pdf(broken))
	d.way(statusOnly, "204Response", replayed, answering(api.CreatePayment204Response{}, nil))
	d.way(silently, "return nil, nil", replayed, answering(nil, nil))
	d.way(leaving, "the handler goes on", replayed,
		func(ctx context.Context, s *stage) (api.CreatePaymentResponseObject, error) {
			return created, s.wait(ctx)
		})
	d.way(timingOut, "the context of the request ends", runsAgain,
		func(ctx context.Context, _ *stage) (api.CreatePaymentResponseObject, error) {
			return created, tooLong(ctx)
		},
		middleware.Timeout(shortly))
	d.add(errorHandler, "ResponseErrorHandlerFunc", replayed,
		api.StrictHTTPServerOptions{ResponseErrorHandlerFunc: problem}, answering(nil, errors.New("declined")))
	d.way(recovering, "chi's middleware.Recoverer", runsAgain, crash, quietly, middleware.Recoverer)
	d.way(compressOut, "chi's middleware.Compress", replayed, answering(created, nil), middleware.Compress(5))
	return d.door
}

type oapiHandler func(context.Context, *stage) (api.CreatePaymentResponseObject, error)

// oapiWays is a door with handlers of a strict server.
type oapiWays struct{ door }

func (d *oapiWays) way(k kind, name string, retry fate, h oapiHandler, layers ...func(http.Handler) http.Handler) {
	d.add(k, name, retry, api.StrictHTTPServerOptions{}, h, layers...)
}

// add adds a way: an operation behind the guard, with layers around the guard.
func (d *oapiWays) add(
	k kind, name string, retry fate, opts api.StrictHTTPServerOptions, h oapiHandler,
	layers ...func(http.Handler) http.Handler,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		var guards []api.MiddlewareFunc
		if s.guarded {
			guards = []api.MiddlewareFunc{s.middleware(t).Handler}
		}
		server := api.NewStrictHandlerWithOptions(oapiService{s, h}, nil, opts)
		handler := api.HandlerWithOptions(server, api.StdHTTPServerOptions{Middlewares: guards})
		return s.listen(t, around(layers...)(t, handler)) + "/payments"
	}})
}

type oapiService struct {
	stage  *stage
	handle oapiHandler
}

func (s oapiService) CreatePayment(
	ctx context.Context, _ api.CreatePaymentRequestObject,
) (api.CreatePaymentResponseObject, error) {
	s.stage.enter()
	return s.handle(ctx, s.stage)
}
