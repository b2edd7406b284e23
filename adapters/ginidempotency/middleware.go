// Package ginidempotency mounts the middleware of package idempotency in gin:
//
//	r.POST("/payments", ginidempotency.Middleware(idem), createPayment)
//
// A guarded handler answers as it always does. If the request is refused or its answer replayed, the chain is aborted.
//
// A handler may attach an error by Context.Error or AbortWithError, write no body, and set no status below 400. That is
// no answer yet, because middleware outside may make one of it. So nothing is stored. The Logger of idem is told, unless
// a status such as 400 says that the request was turned away. A retry runs the handler again or, with
// [idempotency.Refuse], is refused. Mount middleware that answers errors inside of this one. Then its answers are stored
// and replayed, unless Options.Storable says that they mean "try again".
//
// The 404 or 405 that gin answers by itself is not stored. An answer by Engine.HandleContext is not recorded. It is
// treated like such an error.
//
// Mount it inside authentication, Recovery and compression, on a group or on routes. Requests without a key reach the
// handler untouched.
package ginidempotency

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idempotency-go/idempotency"
)

// Middleware returns a middleware of gin that guards the handlers after it in the chain with idem, a
// middleware of package idempotency or upload. Refusals are written by the ErrorHandler of idem.
func Middleware(idem interface {
	Handler(next http.Handler) http.Handler
}) gin.HandlerFunc {
	return func(c *gin.Context) {
		ran, written, left, request := false, false, false, carrying(c)
		defer takeForm(c.Request, request)
		idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran = true
			if r == request { // it is not guarded
				c.Next()
			} else {
				written = answer(c, w, r)
				left = !written && !c.Writer.Written()
			}
		})).ServeHTTP(prompt{c.Writer}, request)
		switch {
		case !ran:
			c.Abort()
		case written:
			c.Writer.WriteHeaderNow()
		case left && c.Writer.Written(): // by a refusal, because the claim was lost, say
			c.Writer = closed{c.Writer}
		}
	}
}

// answer runs the rest of the chain with a writer that is recorded. It reports whether the header is written.
func answer(c *gin.Context, w http.ResponseWriter, r *http.Request) (written bool) {
	outer, errs := c.Writer, len(c.Errors)
	defer restore(c, outer, c.Request)
	inner := &writer{recorded: w, ctx: r.Context(), status: outer.Status(), size: unwritten}
	c.Writer, c.Request = inner, r

	c.Next()
	switch {
	case c.FullPath() == "" && inner.untouched(outer): // gin answers that there is no such route, or method
		idempotency.Decide(r.Context(), idempotency.Free)
	case inner.answered(outer, len(c.Errors) > errs):
		inner.commit()
	default:
		inner.takeBack()
		outer.WriteHeader(inner.status) // which gin only remembers
		if _, decided := idempotency.Decided(r.Context()); !decided && inner.status >= http.StatusBadRequest {
			idempotency.Decide(r.Context(), idempotency.Unknown) // not that it wrote nothing, which would be a fault of the server
		}
	}
	return inner.Written()
}

func restore(c *gin.Context, w gin.ResponseWriter, r *http.Request) { c.Writer, c.Request = w, r }

type contextKey struct{}

// carrying returns the request of c with c in its context.
func carrying(c *gin.Context) *http.Request {
	return c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, c))
}

// takeForm lets the server remove the files of a form that was parsed in a copy of its request.
func takeForm(r, parsed *http.Request) {
	if parsed.MultipartForm != nil {
		r.MultipartForm = parsed.MultipartForm
	}
}

// Context returns the gin.Context of a request that has come through Middleware, or nil. Use it in the functions that
// idem calls with a request, such as its [idempotency.UserFunc] and the ErrorHandler, while they run.
func Context(r *http.Request) *gin.Context {
	c, _ := r.Context().Value(contextKey{}).(*gin.Context)
	return c
}
