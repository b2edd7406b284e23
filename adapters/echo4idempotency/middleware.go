// Package echo4idempotency mounts the middleware of package idempotency in echo v4:
//
//	e.POST("/payments", createPayment, echo4idempotency.Middleware(idem))
//
// A guarded handler answers as usual. If the handler returns an error, the middleware calls the HTTPErrorHandler of echo
// immediately. The answer by the HTTPErrorHandler is the answer of the handler: the answer is stored and replayed, unless
// Options.Storable decides that the answer means "try again". Outer middleware also gets the error, and may log the error or roll
// back a transaction, but cannot change the answer. Middleware that replaces errors must therefore be inside.
//
// If the context of the handler has ended, and the handler returns only the error of the context, the handler has given up. The
// middleware then stores no answer, and outer middleware such as ContextTimeout turns the error into an answer.
//
// Mount the middleware inside authentication, Recover, Gzip, BodyLimit and ContextTimeout, on a group or on routes. Requests
// without a key reach the handler unguarded. A 404 or 405 by echo itself is not stored, because the route may exist at the next
// request.
package echo4idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/idempotency-go/idempotency"
)

// Middleware returns echo middleware that guards handlers with idem, a middleware of package idempotency, upload or keyfrom. The
// ErrorHandler of idem writes refusals. The HTTPErrorHandler of echo never sees refusals.
func Middleware(idem interface {
	Handler(next http.Handler) http.Handler
}) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			isGuarded, hasAnswered, outer, request := false, false, c.Response(), requestWithContext(c)
			defer shareForm(c.Request(), request)
			idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if isGuarded = r != request; isGuarded {
					hasAnswered, err = recordAnswer(c, next, w, r)
				} else {
					c.Request().Body = r.Body // which package keyfrom has put back
					err = next(c)
				}
			})).ServeHTTP(outer, request)
			wasRefused := isGuarded && !hasAnswered && outer.Committed // for example because the claim was lost
			switch {
			case err == nil || !hasAnswered && !wasRefused:
				return err
			case isInTimeout(outer.Writer):
				return nil
			default:
				c.SetResponse(closeResponse(outer))
				return err
			}
		}
	}
}

// Status returns a handler that answers as Status of idem does. The functions of the service find the context of echo with
// [Context], as behind Middleware. Mount the handler inside authentication, for GET:
//
//	e.GET("/payments/status", echo4idempotency.Status(idem))
func Status(idem interface{ Status() http.Handler }) echo.HandlerFunc {
	status := idem.Status()
	return func(c echo.Context) error {
		status.ServeHTTP(c.Response(), requestWithContext(c))
		return nil
	}
}

// recordAnswer runs next, and the error handler of echo for an error, with the recording writer w. hasAnswered is false if next has
// left the answer to outer middleware.
func recordAnswer(c echo.Context, next echo.HandlerFunc, w http.ResponseWriter, r *http.Request) (hasAnswered bool, err error) {
	defer restoreContext(c, c.Response(), c.Request())
	response := echo.NewResponse(w, c.Echo())
	response.Status = http.StatusOK // as in an unwritten response of echo
	c.SetResponse(response)
	c.SetRequest(r)

	err = next(c)
	if isUnrouted(c, err) {
		idempotency.Decide(r.Context(), idempotency.Free)
	}
	switch {
	case !response.Committed && hasGivenUp(r.Context(), err):
		return false, err
	case err != nil:
		c.Error(err)
		return response.Committed, err
	case !response.Committed:
		w.WriteHeader(http.StatusOK) // as net/http does
	}
	return true, nil
}

// isUnrouted reports whether err comes from echo itself, which has found no route for the request.
func isUnrouted(c echo.Context, err error) bool {
	if !errors.Is(err, echo.ErrNotFound) && !errors.Is(err, echo.ErrMethodNotAllowed) {
		return false
	}
	isMatched := func(route *echo.Route) bool { return route.Path == c.Path() && route.Method == c.Request().Method }
	for _, router := range c.Echo().Routers() {
		if slices.ContainsFunc(router.Routes(), isMatched) {
			return false
		}
	}
	return !slices.ContainsFunc(c.Echo().Routes(), isMatched)
}

func restoreContext(c echo.Context, response *echo.Response, request *http.Request) {
	c.SetResponse(response)
	c.SetRequest(request)
}

// hasGivenUp reports whether ctx has ended and err is nil or the error of ctx.
func hasGivenUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// closeResponse returns a copy of response that discards all writes. The request is answered, but outer middleware gets the error
// of the handler. An error handler that ignores Committed would write a second answer after the first.
func closeResponse(response *echo.Response) *echo.Response {
	closed := *response
	closed.Writer = discardWriter{response.Writer}
	return &closed
}

// discardWriter is a ResponseWriter that discards status and body.
type discardWriter struct{ http.ResponseWriter }

func (discardWriter) WriteHeader(int) {}

func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }

func (w discardWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// isInTimeout reports whether w is the writer of an http.TimeoutHandler, or wraps such a writer. The deprecated Timeout middleware
// of echo uses a TimeoutHandler, and drops the answer if the handler also returns an error.
func isInTimeout(w http.ResponseWriter) bool {
	for {
		if fmt.Sprintf("%T", w) == "*http.timeoutWriter" {
			return true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

type contextKey struct{}

// requestWithContext returns the request of c with c in the context of the request.
func requestWithContext(c echo.Context) *http.Request {
	r := c.Request()
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, c))
}

// shareForm gives r the form that was parsed in a copy of r. The server removes the temporary files of the form of r.
func shareForm(r, parsed *http.Request) {
	if parsed.MultipartForm != nil {
		r.MultipartForm = parsed.MultipartForm
	}
}

// Context returns the echo.Context of a request that has passed Middleware, or nil. Use Context in functions that idem calls with a
// request, such as the [idempotency.UserFunc] and the ErrorHandler. The echo.Context is valid until the function returns.
func Context(r *http.Request) echo.Context {
	c, _ := r.Context().Value(contextKey{}).(echo.Context)
	return c
}
