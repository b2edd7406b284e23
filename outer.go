package idempotency

import (
	"errors"
	"net/http"
)

// errAnsweredLater is why nothing is stored of a handler that wrote nothing inside of a framework that answersLater.
var errAnsweredLater = errors.New("idempotency: the handler wrote nothing, and the framework around the middleware " +
	"answers after it: mount the middleware by the framework's adapter, around whatever makes answers of errors")

// undone is the refusal of such a request if the effects of its handler are bound to the record. They are undone, so
// the framework must not answer that all is well. A retry would come to the same end.
func undone() *Error {
	refusal := refuseAs(ErrRolledBack, errAnsweredLater)
	refusal.Status, refusal.Retry, refusal.RetryAfter = http.StatusInternalServerError, RetryNever, 0
	refusal.Detail = "This is a fault of the server: it answers otherwise than by way of the middleware for idempotency " +
		"keys. The effects of the request were undone. Do not retry."
	return refusal
}

// What tells the writers of frameworks that answer after their handlers have returned.
type (
	// echoWriter is that of echo, v4 and v5, which answers with the error that a handler has returned.
	echoWriter interface {
		Before(func())
		After(func())
	}

	// ginWriter is that of gin, which answers with the status that a handler has set.
	ginWriter interface {
		WriteHeaderNow()
		Written() bool
	}
)

// answersLater reports whether w, or a writer that it wraps, is that of a framework that answers after its handlers
// have returned. Then a handler that wrote nothing has not said that all is well: it may have returned an error to the
// framework, or have written past the middleware.
func answersLater(w http.ResponseWriter) bool {
	for {
		switch outer := w.(type) {
		case echoWriter, ginWriter:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = outer.Unwrap()
		default:
			return false
		}
	}
}
