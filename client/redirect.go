package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrRedirected is the cause of a [*Error] if a redirect leads away (see [Transport]) and would take the key
// and the body along. Nothing was sent to the new address.
var ErrRedirected = errors.New("idempotency: redirected to where key and body must not go")

// leave sends a request that was led away without its key. A body that was sent with a key is for the host that honours
// it, so such a request is not sent.
func (t *Transport) leave(req *http.Request) (*http.Response, error) {
	key, keyed := t.formerKey(req)
	if !keyed || !hasBody(req) {
		return t.base().RoundTrip(t.withKey(req, ""))
	}
	closeBody(req)
	return nil, &Error{Key: parseKey(key), Err: fmt.Errorf("%w: %s://%s", ErrRedirected, req.URL.Scheme, req.URL.Host)}
}

// trace returns the request that redirects have begun with, and reports whether one of them has led away. Whoever
// answers there chooses what comes next, so no later one leads back.
func (t *Transport) trace(req *http.Request) (first *http.Request, away bool) {
	if req.Response == nil {
		return req, false
	}
	secure, from := req.URL.Scheme == "https", req.Response.Request
	if from == nil { // nobody knows where it came from
		return req, !secure || !t.named(req)
	}
	first, away = t.trace(from)
	elsewhere := !strings.EqualFold(first.URL.Host, req.URL.Host) && !t.named(req)
	return first, away || elsewhere || from.URL.Scheme == "https" && !secure
}

// formerKey returns the key that a request had before it was led away. It reports whether there was one, or may have
// been.
func (t *Transport) formerKey(req *http.Request) (key string, keyed bool) {
	if key, _, _ := t.givenKey(req); key != "" { // http.Client copies what the caller has set
		return key, true
	}
	for r := req; r.Response != nil; {
		if r = r.Response.Request; r == nil {
			return "", len(t.Hosts) > 0 && takesKey(req) // it was a random one if the host was one of Hosts
		}
		if key := r.Header.Get(t.header()); key != "" {
			return key, true
		}
	}
	return "", false
}
