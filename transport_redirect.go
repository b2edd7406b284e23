package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrRedirected is the cause of a [*TransportError] if a server answered a request that has a key and a body with a
// redirect that keeps both, to another host that is not in Transport.Hosts. That host was sent nothing.
var ErrRedirected = errors.New("idempotency: redirected to a host that is not in Transport.Hosts")

// leave follows a redirect to another host that is not one of Hosts. The key stays behind. A body that was sent with a
// key is for the host that honours it, so it stays behind too, and with it the request.
func (t *Transport) leave(req *http.Request) (*http.Response, error) {
	key, keyed := t.formerKey(req)
	if !keyed || !hasBody(req) {
		return t.base().RoundTrip(t.withKey(req, ""))
	}
	closeBody(req)
	id, _ := parseKey(key)
	return nil, &TransportError{Key: id, Err: fmt.Errorf("%w: %s", ErrRedirected, req.URL.Host)}
}

// crossHostRedirect reports whether redirects have led the request away from the host that the caller addressed.
func crossHostRedirect(req *http.Request) bool {
	first := req
	for first.Response != nil {
		if first = first.Response.Request; first == nil {
			return true // nobody knows where it came from
		}
	}
	return first != req && !strings.EqualFold(first.URL.Host, req.URL.Host)
}

// formerKey returns the key that a request had before it was redirected to a host that is not one of Hosts. It reports
// whether there was one, or may have been.
func (t *Transport) formerKey(req *http.Request) (key string, keyed bool) {
	if key, _ := t.key(req); key != "" { // the caller's, which http.Client copies, or that of the context
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
