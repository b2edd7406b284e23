package main

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// overrideFields name the method that a request stands for. Many frameworks read these fields from a POST, and some read
// them from a request of any method.
var overrideFields = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// forwardedFields tell the service of the client. A proxy in front may set them.
var forwardedFields = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// keyFields returns the names of the fields with the key, and of those that net/http takes for one.
func (c *config) keyFields() []string {
	return canonical(append([]string{"Idempotency-Key", "X-Idempotency-Key"}, c.keyHeaders...)...)
}

// ownFields returns the names of the fields that the proxy reads as its own. A field of the hop may be meant for the proxy,
// so Connection removes none of them.
func (c *config) ownFields() []string {
	return canonical(slices.Concat(c.keyFields(), forwardedFields, []string{c.userHeader, "Te"})...)
}

// distinctFields returns the names of all fields that the proxy compares, reads or sets.
func (c *config) distinctFields() []string {
	return canonical(slices.Concat(c.ownFields(), c.fingerprintHeaders, overrideFields, []string{
		"Content-Encoding", "Content-Length", "Content-Type", "Transfer-Encoding", operationHeader, attemptHeader,
	})...)
}

// canonical returns names in the form in which net/http keeps them, sorted, each once.
func canonical(names ...string) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		all = append(all, textproto.CanonicalMIMEHeaderKey(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compareAsForwarded removes from each request what the service does not get, before next compares the request with the
// first one of its key. Otherwise next could take two requests for the same although they differ for the service.
func (c *config) compareAsForwarded(next http.Handler) http.Handler {
	own, distinct := c.ownFields(), c.distinctFields()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header["Upgrade"] == nil { // else it opens a WebSocket, for which ReverseProxy reads Connection
			removeHopFields(r.Header, own)
		}
		removeLookAlikes(r.Header, distinct)
		if media := r.Header["Content-Type"]; len(media) > 1 {
			r.Header["Content-Type"] = media[:1] // the guard compares the first line, and a service may read another one
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

// removeLookAlikes removes the fields that some servers take for one of names. For example, CGI, WSGI, Rack and PHP take
// X_User for X-User, and some of them take X.User or X~User for it, too.
func removeLookAlikes(header http.Header, names []string) {
	for field := range header {
		isLike := func(name string) bool { return alike(field, name) }
		if !slices.Contains(names, field) && slices.ContainsFunc(names, isLike) {
			delete(header, field)
		}
	}
}

// alike reports whether two names differ in nothing but the case of their letters and what is no letter or digit.
func alike(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if inCGI(a[i]) != inCGI(b[i]) {
			return false
		}
	}
	return true
}

// inCGI returns what becomes of a byte of a name in the variable of CGI (RFC 3875, section 4.1.18).
func inCGI(c byte) byte {
	switch {
	case '0' <= c && c <= '9', 'A' <= c && c <= 'Z':
		return c
	case 'a' <= c && c <= 'z':
		return c - 'a' + 'A'
	default:
		return '_'
	}
}

// refuseHiddenMethods refuses a request that next would guard if it had the method that an override field names. A service
// that obeys the field would carry the request out unguarded.
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
