// Package guard makes the routes of a grpc-gateway safe to retry. Copy it.
package guard

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idempotency-go/idempotency"
)

// Options returns the options of a gateway whose routes idem guards.
//
// The status of an answer tells whether it says "try again", with two exceptions, in which the options decide. A call
// that was aborted is answered with 409, as one is whose subject exists already: it is released. A stream that breaks
// off has begun with 200: its outcome is unknown.
func Options(idem *idempotency.Middleware) []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithMiddlewares(behindRouter(idem)),
		runtime.WithErrorHandler(failed),
		runtime.WithStreamErrorHandler(brokenOff),
	}
}

func behindRouter(idem *idempotency.Middleware) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
			idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next(w, r, params)
			})).ServeHTTP(w, r)
		}
	}
}

func failed(
	ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error,
) {
	if status.Code(err) == codes.Aborted {
		idempotency.Decide(ctx, idempotency.Free)
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

func brokenOff(ctx context.Context, err error) *status.Status {
	shown := runtime.HTTPStatusFromCode(status.Code(err))
	if status.Code(err) == codes.Aborted || !idempotency.DefaultStorable(&idempotency.Response{Status: shown}) {
		idempotency.Decide(ctx, idempotency.Unknown)
	}
	return runtime.DefaultStreamErrorHandler(ctx, err)
}
