// Package fiberidempotency mounts the middleware of package idempotency in fiber v3:
//
//	once, err := fiberidempotency.Middleware(app, idem)
//	...
//	app.Post("/payments", once, createPayment)
//
// A guarded handler answers as usual. An error that the handler returns is answered by the ErrorHandler of the app within the
// recording, so a retry gets the same answer. After a refusal or a replay, the rest of the chain does not run. Mount the
// middleware inside authentication, on a group or on routes. Requests without a key reach the handler unguarded. A 404 or 405 by
// fiber itself is not stored, because the route may exist at the next request.
//
// fiber is built on fasthttp instead of net/http, which makes these differences:
//
//   - The answer is sent when it is complete. A stream is read to its end first, also with Options.Stream, and a trailer becomes
//     fields of the header. A stream that breaks off has an unknown outcome.
//   - fasthttp does not tell when a client leaves. A waiting request waits to the end of Options.Wait, and
//     Options.CancelWithClient has no effect.
//   - The context of the operation is [fiber.Ctx.Context], for [idempotency.FromContext] and [idempotency.Decide].
//   - The timeout middleware of fiber may be outside or inside. When the time is up, the outcome is unknown, because the handler
//     may still be writing, so the answer is neither stored nor sent. The same holds for the deadline of any other context that
//     outer middleware sets, and for an answer after Drop. Options.Abandoned decides about a retry. With the timeout outside, the
//     claim lasts until the handler returns. With the timeout inside, a retry may run beside a handler that goes on, so mount it
//     outside.
//   - A panic ends the process unless the recover middleware of fiber is mounted, inside or outside.
package fiberidempotency

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/valyala/fasthttp"

	"github.com/idempotency-go/idempotency"
)

// Middleware returns fiber middleware that guards all later handlers of the chain with idem. The app is the one that listens.
// The app must have DisablePreParseMultipartForm, and must not have StreamRequestBody, because fiber otherwise does not show
// request bodies as they were sent. Functions of the service that get an *http.Request, such as the [idempotency.UserFunc], find
// the context of fiber with [Context].
func Middleware(app *fiber.App, idem *idempotency.Middleware) (fiber.Handler, error) {
	var faults []error
	if config := app.Config(); !config.DisablePreParseMultipartForm {
		faults = append(faults, errors.New("fiberidempotency: DisablePreParseMultipartForm of the app is not set"))
	}
	if app.Config().StreamRequestBody {
		faults = append(faults, errors.New("fiberidempotency: StreamRequestBody of the app is set"))
	}
	if idem == nil {
		faults = append(faults, errors.New("fiberidempotency: the idempotency.Middleware is nil"))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return func(c fiber.Ctx) error { return serveGuarded(c, idem) }, nil
}

// Status returns a handler that answers as Status of idem does. The functions of the service find the context of fiber with
// [Context], as behind Middleware. Mount the handler inside authentication, for GET:
//
//	app.Get("/payments/status", fiberidempotency.Status(idem))
func Status(idem interface{ Status() http.Handler }) fiber.Handler {
	status := idem.Status()
	return func(c fiber.Ctx) error {
		request, err := newRequest(c)
		if err != nil {
			return err
		}
		answer := &answerWriter{header: copyFields(c.Response())}
		status.ServeHTTP(answer, request)
		return answer.copyTo(c)
	}
}

// newRequest returns the request of c, with c in its context. The error is an error of fiber.
func newRequest(c fiber.Ctx) (*http.Request, error) {
	request, err := adaptor.ConvertRequest(c, true)
	if err != nil {
		return nil, fiber.NewError(fiber.StatusBadRequest, "the target of the request is invalid")
	}
	return request.WithContext(context.WithValue(c.Context(), contextKey{}, c)), nil
}

// serveGuarded passes the request of c through idem, and puts the answer into the response of c.
func serveGuarded(c fiber.Ctx, idem *idempotency.Middleware) error {
	request, err := newRequest(c)
	if err != nil {
		return err
	}
	outside := c.Context()
	isUnguarded, answer := false, &answerWriter{header: copyFields(c.Response())}
	idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r == request {
			isUnguarded, err = true, c.Next()
		} else {
			err = recordAnswer(c, w, r.Context())
		}
	})).ServeHTTP(answer, request)
	switch {
	case isUnguarded:
		return err
	case hasTimedOut(c, outside):
		return outside.Err() // nil if a timeout middleware inside has answered
	case err != nil:
		return err
	default:
		return answer.copyTo(c)
	}
}

// recordAnswer runs the rest of the chain, and writes the answer to w. The response of c is then again as outer middleware left it.
// The error says why there is no answer.
func recordAnswer(c fiber.Ctx, w http.ResponseWriter, ctx context.Context) error {
	outer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(outer)
	c.Response().CopyTo(outer)
	outside := c.Context()
	c.SetContext(ctx)
	defer func() { // also after a panic
		if !hasTimedOut(c, outside) {
			outer.CopyTo(c.Response())
			c.SetContext(outside)
		}
	}()
	err := c.Next()
	if hasTimedOut(c, outside) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return nil
	}
	if hasGivenUp(ctx, err) {
		return nil
	}
	if isUnrouted(c, err) {
		idempotency.Decide(ctx, idempotency.Free)
	}
	if err != nil && c.App().ErrorHandler(c, err) != nil {
		_ = c.SendStatus(http.StatusInternalServerError) // like fiber
	}
	if wasDropped(c) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return nil
	}
	if err := writeResponse(w, c.Response()); err != nil {
		idempotency.Decide(ctx, idempotency.Unknown) // the stream broke off
		return err
	}
	return nil
}

// hasTimedOut reports whether the timeout middleware, or a handler abandoned by the timeout middleware, may be using c. The
// context of that middleware has a deadline. The end of a context without a deadline, as in a shutdown, says nothing about c.
func hasTimedOut(c fiber.Ctx, outside context.Context) bool {
	_, hasDeadline := outside.Deadline()
	return c.IsAbandoned() || hasDeadline && outside.Err() != nil
}

// hasGivenUp reports whether err, the error of the handler, is the error of ctx, which has ended because the claim is lost. Without
// an answer, the middleware refuses the request.
func hasGivenUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

// isUnrouted reports whether err comes from fiber itself, which has found no route for the request.
func isUnrouted(c fiber.Ctx, err error) bool {
	return !c.Matched() && (errors.Is(err, fiber.ErrNotFound) || errors.Is(err, fiber.ErrMethodNotAllowed))
}

// wasDropped reports whether the handler has closed the connection by Drop, without an answer. End, too, closes the connection,
// but after an answer.
func wasDropped(c fiber.Ctx) bool {
	resp := c.Response()
	isUntouched := resp.StatusCode() == http.StatusOK && !resp.IsBodyStream() && len(resp.Body()) == 0
	return isUntouched && c.RequestCtx().Conn().SetWriteDeadline(time.Time{}) != nil
}

type contextKey struct{}

// Context returns the fiber.Ctx of a request that has passed Middleware, or nil. Use Context in functions that idem calls with a
// request, such as the [idempotency.UserFunc] and the ErrorHandler. An ErrorHandler may answer with the fiber.Ctx instead of the
// http.ResponseWriter. The fiber.Ctx and the request are valid until the function returns, because fiber reuses their memory.
func Context(r *http.Request) fiber.Ctx {
	c, _ := r.Context().Value(contextKey{}).(fiber.Ctx)
	return c
}
