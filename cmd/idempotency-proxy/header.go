package main

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// overrideFields replace the method of a request. Many frameworks obey these fields in a POST, and some frameworks obey the fields
// in requests with any method.
var overrideFields = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// forwardedFields describe the client to the service. A proxy in front may set these fields.
var forwardedFields = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// keyFieldNames returns the names of the fields with the key, and of the fields that net/http recognizes as a key.
func (c *config) keyFieldNames() []string {
	return canonicalNames(append([]string{"Idempotency-Key", "X-Idempotency-Key"}, c.keyHeaders...)...)
}

// ownFields returns the names of the fields that the proxy itself reads. Connection removes none of these fields, because a field of
// the hop is meant for the proxy.
func (c *config) ownFields() []string {
	return canonicalNames(slices.Concat(c.keyFieldNames(), forwardedFields, []string{c.userHeader, "Te"})...)
}

// distinctFields returns the names of all fields that the proxy compares, reads or sets.
func (c *config) distinctFields() []string {
	return canonicalNames(slices.Concat(c.ownFields(), c.fingerprintHeaders, overrideFields, []string{
		"Content-Encoding", "Content-Length", "Content-Type", "Transfer-Encoding", operationHeader, attemptHeader,
	})...)
}

// canonicalNames returns names in the canonical form of net/http, sorted and without duplicates.
func canonicalNames(names ...string) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		all = append(all, textproto.CanonicalMIMEHeaderKey(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compareAsForwarded removes the fields that the service does not get from each request, before next compares the request with the
// first request of the key. Otherwise, next could treat two requests as the same although the requests differ for the service.
func (c *config) compareAsForwarded(next http.Handler) http.Handler {
	own, distinct := c.ownFields(), c.distinctFields()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] == nil { // ReverseProxy needs Connection to open a WebSocket
			removeHopFields(r.Header, own)
		}
		removeLookAlikes(r.Header, distinct)
		if media := r.Header["Content-Type"]; len(media) > 1 {
			r.Header["Content-Type"] = media[:1] // the guard compares only the first line, but a service may read any line
		}
		next.ServeHTTP(w, r)
	})
}

// removeHopFields removes Connection and the fields that Connection names (RFC 9110, section 7.6.1), except for own.
func removeHopFields(header http.Header, own []string) {
	for _, line := range header["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			name := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(option))
			if !slices.Contains(own, name) {
				delete(header, name)
			}
		}
	}
	delete(header, "Connection")
}

// removeLookAlikes removes all fields that some servers confuse with a field of names. For example, CGI, WSGI, Rack and PHP read
// X_User as X-User, and some servers also read X.User or X~User as X-User.
func removeLookAlikes(header http.Header, names []string) {
	for field := range header {
		isLike := func(name string) bool { return areAlike(field, name) }
		if !slices.Contains(names, field) && slices.ContainsFunc(names, isLike) {
			delete(header, field)
		}
	}
}

// areAlike reports whether a and b differ only in the case of letters, and in characters that are neither letters nor digits.
func areAlike(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if toCGI(a[i]) != toCGI(b[i]) {
			return false
		}
	}
	return true
}

// toCGI folds c as servers do that follow RFC 3875, section 4.1.18, or go beyond it.
func toCGI(c byte) byte {
	switch {
	case '0' <= c && c <= '9', 'A' <= c && c <= 'Z':
		return c
	case 'a' <= c && c <= 'z':
		return c - 'a' + 'A'
	default:
		return '_'
	}
}

// refuseHiddenMethods refuses a request that next would guard if the request had the method in an override field. A service that
// obeys the field would execute the request unguarded.
func (c *config) refuseHiddenMethods(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(c.methods, r.Method) || !c.wantsGuard(r) || !c.hidesMethod(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		idempotency.WriteProblem(w, r, &idempotency.Error{
			Status: http.StatusBadRequest,
			Title:  "Method is overridden",
			Detail: "This request was not executed. Its header names another method, which needs protection by an idempotency " +
				"key. Send the request with that method.",
			Retry: idempotency.RetryNever,
		})
	})
}

// hidesMethod reports whether an override field names a guarded method.
func (c *config) hidesMethod(header http.Header) bool {
	for _, field := range overrideFields {
		for value := range strings.SplitSeq(strings.Join(header[field], ","), ",") {
			if slices.Contains(c.methods, strings.ToUpper(textproto.TrimString(value))) {
				return true
			}
		}
	}
	return false
}
