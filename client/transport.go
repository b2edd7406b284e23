// Package client is the client's half: it makes requests that are safe to retry, and retries them.
//
//	transport := &client.Transport{Hosts: []string{"payments.example.com"}}
//	payments := &http.Client{Transport: transport, Timeout: 5 * time.Minute}
//	resp, err := payments.Post("https://payments.example.com/payments", "application/json", body)
//
// Each of these requests has a key. It is sent again, with the same key and body, until it has a final answer. If the
// operation must survive a restart of the client, its key is stored before the first request: see [WithKey].
//
// The package works with every server that honours the header Idempotency-Key. It links nothing of the server's half.
package client

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Transport is an [http.RoundTripper] that gives every POST and PATCH request to one of Hosts a key, and retries it with the
// same key and body until it gets a final answer. It is safe for concurrent use as long as its fields are not changed.
//
// A server that ignores the header would carry out each attempt. So a request to any other host is sent once, and it
// has a key only if the caller gave one. The zero Transport sends every request once.
//
// The key is the first of these:
//
//   - the header that the caller has set, for any method; an empty header asks for no key;
//   - the key of [WithKey];
//   - after a redirect that keeps the method, the key of the request that was redirected, if Hosts has the new host;
//   - a random UUID, if Hosts has the host.
//
// Requests without a key pass untouched.
//
// A redirect leads away if it goes from https to http, or to a host that is neither in Hosts nor the one that the
// caller addressed. A request that was led away counts as such wherever further redirects go. It has no key, not even
// one that the caller has set, and is sent once. A body that was sent with a key does not follow: a redirect with
// status 307 or 308, which would take it along, ends in a [*Error] that wraps [ErrRedirected]. [http.Client]
// decides about the other fields of the header: it keeps Authorization and cookies from other domains.
//
// A request that has a key and goes to one of Hosts is retried after:
//
//   - errors of Base. There are three exceptions: the context of the request has ended, the certificate of the server
//     is not accepted, or net/http can never send such a request (scheme, host, method or header);
//   - 408, 425, 429, 500, 502, 503 and 504;
//   - 409 with Retry-After or with Stripe-Should-Retry: true. The operation is in progress, and Transport waits for its
//     end. Other conflicts are final, for instance a key that was reused.
//
// A problem (application/problem+json, RFC 9457) of at most 64 KiB whose member "retry" is "never" or "new-key" is final,
// whatever its status, if it arrives within a second. No other value makes an answer final, or has it retried: "same-key"
// may ask the caller to do something first, such as to log in. A final problem is an answer, not an error: the caller reads
// the member.
//
// Idempotent-Replayed has no influence, because any handler can set it. So a stored 503 is requested MaxAttempts times.
//
// A body without GetBody is read into memory before the first attempt, if it has at most 1 MiB. A larger one cannot be
// replayed, so its request is sent once. The same holds for a ContentLength of -1, which marks a stream.
//
// The caller gets the last answer, or a [*Error]. It gets it at once if the context's deadline would pass
// before the next attempt. Once an answer has begun, it is final: if its body breaks off, the caller may send the
// request again with the same key.
//
// The context of a request bounds all its attempts and the pauses in between. So does http.Client.Timeout, but its
// error hides how many attempts there were.
type Transport struct {
	// Hosts are the hosts that honour the header. An entry is compared with the host of the URL, without regard to
	// case: "api.example.com" stands for all ports, "api.example.com:8443" for URLs with that port in them. There are
	// no wildcards, and a domain does not include its subdomains. An entry stands for http and https.
	Hosts []string

	// Base sends the requests. Nil means [http.DefaultTransport]. A transport that authenticates or traces belongs here if
	// it is to see each attempt. Otherwise it belongs around this one. A library with retries of its own takes this one
	// instead of them. For three such libraries, see
	// https://github.com/idempotency-go/idempotency/blob/main/examples/client/recipes/recipes.go.
	//
	// The answers of Base must have their Request, as those of net/http do. If an answer that redirects has none, the
	// redirect counts as one from https and from another host.
	Base http.RoundTripper

	// Header is the name of the request header with the key. Empty means Idempotency-Key.
	Header string

	// Quoted sends keys as strings of RFC 9651, as draft-ietf-httpapi-idempotency-key-header asks. By default they are
	// sent bare, as most services expect, unless they have characters that need quotes.
	Quoted bool

	// MaxAttempts is the maximum number of attempts. Attempts that found the operation in progress do not count. With 1,
	// each request is sent once, whatever its answer. Zero means 4. The transport of net/http may send a request again by
	// itself, with the same key, if it was sent on a connection that was used before and fails.
	MaxAttempts int

	// MaxWait is how long Transport waits for an operation in progress, if the context has no deadline. It begins
	// with the first answer that says so. Zero means 5 minutes. If the context has a deadline, that counts instead.
	MaxWait time.Duration

	// MinDelay is the pause before the second attempt. Each further one is twice as long, up to MaxDelay, and all are
	// varied at random by up to half of their length. Zero means 500 milliseconds.
	MinDelay time.Duration

	// MaxDelay is the longest pause, before it is varied. Zero means 8 seconds.
	MaxDelay time.Duration

	// MaxRetryAfter limits the pause that a Retry-After asks for. A Retry-After shorter than the usual pause is
	// ignored. Zero means one minute.
	MaxRetryAfter time.Duration
}

// Error is the error of a request that has a key and got no answer. The request may have been carried out,
// unless Attempts is zero. To find out, send it again with its key.
type Error struct {
	// Key is the key of the request, to send it again with [WithKey]. It is empty if the request had no valid key.
	Key string

	// Attempts is how often the request was handed to Base. It is zero if the body could not be read, or if a redirect was
	// not followed (see [ErrRedirected]).
	Attempts int

	// Err is the error of the last attempt. If the context ended the pause after that attempt, the error of the context is
	// joined to it.
	Err error
}

// Error returns the number of attempts and the text of the last error.
func (e *Error) Error() string {
	return fmt.Sprintf("idempotency: no answer after %d attempt(s): %v", e.Attempts, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout. It is for [net/url.Error].
func (e *Error) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(e.Err, &timeout) && timeout.Timeout()
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, away := t.trace(req); away {
		return t.leave(req)
	}
	key, err := t.key(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if key == "" {
		return t.base().RoundTrip(req)
	}
	resp, attempts, err := t.send(req, key)
	if err != nil {
		return nil, &Error{Key: parseKey(key), Attempts: attempts, Err: err}
	}
	return resp, nil
}

// CloseIdleConnections closes the idle connections of Base. [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper { return cmp.Or(t.Base, http.DefaultTransport) }

func (t *Transport) header() string {
	return http.CanonicalHeaderKey(cmp.Or(t.Header, "Idempotency-Key"))
}

// named reports whether Hosts has the host of the request.
func (t *Transport) named(req *http.Request) bool {
	return req.URL != nil && slices.ContainsFunc(t.Hosts, func(host string) bool {
		return strings.EqualFold(host, req.URL.Host) || strings.EqualFold(host, req.URL.Hostname())
	})
}
