package main

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// user returns how the caller of a request is named.
func (c *config) user() (idempotency.UserFunc, func(), error) {
	switch {
	case c.oneUser:
		return idempotency.SingleUser, func() {}, nil
	case c.userHeader != "":
		return c.header().user, func() {}, nil
	default:
		return c.jwt.open()
	}
}

// header returns the header that names the user, if there is one.
func (c *config) header() *trustedHeader {
	if c.userHeader == "" {
		return nil
	}
	return &trustedHeader{name: textproto.CanonicalMIMEHeaderKey(c.userHeader), peers: c.trusted}
}

// trustedHeader is a request header that names the user because an authenticating proxy sets it. That proxy is known by
// its address, and takes the header from what clients send.
type trustedHeader struct {
	name  string
	peers prefixes
}

// user is a UserFunc. A second value, or several in one, may be a client's beside that of the proxy in front.
func (h *trustedHeader) user(r *http.Request) (string, error) {
	values := r.Header[h.name]
	switch {
	case !h.peers.contain(r.RemoteAddr):
		return "", errors.New("the peer is not one of -trusted-peers")
	case len(values) != 1:
		return "", errors.New("the header does not have one value")
	case values[0] == "":
		return "", errors.New("the header is empty")
	case strings.ContainsFunc(values[0], func(c rune) bool { return c <= ' ' || c == ',' || c == 0x7f }):
		return "", errors.New("the header has a space, a comma or a control character")
	}
	return values[0], nil
}

// forward gives the upstream the header as it was verified: that of a proxy in front, even if the client names it in
// Connection to have it removed, and no other.
func (h *trustedHeader) forward(in *http.Request, out http.Header) {
	if h == nil {
		return
	}
	removeLike(out, h.name)
	if user, err := h.user(in); err == nil {
		out[h.name] = []string{user}
	}
}

// removeLike removes a field, and those that servers take for it: in CGI, WSGI, Rack and PHP, X_User is X-User, and in
// some of them X.User or X~User, too.
func removeLike(header http.Header, name string) {
	for other := range header {
		if alike(other, name) {
			delete(header, other)
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
