package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrRedirected is wrapped by the [*Error] of a request whose redirect leads away (see [Transport]) and would take the
// key and the body along. The request was not sent to the new address.
var ErrRedirected = errors.New("idempotency: redirected to where key and body must not go")

// sendWithoutKey sends a request that was led away. A body that was sent with a key is meant for the host that honours
// the key, so sendWithoutKey fails for a request with such a body.
func (t *Transport) sendWithoutKey(req *http.Request) (*http.Response, error) {
	headerValue, mayHaveKey := t.findFormerKey(req)
	if !mayHaveKey || !hasBody(req) {
		return t.baseTransport().RoundTrip(t.cloneWithHeader(req, ""))
	}
	closeBody(req)
	return nil, &Error{
		Key: parseKey(headerValue), Err: fmt.Errorf("%w: %s://%s", ErrRedirected, req.URL.Scheme, req.URL.Host),
	}
}

// traceRedirects follows the redirects of req back to the first request, and reports whether a redirect has led away.
// After such a redirect, the foreign host chooses all further addresses, so isAway stays true even if a later redirect
// leads to one of Hosts.
func (t *Transport) traceRedirects(req *http.Request) (first *http.Request, isAway bool) {
	if req.Response == nil {
		return req, false
	}
	isSecure, from := req.URL.Scheme == "https", req.Response.Request
	if from == nil { // Base did not set Response.Request, so the former address is unknown
		return req, !isSecure || !t.isListedHost(req)
	}
	first, isAway = t.traceRedirects(from)
	isForeign := !strings.EqualFold(first.URL.Host, req.URL.Host) && !t.isListedHost(req)
	return first, isAway || isForeign || from.URL.Scheme == "https" && !isSecure
}

// findFormerKey returns the header value of the request before the redirect. If the former request is unknown, mayHaveKey
// reports that the former request may have had a random key.
func (t *Transport) findFormerKey(req *http.Request) (headerValue string, mayHaveKey bool) {
	if value, _, _ := t.callerHeaderValue(req); value != "" { // http.Client copies headers of the caller to each redirect
		return value, true
	}
	for r := req; r.Response != nil; {
		if r = r.Response.Request; r == nil {
			return "", len(t.Hosts) > 0 && methodTakesKey(req) // the unknown host may have been one of Hosts
		}
		if value := r.Header.Get(t.headerName()); value != "" {
			return value, true
		}
	}
	return "", false
}
