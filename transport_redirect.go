package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrRedirected is the cause of a [*TransportError] if a server answered a request that has a key and a body with a
// redirect that keeps both, but leads away: to another host that is not in Transport.Hosts, or from https to http on
// any host. Nothing was sent there.
var ErrRedirected = errors.New("idempotency: redirected to where key and body must not go")

// leave follows a redirect that leads away. The key stays behind. A body that was sent with a key is for the host that
// honours it, so it stays behind too, and with it the request.
func (t *Transport) leave(req *http.Request) (*http.Response, error) {
	key, keyed := t.formerKey(req)
	if !keyed || !hasBody(req) {
		return t.base().RoundTrip(t.withKey(req, ""))
	}
	closeBody(req)
	id, _ := parseKey(key)
	return nil, &TransportError{Key: id, Err: fmt.Errorf("%w: %s://%s", ErrRedirected, req.URL.Scheme, req.URL.Host)}
}

// ledAway reports whether redirects have led the request out of https, or away from the host that the caller addressed
// to one that is not one of Hosts.
func (t *Transport) ledAway(req *http.Request) bool {
	first, secure := req, false
	for first.Response != nil {
		if first = first.Response.Request; first == nil { // nobody knows where it came from
			return req.URL.Scheme != "https" || !t.named(req)
		}
		secure = secure || first.URL.Scheme == "https"
	}
	if secure && req.URL.Scheme != "https" {
		return true
	}
	return first != req && !strings.EqualFold(first.URL.Host, req.URL.Host) && !t.named(req)
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
