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
	delete(out, h.name)
	if user, err := h.user(in); err == nil {
		out[h.name] = []string{user}
	}
}
