// Package guard makes the routes of a grpc-gateway safe to retry. Copy the package.
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
// The middleware tells by the status of an answer whether the client is to try again. The options decide in two cases, because
// the status does not tell:
//   - An aborted call has the status 409, like a call whose subject exists already. The aborted call is released.
//   - A stream that breaks off has begun with the status 200. Its outcome is unknown.
func Options(idem *idempotency.Middleware) []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithMiddlewares(behindRouter(idem)),
		runtime.WithErrorHandler(handleError),
		runtime.WithStreamErrorHandler(handleStreamError),
	}
}

// behindRouter adapts idem to the middlewares of a gateway.
func behindRouter(idem *idempotency.Middleware) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
			idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next(w, r, params)
			})).ServeHTTP(w, r)
		}
	}
}

// handleError is the default error handler, and also releases the key of an aborted call.
func handleError(
	ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error,
) {
	if status.Code(err) == codes.Aborted {
		idempotency.Decide(ctx, idempotency.Free)
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// handleStreamError is the default handler, and also marks the outcome of the call as unknown if a retry may succeed.
func handleStreamError(ctx context.Context, err error) *status.Status {
	shown := runtime.HTTPStatusFromCode(status.Code(err))
	if status.Code(err) == codes.Aborted || !idempotency.DefaultStorable(&idempotency.Response{Status: shown}) {
		idempotency.Decide(ctx, idempotency.Unknown)
	}
	return runtime.DefaultStreamErrorHandler(ctx, err)
}
