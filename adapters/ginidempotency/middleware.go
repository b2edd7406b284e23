// Package ginidempotency mounts the middleware of package idempotency in gin:
//
//	r.POST("/payments", ginidempotency.Middleware(idem), createPayment)
//
// A guarded handler answers as usual. After a refusal or a replay, the middleware aborts the chain.
//
// A handler leaves the answer open if it attaches an error with Context.Error or AbortWithError, writes no body, and sets no
// status below 400, because outer middleware may turn the error into an answer. The middleware then stores no answer. The Logger
// of idem gets a message, unless a status such as 400 shows that the handler has rejected the request. A retry runs the handler
// again or, with [idempotency.Refuse], is refused. Middleware that answers errors must be inside. The answers of inner middleware
// are stored and replayed, unless Options.Storable decides that an answer means "try again".
//
// A 404 or 405 by gin itself is not stored. An answer by Engine.HandleContext bypasses the middleware, and counts as left open.
//
// Mount the middleware inside authentication, Recovery and compression, on a group or on routes. Requests without a key reach the
// handler unguarded.
package ginidempotency

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idempotency-go/idempotency"
)

// Middleware returns gin middleware that guards all later handlers of the chain with idem, a middleware of package idempotency,
// upload or keyfrom. The ErrorHandler of idem writes refusals.
func Middleware(idem interface {
	Handler(next http.Handler) http.Handler
}) gin.HandlerFunc {
	return func(c *gin.Context) {
		hasRun, wasWritten, wasLeftOpen, request := false, false, false, requestWithContext(c)
		defer shareForm(c.Request, request)
		idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hasRun = true
			if r == request { // the request is unguarded
				c.Request.Body = r.Body // which package keyfrom has put back
				c.Next()
			} else {
				wasWritten = recordAnswer(c, w, r)
				wasLeftOpen = !wasWritten && !c.Writer.Written()
			}
		})).ServeHTTP(promptWriter{c.Writer}, request)
		switch {
		case !hasRun:
			c.Abort()
		case wasWritten:
			c.Writer.WriteHeaderNow()
		case wasLeftOpen && c.Writer.Written(): // by a refusal, for example because the claim was lost
			c.Writer = closedWriter{c.Writer}
		}
	}
}

// Status returns a handler that answers as Status of idem does. The functions of the service find the context of gin with
// [Context], as behind Middleware. Mount the handler inside authentication, for GET:
//
//	r.GET("/payments/status", ginidempotency.Status(idem))
func Status(idem interface{ Status() http.Handler }) gin.HandlerFunc {
	status := idem.Status()
	return func(c *gin.Context) { status.ServeHTTP(c.Writer, requestWithContext(c)) }
}

// recordAnswer runs the rest of the chain with the recording writer w. wasWritten reports whether the chain has written a header.
func recordAnswer(c *gin.Context, w http.ResponseWriter, r *http.Request) (wasWritten bool) {
	outer, errorCount := c.Writer, len(c.Errors)
	defer restoreContext(c, outer, c.Request)
	guarded := &guardedWriter{recordingWriter: w, handlerContext: r.Context(), status: outer.Status(), size: sizeUnwritten}
	c.Writer, c.Request = guarded, r

	c.Next()
	switch {
	case c.FullPath() == "" && guarded.isUntouched(outer): // gin will answer with 404 or 405
		idempotency.Decide(r.Context(), idempotency.Free)
	case guarded.hasAnswered(outer, len(c.Errors) > errorCount):
		guarded.commitHeader()
	default:
		guarded.restoreHeader()
		outer.WriteHeader(guarded.status) // gin keeps the status for outer middleware
		if _, hasDecided := idempotency.Decided(r.Context()); !hasDecided && guarded.status >= http.StatusBadRequest {
			idempotency.Decide(r.Context(), idempotency.Unknown) // an empty answer alone would count as a fault of the server
		}
	}
	return guarded.Written()
}

func restoreContext(c *gin.Context, w gin.ResponseWriter, r *http.Request) {
	c.Writer, c.Request = w, r
}

type contextKey struct{}

// requestWithContext returns the request of c with c in the context of the request.
func requestWithContext(c *gin.Context) *http.Request {
	return c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, c))
}

// shareForm gives r the form that was parsed in a copy of r. The server removes the temporary files of the form of r.
func shareForm(r, parsed *http.Request) {
	if parsed.MultipartForm != nil {
		r.MultipartForm = parsed.MultipartForm
	}
}

// Context returns the gin.Context of a request that has passed Middleware, or nil. Use Context in functions that idem calls with a
// request, such as the [idempotency.UserFunc] and the ErrorHandler. The gin.Context is valid until the function returns.
func Context(r *http.Request) *gin.Context {
	c, _ := r.Context().Value(contextKey{}).(*gin.Context)
	return c
}
