package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Transport is the client's half: an [http.RoundTripper] that gives every POST and PATCH request a key, and sends
// requests that carry one again, with the same key and body, until they are answered for good. Its zero value is ready
// to use. It is safe for concurrent use as long as its fields are not changed.
//
// The key is, in this order: the header that the caller has set (for any method); that of [WithKey]; at a redirect
// that keeps the method, the key of the request that was redirected; or a random UUID. A header that the caller has
// set to nothing asks for no key. Requests without a key pass untouched.
//
// What is sent again is what may still be carried out or answered:
//
//   - whatever Base could not send, unless the context of the request has ended, or the server's certificate is not
//     accepted;
//   - 425, 429, 500, 502, 503 and 504, unless marked as a replay: a stored answer stays what it is;
//   - 409 with Retry-After: the operation is in progress. Other conflicts end at once, such as a key that was reused.
//
// A request whose body cannot be had again, because GetBody is nil, is sent once. Otherwise it is sent up to
// MaxAttempts times, and the caller gets the last answer, or a [*TransportError]. When the context's deadline would
// pass before the next attempt, that is at once. Once an answer has begun it is the caller's: if its body breaks off,
// the caller may send the request again with the same key.
//
// The context of a request bounds all its attempts and the pauses in between. So does http.Client.Timeout, but its
// error hides how many there were.
type Transport struct {
	// Base sends the requests. Nil means [http.DefaultTransport]. Transports that authenticate or trace go here if they
	// are to see each attempt, and around this one if not. One that has retries of its own, such as that of
	// hashicorp/go-retryablehttp, goes here together with MaxAttempts 1: all its attempts carry the same key.
	Base http.RoundTripper

	// Header is the name of the request header with the key. Empty means Idempotency-Key.
	Header string

	// Quoted sends keys as strings of RFC 9651, as draft-ietf-httpapi-idempotency-key-header asks. By default they are
	// sent bare, as most services expect, unless they have characters that need quotes.
	Quoted bool

	// Exclude tells which requests pass untouched, for instance those to hosts that do not know the header.
	Exclude func(*http.Request) bool

	// MaxAttempts is how often a request is handed to Base at most; with 1, once. Zero means 4. The transport of
	// net/http may send it again by itself where a connection fails that was in use before, with the same key.
	MaxAttempts int

	// MinDelay is the pause before the second attempt. Each further one is twice as long, up to MaxDelay, and all are
	// varied at random by up to half of their length. Zero means 500 milliseconds.
	MinDelay time.Duration

	// MaxDelay is the longest pause, before it is varied. Zero means 8 seconds.
	MaxDelay time.Duration

	// MaxRetryAfter is how much of a Retry-After is heeded, where it is longer than the pause. Zero means one minute.
	MaxRetryAfter time.Duration

	// Observer is told of each attempt of a request with a key when it has ended. It is called by many goroutines at
	// once and holds up the request.
	Observer func(TransportEvent)
}

// TransportEvent is what Transport.Observer is told about an attempt.
type TransportEvent struct {
	// Request is what was sent, with its key. It must not be modified, and its body not be read.
	Request *http.Request

	// Attempt is 1 for the first one.
	Attempt int

	// Status is that of the answer; zero if there was none.
	Status int

	// Err is why there was no answer.
	Err error

	// Pause is how long the next attempt waits, unless the context ends before. Zero: this was the last one.
	Pause time.Duration
}

// TransportError is the error of a request that carried a key and was not answered. Whether it was carried out is
// unknown; to find out, send it again with its key.
type TransportError struct {
	// Key is what the request was sent with, for [WithKey]; empty if that was not a valid key.
	Key string

	// Attempts is how often the request was handed to Base.
	Attempts int

	// Err is the error of the last attempt, joined by that of the context if it ended the pause after it.
	Err error
}

// Error returns the number of attempts and the text of the last error.
func (e *TransportError) Error() string {
	return fmt.Sprintf("idempotency: no answer after %d attempt(s): %v", e.Attempts, e.Err)
}

// Unwrap returns Err.
func (e *TransportError) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout. It is for [net/url.Error].
func (e *TransportError) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(e.Err, &timeout) && timeout.Timeout()
}

// WithKey returns a context in which a [Transport] sends key with POST and PATCH requests that have none. It is for
// one operation: whoever stores the key with what is to be done, before it is sent for the first time, can send it
// again after a crash.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

type clientKey struct{}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	key, err := t.key(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if key == "" {
		return t.base().RoundTrip(req)
	}
	return t.send(req, key)
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) header() string {
	return http.CanonicalHeaderKey(cmp.Or(t.Header, defaultHeader))
}

// key returns the value of the header, or nothing if the request is not to have a key.
func (t *Transport) key(req *http.Request) (string, error) {
	name := t.header()
	if t.Exclude != nil && t.Exclude(req) {
		return "", nil
	}
	if _, set := req.Header[name]; set {
		return req.Header.Get(name), nil
	}
	if req.Method != http.MethodPost && req.Method != http.MethodPatch {
		return "", nil
	}
	if id, ok := req.Context().Value(clientKey{}).(string); ok {
		return t.format(id), checkKey(id, true) // it is quoted if need be
	}
	if answer := req.Response; answer != nil && answer.Request != nil && answer.Request.Header.Get(name) != "" {
		return answer.Request.Header.Get(name), nil
	}
	return t.format(uuid.NewString()), nil
}

// format writes a key as a header value: bare if it reads as itself, else quoted.
func (t *Transport) format(id string) string {
	bare, err := parseKey(id)
	if err == nil && bare == id && !t.Quoted {
		return id
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
}

// send sends a request until there is nothing to be gained from another attempt.
func (t *Transport) send(req *http.Request, key string) (*http.Response, error) {
	fail := func(attempts int, err error) error {
		id, _ := parseKey(key)
		return &TransportError{Key: id, Attempts: attempts, Err: err}
	}
	delays := t.delays()
	for n := 1; ; n++ {
		attempt, err := t.attempt(req, key, n)
		if err != nil {
			return nil, fail(n-1, err)
		}
		resp, err := t.base().RoundTrip(attempt)
		pause := t.pause(req, n, resp, err, delays)
		t.report(TransportEvent{Request: attempt, Attempt: n, Err: err, Pause: pause}, resp)
		if pause > 0 {
			err = rest(req.Context(), pause, resp, err)
		}
		switch {
		case err != nil:
			return nil, fail(n, err)
		case pause == 0:
			return resp, nil
		}
	}
}

// attempt returns the request as it is sent for the nth time. The first one takes the body of req.
func (t *Transport) attempt(req *http.Request, key string, n int) (*http.Request, error) {
	attempt := req.Clone(req.Context())
	attempt.Trailer = req.Trailer // its values may be set while the body is read
	if attempt.Header == nil {
		attempt.Header = make(http.Header)
	}
	if name := t.header(); attempt.Header[name] == nil {
		attempt.Header[name] = []string{key}
	}
	if n == 1 || req.GetBody == nil {
		return attempt, nil
	}
	body, err := req.GetBody()
	attempt.Body = body
	return attempt, err
}

func (t *Transport) report(e TransportEvent, resp *http.Response) {
	if t.Observer == nil {
		return
	}
	if resp != nil {
		e.Status = resp.StatusCode
	}
	t.Observer(e)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // its reader is gone; there is nobody to tell
	}
}
