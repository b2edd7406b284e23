// Package client makes requests that are safe to retry, and retries them:
//
//	transport := &client.Transport{Hosts: []string{"payments.example.com"}}
//	payments := &http.Client{Transport: transport, Timeout: 5 * time.Minute}
//	resp, err := payments.Post("https://payments.example.com/payments", "application/json", body)
//
// The transport gives each POST and PATCH request a key, and sends the request again, with the same key and body, until
// the server returns a final answer. If the operation must survive a restart of the client, store the key before the
// first request, and send the stored key with [WithKey].
//
// The package works with every server that honours the header Idempotency-Key, and imports no package for servers.
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

// Transport is an [http.RoundTripper] that gives every POST and PATCH request to one of Hosts a key, and retries the
// request with the same key and body until the server returns a final answer. A Transport is safe for concurrent use as
// long as its fields are not changed.
//
// A server that ignores the header would execute each attempt. For that reason, Transport sends a request to any other
// host once, and without a key unless the caller has given one. The zero Transport sends every request once.
//
// The key is the first of:
//
//   - the header that the caller has set, for any method; an empty header asks for no key;
//   - the key of [WithKey];
//   - after a redirect that keeps the method, the key of the redirected request, if Hosts has the new host;
//   - a random UUID, if Hosts has the host.
//
// Transport passes requests without a key to Base unchanged.
//
// # Redirects
//
// A redirect leads away if it goes from https to http, or to a host that is neither in Hosts nor the host that the caller
// has addressed. From such a redirect on, wherever further redirects lead, Transport sends the request once and without a
// key, even if the caller has set the key. A body that was sent with a key does not follow: a redirect with status 307 or
// 308, which would take the body along, ends in a [*Error] that wraps [ErrRedirected]. [http.Client] decides about all
// other header fields: it withholds Authorization and cookies from other domains.
//
// # Retries
//
// Transport retries a request with a key to one of Hosts after:
//
//   - an error of Base, unless the context of the request has ended, the certificate of the server is not accepted, or
//     net/http can never send such a request (because of its scheme, host, method or header);
//   - 408, 425, 429, 500, 502, 503 and 504;
//   - 409 with Retry-After or with Stripe-Should-Retry: true, because the operation is in progress and Transport waits
//     for its end. Other conflicts are final, for example a reused key.
//
// A problem (application/problem+json, RFC 9457) whose member "retry" is "never" or "new-key" is final, whatever its
// status, provided that it has at most 64 KiB and arrives within a second. Transport ignores all other values of the
// member. "same-key" in particular asks for no retry, because the caller may have to do something first, such as to log
// in. A final problem is an answer, not an error, so the caller can read the member.
//
// Transport ignores Idempotent-Replayed, because any handler can set that header. A stored 503 is therefore requested
// MaxAttempts times.
//
// Transport reads a body without GetBody into memory before the first attempt. A body of more than 1 MiB, or with a
// ContentLength of -1 (a stream), is not read, so the request is sent once.
//
// The caller gets the last answer or a [*Error], without a further pause if the deadline of the context would pass before
// the next attempt. Once an answer has begun, it is final: if its body breaks off, the caller may send the request again
// with the same key.
//
// The context of a request bounds all attempts and the pauses between them. http.Client.Timeout has the same effect, but
// its error hides the number of attempts.
type Transport struct {
	// Hosts are the hosts that honour the header. Transport compares each entry with the host of the URL, ignoring case:
	// "api.example.com" matches all ports, "api.example.com:8443" only URLs with that port. An entry matches http and
	// https. There are no wildcards, and a domain does not include its subdomains.
	Hosts []string

	// Base sends each attempt. Nil means [http.DefaultTransport]. Put a transport that authenticates or traces into Base
	// if it must see each attempt, and around Transport otherwise. In a library with retries of its own, replace these
	// retries by a Transport. For three such libraries, see
	// https://github.com/idempotency-go/idempotency/blob/main/examples/client/recipes/recipes.go.
	//
	// Base must set Request in its answers, as net/http does. If a redirecting answer lacks Request, Transport treats the
	// redirect as a redirect from https and from another host.
	Base http.RoundTripper

	// Header is the name of the request header with the key. Empty means Idempotency-Key.
	Header string

	// Quoted sends keys as strings of RFC 9651, as draft-ietf-httpapi-idempotency-key-header asks. By default, Transport
	// sends keys bare, as most services expect, except keys with characters that need quotes.
	Quoted bool

	// MaxAttempts is the maximum number of attempts. An attempt that finds the operation in progress does not count. With
	// 1, Transport sends each request once, whatever the answer. Zero means 4. The transport of net/http may send a
	// request again by itself, with the same key, if a reused connection fails.
	MaxAttempts int

	// MaxWait is how long Transport waits for an operation in progress, from the first answer that reports the progress.
	// MaxWait applies only to contexts without a deadline. Zero means 5 minutes.
	MaxWait time.Duration

	// MinDelay is the pause before the second attempt. The pause doubles with each attempt up to MaxDelay, and varies at
	// random by up to half of its length. Zero means 500 milliseconds.
	MinDelay time.Duration

	// MaxDelay is the longest pause, before the random variation. Zero means 8 seconds.
	MaxDelay time.Duration

	// MaxRetryAfter bounds the pause that a Retry-After asks for. Transport ignores a Retry-After that is shorter than
	// the usual pause, except while the operation is in progress. Zero means one minute.
	MaxRetryAfter time.Duration
}

// Error is returned for a request with a key that got no answer. The server may have executed the request unless Attempts
// is zero. To find out, send the request again with the same key.
type Error struct {
	// Key is the key of the request, to send the request again with [WithKey]. Key is empty if the request had no valid
	// key.
	Key string

	// Attempts is how often Transport has passed the request to Base. Attempts is zero if the body could not be read, or
	// if a redirect was not followed (see [ErrRedirected]).
	Attempts int

	// Err is the error of the last attempt. If the context has ended, Err also wraps the cause of the context.
	Err error
}

// Error returns the number of attempts and the text of the last error.
func (e *Error) Error() string {
	return fmt.Sprintf("idempotency: no answer after %d attempt(s): %v", e.Attempts, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout. [net/url.Error] calls Timeout.
func (e *Error) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(e.Err, &timeout) && timeout.Timeout()
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, isAway := t.traceRedirects(req); isAway {
		return t.sendWithoutKey(req)
	}
	headerValue, err := t.chooseHeaderValue(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if headerValue == "" {
		return t.baseTransport().RoundTrip(req)
	}
	resp, attempts, err := t.sendWithRetries(req, headerValue)
	if err != nil {
		return nil, &Error{Key: parseKey(headerValue), Attempts: attempts, Err: err}
	}
	return resp, nil
}

// CloseIdleConnections closes the idle connections of Base. [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.baseTransport().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) baseTransport() http.RoundTripper { return cmp.Or(t.Base, http.DefaultTransport) }

func (t *Transport) headerName() string {
	return http.CanonicalHeaderKey(cmp.Or(t.Header, "Idempotency-Key"))
}

// isListedHost reports whether Hosts has the host of req.
func (t *Transport) isListedHost(req *http.Request) bool {
	return req.URL != nil && slices.ContainsFunc(t.Hosts, func(host string) bool {
		return strings.EqualFold(host, req.URL.Host) || strings.EqualFold(host, req.URL.Hostname())
	})
}
