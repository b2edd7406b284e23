// Package echo4idempotency mounts the middleware of package idempotency in echo v4:
//
//	e.POST("/payments", createPayment, echo4idempotency.Middleware(idem))
//
// A guarded handler answers as it always does. If it returns an error, the HTTPErrorHandler of echo gets it at once.
// What that writes is the handler's answer: it is stored and replayed, unless Options.Storable says that it means "try
// again". The error also goes on to outer middleware, which may log it or roll back. What outer middleware writes then
// comes too late. So middleware that turns errors into other errors belongs inside.
//
// If the context of the handler has ended, and the handler returns nothing but the error of its context, it has given
// up. Nothing is stored, and outer middleware such as ContextTimeout makes the answer of the error.
//
// Mount it inside authentication, Recover, Gzip, BodyLimit and ContextTimeout, on a group or on routes.
// Requests without a key reach the handler untouched.
package echo4idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"
)

// Middleware returns a middleware of echo that guards handlers with idem, a middleware of
// package idempotency or upload. Refusals are written by the ErrorHandler of idem, not by that of echo.
func Middleware(idem interface {
	Handler(next http.Handler) http.Handler
}) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			guarded, answered, outer, request := false, false, c.Response(), carrying(c)
			defer takeForm(c.Request(), request)
			idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if guarded = r != request; guarded {
					answered, err = answer(c, next, w, r)
				} else {
					err = next(c)
				}
			})).ServeHTTP(outer, request)
			refused := guarded && !answered && outer.Committed // because the claim was lost, say
			switch {
			case err == nil || !answered && !refused:
				return err
			case inTimeout(outer.Writer):
				return nil
			default:
				c.SetResponse(closed(outer))
				return err
			}
		}
	}
}

// answer runs next, and the error handler of echo, with a response that is recorded. If they leave the answer to outer
// middleware, answered is false.
func answer(c echo.Context, next echo.HandlerFunc, w http.ResponseWriter, r *http.Request) (answered bool, err error) {
	defer restore(c, c.Response(), c.Request())
	response := echo.NewResponse(w, c.Echo())
	response.Status = http.StatusOK // as in a response that is not written yet
	c.SetResponse(response)
	c.SetRequest(r)

	err = next(c)
	switch {
	case !response.Committed && gaveUp(r.Context(), err):
		return false, err
	case err != nil:
		c.Error(err)
		return response.Committed, err
	case !response.Committed:
		w.WriteHeader(http.StatusOK) // as net/http does
	}
	return true, nil
}

func restore(c echo.Context, response *echo.Response, request *http.Request) {
	c.SetResponse(response)
	c.SetRequest(request)
}

// gaveUp reports whether err says no more than that the context has ended.
func gaveUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// closed returns the response of a request that is answered, while its error goes on to outer middleware. An error
// handler that does not look whether the response is committed would write a second answer after the first.
func closed(response *echo.Response) *echo.Response {
	answered := *response
	answered.Writer = discard{response.Writer}
	return &answered
}

type discard struct{ http.ResponseWriter }

func (discard) WriteHeader(int) {}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (w discard) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// inTimeout reports whether w is that of an http.TimeoutHandler, or wraps it. The Timeout of echo, which is deprecated
// and made of one, throws an answer away if an error comes after it.
func inTimeout(w http.ResponseWriter) bool {
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

// carrying returns the request of c with c in its context.
func carrying(c echo.Context) *http.Request {
	r := c.Request()
	return r.WithContext(context.WithValue(r.Context(), contextKey{}, c))
}

// takeForm lets the server remove the files of a form that was parsed in a copy of its request.
func takeForm(r, parsed *http.Request) {
	if parsed.MultipartForm != nil {
		r.MultipartForm = parsed.MultipartForm
	}
}

// Context returns the echo.Context of a request that has come through Middleware, or nil. Use it in the functions that
// idem calls with a request, such as its [idempotency.UserFunc] and the ErrorHandler, while they run.
func Context(r *http.Request) echo.Context {
	c, _ := r.Context().Value(contextKey{}).(echo.Context)
	return c
}
