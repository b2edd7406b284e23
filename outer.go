package idempotency

import (
	"errors"
	"net/http"
)

// errAnsweredLater is why nothing is stored if a handler wrote nothing, and answersLater is true of its framework.
var errAnsweredLater = errors.New("idempotency: the handler wrote nothing, and the framework around the middleware " +
	"answers after it: mount the middleware by the framework's adapter, around whatever makes answers of errors")

// undone is the refusal of a request whose handler wrote nothing inside of such a framework, if its effects are bound to
// the record. They are undone, so the framework must not answer that all is well. A retry would come to the same end.
func undone() *Error {
	refusal := refuseAs(ErrRolledBack, errAnsweredLater)
	refusal.Status, refusal.Retry, refusal.RetryAfter = http.StatusInternalServerError, RetryNever, 0
	refusal.Detail = "This is a fault of the server: it answers otherwise than by way of the middleware for idempotency " +
		"keys. The effects of the request were undone. Do not retry."
	return refusal
}

// The methods by which the writers of echo and gin are recognised. Both answer after their handlers have returned.
type (
	// echoWriter is the writer of echo v4 and v5. echo makes an answer of the error that a handler has returned.
	echoWriter interface {
		Before(func())
		After(func())
	}

	// ginWriter is the writer of gin. gin answers with the status that a handler has set.
	ginWriter interface {
		WriteHeaderNow()
		Written() bool
	}
)

// turnsAway reports whether the writer of a framework has been told a status by which the handler turns the request away.
func turnsAway(w http.ResponseWriter) bool {
	told, ok := w.(interface{ Status() int })
	return ok && refused(told.Status())
}

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
