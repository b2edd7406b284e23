package idempotency

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The reasons to refuse a request. Match the errors by [errors.Is], in the error of [Runner.Do] and in the [Error] that
// Options.ErrorHandler gets. The comment after each error names the problem type that a client sees. Only ErrRestored
// is no refusal: a store returns ErrRestored to its caller.
var (
	ErrKeyMissing     = errors.New("idempotency: the request has no key")                          // key-missing
	ErrKeyInvalid     = errors.New("idempotency: the key is invalid")                              // key-invalid
	ErrUserUnknown    = errors.New("idempotency: the caller is unknown")                           // user-unknown
	ErrBodyTooLarge   = errors.New("idempotency: the request body is too large")                   // body-too-large
	ErrBodyInvalid    = errors.New("idempotency: the request body is invalid")                     // body-invalid
	ErrBodyConsumed   = errors.New("idempotency: the request body was read before the middleware") // body-consumed
	ErrOverloaded     = errors.New("idempotency: the memory for request bodies is used up")        // overloaded
	ErrInProgress     = errors.New("idempotency: another attempt is in progress")                  // in-progress
	ErrKeyReused      = errors.New("idempotency: the key was used with another request")           // key-reused
	ErrReplayRefused  = errors.New("idempotency: Options.Replay refused the replay")               // replay-refused
	ErrNotReplayable  = errors.New("idempotency: the answer was not kept for a replay")            // not-replayable
	ErrOutcomeUnknown = errors.New("idempotency: the outcome of an earlier attempt is unknown")    // outcome-unknown
	ErrUnavailable    = errors.New("idempotency: the store is unavailable")                        // store-unavailable
	ErrClaimLost      = errors.New("idempotency: the claim is lost or its lease has lapsed")       // in-progress
	ErrRecordInvalid  = errors.New("idempotency: the stored record cannot be read")                // store-unavailable
	ErrStoreFull      = errors.New("idempotency: the store is full")                               // store-unavailable
	ErrStoreBusy      = errors.New("idempotency: no connection to the store is free")              // store-unavailable
	ErrUserQuota      = errors.New("idempotency: the user's share of the store is used up")        // quota-exceeded
	ErrRestored       = errors.New("idempotency: the store had lost the record and restored it")   // no problem: the answer is valid
)

// problemBase is the default of Options.ProblemBase. Clients compare types, so a changed base breaks clients.
const problemBase = "https://idempotency-go.github.io/idempotency/problems#"

// Retry tells a client how to react to a refusal.
type Retry string

const (
	RetrySameKey Retry = "same-key" // send the request again with the same key, after RetryAfter
	RetryNewKey  Retry = "new-key"  // send the request with a key that was never used
	RetryNever   Retry = "never"    // never send the request again in this form
)

// Error is a refusal: the reason, and the answer to the client. [WriteProblem] writes an Error as problem details (RFC
// 9457). The zero value of each field is valid.
type Error struct {
	// Status is the HTTP status code. A value outside of 400 to 599 means 500.
	Status int

	// Code names the kind of problem, such as "in-progress". Without Type and Code, the type of the problem is
	// about:blank, and the client learns only the status.
	Code string

	// Type is the type of the problem, a URI. Empty means Options.ProblemBase followed by Code, if Code is set. A
	// [Middleware] sets Type before calling Options.ErrorHandler.
	Type string

	// Instance identifies the operation of the refused request, a URI (RFC 9457, section 3.1.5). If Instance is empty, a
	// [Middleware] sets Instance to urn:uuid: followed by the ID of the operation before calling Options.ErrorHandler. A
	// request that is refused before its key is known has no instance.
	Instance string

	// Title is the same for all problems with one Code. Empty means the text of the status.
	Title string

	// Detail explains the refusal to a person.
	Detail string

	// Retry tells the client how to react. If Retry is empty, the answer has no member "retry".
	Retry Retry

	// RetryAfter is how long the client should wait before a retry. RetryAfter is sent in whole seconds, rounded up. If
	// RetryAfter is zero, the answer has no field Retry-After.
	RetryAfter time.Duration

	// OriginalStatus is the status code of an answer that was not kept, or zero unless the reason is [ErrNotReplayable].
	OriginalStatus int

	// StatusURL is where the client can ask what became of the operation, see [KeyInfo]. If StatusURL is empty, the
	// answer has no member "statusUrl".
	StatusURL string

	// Header has further fields of the answer, such as WWW-Authenticate. Header replaces fields of outer middleware
	// with the same name.
	Header http.Header

	// Err wraps the sentinel and the cause. The client never sees Err.
	Err error
}

