package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// What a request can be refused for. Each is matched with [errors.Is], in the error of [Runner.Do] and in the
// [Error] that Options.ErrorHandler receives; the comment names the problem type that a client sees.
var (
	ErrKeyMissing     = errors.New("idempotency: key missing")                        // key-missing
	ErrKeyInvalid     = errors.New("idempotency: key invalid")                        // key-invalid
	ErrUserUnknown    = errors.New("idempotency: user unknown")                       // user-unknown
	ErrBodyTooLarge   = errors.New("idempotency: request body too large")             // body-too-large
	ErrBodyInvalid    = errors.New("idempotency: request body invalid")               // body-invalid
	ErrInProgress     = errors.New("idempotency: in progress")                        // in-progress
	ErrKeyReused      = errors.New("idempotency: key reused")                         // key-reused
	ErrNotReplayable  = errors.New("idempotency: response not replayable")            // not-replayable
	ErrOutcomeUnknown = errors.New("idempotency: outcome unknown")                    // outcome-unknown
	ErrUnavailable    = errors.New("idempotency: store unavailable")                  // store-unavailable
	ErrRolledBack     = errors.New("idempotency: rolled back, or in doubt")           // rolled-back
	ErrClaimLost      = errors.New("idempotency: claim lost to a successor")          // in-progress
	ErrRecordInvalid  = errors.New("idempotency: stored record not readable")         // store-unavailable
	ErrStoreFull      = errors.New("idempotency: store full")                         // store-unavailable
	ErrUserQuota      = errors.New("idempotency: user's share of the store used up")  // quota-exceeded
	ErrRestored       = errors.New("idempotency: record lost by the store, restored") // never shown: the answer stands
)

// problemBase is the first part of every problem type. Types are stable: changing one breaks clients.
const problemBase = "https://github.com/idempotency-go/idempotency#"

// Error is a request refused: what the client is told, and why. It renders as RFC 9457 problem details.
type Error struct {
	// Status is the HTTP status code.
	Status int

	// Code names the kind of problem, such as "in-progress". The type of the problem is a URL that ends in it.
	Code string

	// Title is the same for every problem with this code.
	Title string

	// Detail says in particular whether to retry with the same key or with a new one.
	Detail string

	// RetryAfter is how long to wait before a retry. Zero: nothing is said of it.
	RetryAfter time.Duration

	// OriginalStatus is, for [ErrNotReplayable], the status code of the answer that was not kept; else zero.
	OriginalStatus int

	// Err is the sentinel, wrapped with its cause. It is not shown to the client.
	Err error
}

// Error returns the text of the cause.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap makes the sentinel and the cause visible to [errors.Is] and [errors.As].
func (e *Error) Unwrap() error { return e.Err }

// problems says how each refusal is shown to the client.
var problems = []struct {
	is    error
	shown Error
}{
	{ErrKeyMissing, Error{Status: http.StatusBadRequest, Code: "key-missing",
		Title:  "Idempotency key is missing",
		Detail: "This request must carry an idempotency key. Send it again with a key of its own, such as a random UUID."}},
	{ErrKeyInvalid, Error{Status: http.StatusBadRequest, Code: "key-invalid",
		Title:  "Idempotency key is invalid",
		Detail: "Nothing was executed. Send one header line with 1 to 255 visible ASCII characters, bare if without comma or else as an RFC 9651 string."}},
	{ErrUserUnknown, Error{Status: http.StatusUnauthorized, Code: "user-unknown",
		Title:  "Caller is unknown",
		Detail: "Nothing was executed. Authenticate, then retry with the same key."}},
	{ErrBodyTooLarge, Error{Status: http.StatusRequestEntityTooLarge, Code: "body-too-large",
		Title:  "Request body is too large",
		Detail: "Nothing was executed. A request with an idempotency key must have a smaller body."}},
	{ErrBodyInvalid, Error{Status: http.StatusBadRequest, Code: "body-invalid",
		Title:  "Request body could not be read",
		Detail: "Nothing was executed. Retry with the same key and the whole, well-formed body."}},
	{ErrKeyReused, Error{Status: http.StatusConflict, Code: "key-reused",
		Title:  "Idempotency key is already used",
		Detail: "This key was sent before with another request. Nothing was executed. Use a new key for a new request."}},
	{ErrNotReplayable, Error{Status: http.StatusConflict, Code: "not-replayable",
		Title:  "Answer cannot be replayed",
		Detail: "The request was executed before and is not executed again, but its answer was too large to keep. Do not retry; look the result up."}},
	{ErrOutcomeUnknown, Error{Status: http.StatusConflict, Code: "outcome-unknown",
		Title:  "Outcome of the earlier attempt is unknown",
		Detail: "An earlier attempt with this key was interrupted and is not executed again. Find out what became of it before using a new key."}},
	{ErrInProgress, Error{Status: http.StatusConflict, Code: "in-progress", RetryAfter: time.Second,
		Title:  "A request with this idempotency key is in progress",
		Detail: "Retry later with the same key to receive its answer."}},
	{ErrClaimLost, Error{Status: http.StatusConflict, Code: "in-progress", RetryAfter: time.Second,
		Title:  "A request with this idempotency key is in progress",
		Detail: "Another attempt has taken over. Retry later with the same key to receive its answer."}},
	{ErrUserQuota, Error{Status: http.StatusTooManyRequests, Code: "quota-exceeded", RetryAfter: time.Minute,
		Title:  "Caller's quota is used up",
		Detail: "Nothing was executed. Retry later with the same key, once some of the caller's earlier keys have expired."}},
	{ErrRolledBack, Error{Status: http.StatusServiceUnavailable, Code: "rolled-back", RetryAfter: time.Second,
		Title:  "The request did not take effect",
		Detail: "Its effects were undone, or could not be confirmed. Retry with the same key: it is executed, or its answer replayed."}},
	{ErrUnavailable, Error{Status: http.StatusServiceUnavailable, Code: "store-unavailable", RetryAfter: time.Second,
		Title:  "Idempotency cannot be guaranteed at the moment",
		Detail: "Nothing was executed. Retry later with the same key."}},
}

// refuse returns the Error for err, which wraps one of the sentinels above. What wraps none is a failure of the store.
func refuse(err error) *Error {
	for _, p := range problems {
		if errors.Is(err, p.is) {
			shown := p.shown
			shown.Err = err
			return &shown
		}
	}
	return refuse(fmt.Errorf("%w: %w", ErrUnavailable, err))
}

// WriteProblem writes e as application/problem+json (RFC 9457). It is the default of Options.ErrorHandler, for error
// handlers of one's own to fall back on.
func WriteProblem(w http.ResponseWriter, _ *http.Request, e *Error) {
	body, err := json.Marshal(struct {
		Type           string `json:"type"`
		Title          string `json:"title"`
		Status         int    `json:"status"`
		Detail         string `json:"detail"`
		OriginalStatus int    `json:"originalStatus,omitempty"`
	}{problemBase + e.Code, e.Title, e.Status, e.Detail, e.OriginalStatus})
	if err != nil {
		panic(err) // strings and integers always marshal
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(e.RetryAfter), 10))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // a client that has left is told when it retries
}

// retryAfterSeconds rounds up to whole seconds, the only unit of Retry-After (RFC 9110, section 10.2.3).
func retryAfterSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
