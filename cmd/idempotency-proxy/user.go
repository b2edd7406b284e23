package main

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// newUserFunc returns the UserFunc for the settings, and a function that ends its work in the background.
func (c *config) newUserFunc() (idempotency.UserFunc, func(), error) {
	switch {
	case c.isSingleUser:
		return idempotency.SingleUser, func() {}, nil
	case c.userHeader != "":
		return c.newTrustedHeader().userFromHeader, func() {}, nil
	default:
		return c.jwt.openVerifier()
	}
}

// newTrustedHeader returns the header with the user, or nil without -user-header.
func (c *config) newTrustedHeader() *trustedHeader {
	if c.userHeader == "" {
		return nil
	}
	return &trustedHeader{fieldName: textproto.CanonicalMIMEHeaderKey(c.userHeader), trustedPeers: c.trustedPeers}
}

// trustedHeader is a request header with the user that an authenticating proxy in front sets. The address of the proxy is in
// trustedPeers, and the proxy removes the header from the requests of clients.
type trustedHeader struct {
	fieldName    string
	trustedPeers networkList
}

// userFromHeader is a UserFunc. userFromHeader rejects several values, because a client may have added a value to the value by the proxy in front.
func (h *trustedHeader) userFromHeader(r *http.Request) (string, error) {
	values := r.Header[h.fieldName]
	switch {
	case !h.trustedPeers.containsPeer(r.RemoteAddr):
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

// forwardUser sets the header for the service to the verified user, even if the client has named the header in Connection to have the
// header removed. forwardUser removes the header if the user is unknown.
func (h *trustedHeader) forwardUser(in *http.Request, out http.Header) {
	if h == nil {
		return
	}
	delete(out, h.fieldName)
	if user, err := h.userFromHeader(in); err == nil {
		out[h.fieldName] = []string{user}
	}
}
