package keyfrom

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// keyFault is [idempotency.ErrKeyInvalid] with a reason for the client.
type keyFault struct{ clientReason string }

func newKeyFault(format string, args ...any) error { return &keyFault{fmt.Sprintf(format, args...)} }

func (e *keyFault) Error() string { return idempotency.ErrKeyInvalid.Error() + ": " + e.clientReason }
func (e *keyFault) Unwrap() error { return idempotency.ErrKeyInvalid }

// errCoded refuses a body with a content coding, as RFC 9110, section 15.5.16, describes.
var errCoded = &idempotency.Error{
	Status: http.StatusUnsupportedMediaType, Code: "body-invalid", Retry: idempotency.RetrySameKey,
	Title:  "Request body is compressed",
	Detail: "This attempt was not executed: compression hides its idempotency key. Send the body without Content-Encoding.",
	Header: http.Header{"Accept-Encoding": {"identity"}},
	Err:    fmt.Errorf("%w: a content coding hides the key", idempotency.ErrBodyInvalid),
}

// refusals has the answer for each sentinel, with the codes of [idempotency.Middleware].
var refusals = []idempotency.Error{
	{Err: idempotency.ErrKeyInvalid, Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Title:  "Idempotency key is invalid",
		Detail: "Nothing was executed. Send the request with one valid key of 1 to 255 visible ASCII characters."},
	{Err: idempotency.ErrUserUnknown, Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Title:  "Caller is unknown",
		Detail: "This attempt was not executed. Authenticate, then retry with the same key."},
	{Err: idempotency.ErrBodyTooLarge, Status: http.StatusRequestEntityTooLarge, Code: "body-too-large", Retry: idempotency.RetryNever,
		Title:  "Request body is too large",
		Detail: "Nothing was executed, because the body must be searched for its idempotency key. Send a smaller body."},
	{Err: idempotency.ErrBodyInvalid, Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetrySameKey,
		Title:  "Request body could not be read",
		Detail: "This attempt was not executed. Retry with the same key and the whole, well-formed body."},
	{Err: idempotency.ErrBodyConsumed, Status: http.StatusInternalServerError, Code: "body-consumed", Retry: idempotency.RetryNever,
		Title:  "Request body was read before",
		Detail: "This is a fault of the server: something has read the request body before its idempotency key was found. Do not retry."},
	{Err: idempotency.ErrOverloaded, Status: http.StatusServiceUnavailable, Code: "overloaded", Retry: idempotency.RetrySameKey,
		RetryAfter: time.Second,
		Title:      "Too many requests at once",
		Detail:     "This attempt was not executed, because the memory for request bodies is used up. Retry later with the same key."},
}

// refusalFor returns the answer for err, an error of a search. If err is or wraps an [*idempotency.Error], the client gets
// that Error.
func refusalFor(err error) *idempotency.Error {
	var refusal idempotency.Error
	own, isOwn := errors.AsType[*idempotency.Error](err)
	for _, template := range refusals {
		if errors.Is(err, template.Err) {
			refusal = template
			break
		}
	}
	if isOwn {
		refusal = *own
	}
	if fault, ok := errors.AsType[*keyFault](err); ok {
		refusal.Detail += " Reason: " + fault.clientReason + "."
	}
	refusal.Err = err
	return &refusal
}

// refuseUser returns the error for a request whose UserFunc has returned err, or no user.
func refuseUser(err error) error {
	if err == nil {
		return idempotency.ErrUserUnknown
	}
	return fmt.Errorf("%w: %w", idempotency.ErrUserUnknown, err)
}

// bodyFault returns the error for a body that could not be read because of err.
func bodyFault(err error) error {
	switch {
	case errors.Is(err, bounds.ErrNoRoom):
		return idempotency.ErrOverloaded
	case errors.Is(err, bounds.ErrTooLarge):
		return fmt.Errorf("%w: %w", idempotency.ErrBodyTooLarge, err)
	}
	return fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err)
}

// refuseContent returns the answer for err, an error of the keyRunner. An error of the step is a failure of the store.
func refuseContent(key idempotency.Key, err error) *idempotency.Error {
	refusal := idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Title:  "Idempotency cannot be guaranteed at the moment",
		Detail: "This attempt was not executed. Retry later.",
		Err:    fmt.Errorf("%w: %w", idempotency.ErrUnavailable, err),
	}
	if own, ok := errors.AsType[*idempotency.Error](err); ok {
		refusal = *own
	}
	refusal.Instance = "urn:uuid:" + key.OperationID().String()
	return &refusal
}

// rejectRequest reports and refuses a request that is refused before the store is asked.
func (m *Middleware) rejectRequest(w http.ResponseWriter, r *http.Request, err error) {
	refusal := refusalFor(err)
	if m.opts.Observer != nil {
		m.opts.Observer(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeRejected, Err: refusal})
	}
	m.refuseRequest(w, r, refusal)
}

// refuseRequest answers with the problem type that [idempotency.Middleware] sets.
func (m *Middleware) refuseRequest(w http.ResponseWriter, r *http.Request, refusal *idempotency.Error) {
	if refusal.Type == "" && refusal.Code != "" {
		refusal.Type = m.opts.ProblemBase + refusal.Code
	}
	m.writeRefusal(w, r, refusal)
}

// writeRefusal is the ErrorHandler of all guards. It gives the room of the body back before the answer is sent, because the
// client may read the answer slowly.
func (m *Middleware) writeRefusal(w http.ResponseWriter, r *http.Request, refusal *idempotency.Error) {
	if body, ok := r.Body.(*bounds.Body); ok {
		_ = body.Close()
	}
	m.opts.ErrorHandler(w, r, refusal)
}