// Error returns the text of Err or, if Err is nil, the title.
func (e *Error) Error() string {
	if e.Err == nil {
		return "idempotency: " + e.withDefaults().Title
	}
	return e.Err.Error()
}

// Unwrap returns Err, so that [errors.Is] and [errors.As] find the sentinel and the cause.
func (e *Error) Unwrap() error { return e.Err }

// withDefaults returns a copy of e with the defaults of Status and Title.
func (e *Error) withDefaults() *Error {
	shown := *e
	if shown.Status < 400 || shown.Status > 599 {
		shown.Status = http.StatusInternalServerError
	}
	shown.Title = cmp.Or(shown.Title, http.StatusText(shown.Status), "Refused")
	shown.Header = e.Header.Clone()
	return &shown
}

// problems has the answer for each sentinel. The first sentinel that an error wraps counts. A detail states only known
// facts: where an earlier attempt may have run, the detail speaks of this attempt only.
var problems = []struct {
	sentinel error
	template Error
}{
	{ErrKeyMissing, Error{Status: http.StatusBadRequest, Code: "key-missing", Retry: RetryNewKey,
		Title:  "Idempotency key is missing",
		Detail: "This request must carry an idempotency key. Send it again with a key of its own, such as a random UUID."}},
	{ErrKeyInvalid, Error{Status: http.StatusBadRequest, Code: "key-invalid", Retry: RetryNewKey,
		Title:  "Idempotency key is invalid",
		Detail: "Nothing was executed. Send the request with one valid key of 1 to 255 visible ASCII characters."}},
	{ErrUserUnknown, Error{Status: http.StatusUnauthorized, Code: "user-unknown", Retry: RetrySameKey,
		Title:  "Caller is unknown",
		Detail: "This attempt was not executed. Authenticate, then retry with the same key."}},
	{ErrBodyTooLarge, Error{Status: http.StatusRequestEntityTooLarge, Code: "body-too-large", Retry: RetryNever,
		Title:  "Request body is too large",
		Detail: "Nothing was executed. A request with an idempotency key must have a smaller body."}},
	{ErrBodyInvalid, Error{Status: http.StatusBadRequest, Code: "body-invalid", Retry: RetrySameKey,
		Title:  "Request body could not be read",
		Detail: "This attempt was not executed. Retry with the same key and the whole, well-formed body."}},
	{ErrBodyConsumed, Error{Status: http.StatusInternalServerError, Code: "body-consumed", Retry: RetryNever,
		Title:  "Request body was read before",
		Detail: "This is a fault of the server: something else has read the request body before its idempotency key was checked. Do not retry."}},
	{ErrOverloaded, Error{Status: http.StatusServiceUnavailable, Code: "overloaded", RetryAfter: time.Second, Retry: RetrySameKey,
		Title:  "Too many requests at once",
		Detail: "This attempt was not executed, because the memory for request bodies is used up. Retry later with the same key."}},
	{ErrKeyReused, Error{Status: http.StatusConflict, Code: "key-reused", Retry: RetryNewKey,
		Title:  "Idempotency key is already used",
		Detail: "This key was sent before with another request. This request was not executed. Use a new key for a new request."}},
	{ErrNotReplayable, Error{Status: http.StatusConflict, Code: "not-replayable", Retry: RetryNever,
		Title:  "Answer cannot be replayed",
		Detail: "The request was executed before and is not executed again, but its answer was not kept. Do not retry; look the result up."}},
	{ErrReplayRefused, Error{Status: http.StatusForbidden, Code: "replay-refused", Retry: RetryNever,
		Title:  "Answer is not shown again",
		Detail: "The request was executed before and is not executed again. The caller may not see its answer now."}},
	{ErrOutcomeUnknown, Error{Status: http.StatusConflict, Code: "outcome-unknown", Retry: RetryNever,
		Title:  "Outcome of the earlier attempt is unknown",
		Detail: "This attempt was not executed, because an earlier one ended without a known result. Find out what became of it before using a new key."}},
	{ErrInProgress, Error{Status: http.StatusConflict, Code: "in-progress", RetryAfter: time.Second, Retry: RetrySameKey,
		Title:  "A request with this idempotency key may be in progress",
		Detail: "This attempt was not executed, because an earlier one may still be running. Retry later with the same key to learn what became of it."}},
	{ErrClaimLost, Error{Status: http.StatusConflict, Code: "in-progress", RetryAfter: time.Second, Retry: RetrySameKey,
		Title:  "A request with this idempotency key may be in progress",
		Detail: "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key."}},
	{ErrUserQuota, Error{Status: http.StatusTooManyRequests, Code: "quota-exceeded", RetryAfter: time.Minute, Retry: RetrySameKey,
		Title:  "Caller's quota is used up",
		Detail: "This attempt was not executed. Retry later with the same key, once some of the caller's earlier keys have expired."}},
	{ErrRecordInvalid, Error{Status: http.StatusServiceUnavailable, Code: "store-unavailable", RetryAfter: time.Second, Retry: RetrySameKey,
		Title:  "Idempotency cannot be guaranteed at the moment",
		Detail: "Whether this request was executed is not known here, because its record cannot be read. Retry later with the same key, not with a new one."}},
	{ErrUnavailable, Error{Status: http.StatusServiceUnavailable, Code: "store-unavailable", RetryAfter: time.Second, Retry: RetrySameKey,
		Title:  "Idempotency cannot be guaranteed at the moment",
		Detail: "This attempt was not executed; an earlier one may have been. Retry later with the same key, not with a new one."}},
}

// refusalFor returns the refusal for err: err itself if err is an *Error, or else the answer for the first sentinel
// that err wraps. An error without a sentinel is a failure of the store.
func refusalFor(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	for _, problem := range problems {
		if errors.Is(err, problem.sentinel) {
			shown := problem.template
			shown.Err = err
			if problem.sentinel == ErrRecordInvalid && !errors.Is(err, ErrUnavailable) {
				shown.Err = fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
			if key, ok := errors.AsType[*keyError](err); ok {
				shown.Detail += " Reason: " + strings.TrimSuffix(key.clientReason.Error(), ".") + "."
			}
			return &shown
		}
	}
	return refusalFor(fmt.Errorf("%w: %w", ErrUnavailable, err))
}

// refuseAs returns the refusal for err, the error of a function of the service. If err is or wraps an *Error, the
// client gets that Error, and otherwise the answer for sentinel.
func refuseAs(sentinel, err error) *Error {
	shown := refusalFor(sentinel)
	if own, ok := errors.AsType[*Error](err); ok {
		shown = own.withDefaults()
	}
	shown.Err = fmt.Errorf("%w: %w", sentinel, err)
	return shown
}

// WriteProblem writes e as application/problem+json (RFC 9457). WriteProblem is the default of Options.ErrorHandler. A
// custom error handler can call WriteProblem for the refusals that the handler does not write itself. A 401 gets the
// field "WWW-Authenticate: Bearer" unless e or outer middleware has set the field.
func WriteProblem(w http.ResponseWriter, _ *http.Request, e *Error) {
	e = e.withDefaults()
	h := w.Header()
	for name, values := range e.Header {
		h[http.CanonicalHeaderKey(name)] = values
	}
	if e.Status == http.StatusUnauthorized && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110, section 15.5.2, demands a challenge
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(e.RetryAfter), 10))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.problemBody()) // a client that has left gets an answer by a retry
}

// problemBody returns e as a JSON object.
func (e *Error) problemBody() []byte {
	uri := cmp.Or(e.Type, problemType(problemBase, e.Code), "about:blank")
	body, _ := json.Marshal(struct { // marshalling strings and integers cannot fail
		Type           string `json:"type"`
		Title          string `json:"title"`
		Status         int    `json:"status"`
		Detail         string `json:"detail,omitempty"`
		Instance       string `json:"instance,omitempty"`
		Retry          Retry  `json:"retry,omitempty"`
		OriginalStatus int    `json:"originalStatus,omitempty"`
		StatusURL      string `json:"statusUrl,omitempty"`
	}{uri, e.Title, e.Status, e.Detail, e.Instance, e.Retry, e.OriginalStatus, e.StatusURL})
	return body
}

// problemType returns the type of a problem with code, or the empty string without a code.
func problemType(base, code string) string {
	if code == "" {
		return ""
	}
	return base + code
}

// retryAfterSeconds rounds up to whole seconds, the only unit of Retry-After (RFC 9110, section 10.2.3).
func retryAfterSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
