package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// ErrKeyInvalid is the error of a request whose key by [WithKey] no server would accept. The request was not sent.
var ErrKeyInvalid = errors.New("idempotency: key invalid: it must have 1 to 255 visible ASCII characters, without spaces")

// WithKey returns a context in which a [Transport] sends key with POST and PATCH requests that have none. Any host
// gets the key, but only requests to Transport.Hosts are retried. The key is for one operation. Store it with the
// operation before the first request; then the request can be sent again after a crash.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

type contextKey struct{}

// takesKey reports whether a request whose caller has not set the header can have a key.
func takesKey(req *http.Request) bool {
	return req.Method == http.MethodPost || req.Method == http.MethodPatch
}

// key returns the value of the header, or nothing if the request is not to have a key.
func (t *Transport) key(req *http.Request) (string, error) {
	if key, given, err := t.givenKey(req); given {
		return key, err
	}
	if !takesKey(req) || !t.named(req) {
		return "", nil
	}
	name := t.header()
	if answer := req.Response; answer != nil && answer.Request != nil && answer.Request.Header.Get(name) != "" {
		return answer.Request.Header.Get(name), nil
	}
	return formatKey(uuid.NewString(), t.Quoted)
}

// givenKey returns the value of the header if the caller has given it: the header itself, or a key by the context.
func (t *Transport) givenKey(req *http.Request) (key string, given bool, err error) {
	name := t.header()
	if _, set := req.Header[name]; set {
		return req.Header.Get(name), true, nil
	}
	id, given := req.Context().Value(contextKey{}).(string)
	if !given || !takesKey(req) {
		return "", false, nil
	}
	key, err = formatKey(id, t.Quoted)
	return key, true, err
}

// withKey returns a copy of the request. Its header has the key; without a key, it has no such field.
func (t *Transport) withKey(req *http.Request, key string) *http.Request {
	keyed := req.Clone(req.Context())
	keyed.Trailer = req.Trailer // its values may be set while the body is read
	if keyed.Header == nil {
		keyed.Header = make(http.Header)
	}
	switch name := t.header(); {
	case key == "":
		delete(keyed.Header, name)
	case keyed.Header[name] == nil:
		keyed.Header[name] = []string{key}
	}
	return keyed
}

// formatKey returns a key as a value of the header: bare, or as a string of RFC 9651 if it is to be quoted or would not
// read as itself.
func formatKey(key string, quoted bool) (string, error) {
	invisible := func(c rune) bool { return c < 0x21 || c > 0x7E }
	if key == "" || len(key) > 255 || strings.ContainsFunc(key, invisible) {
		return "", ErrKeyInvalid
	}
	if quoted || strings.ContainsAny(key, `",;\`) {
		return strconv.Quote(key), nil // which escapes visible characters as RFC 9651 does
	}
	return key, nil
}

// parseKey returns the key that is written as value, or nothing. Each of the two forms of a key is written in one way only.
func parseKey(value string) string {
	key, quoted := value, strings.HasPrefix(value, `"`)
	if quoted {
		key, _ = strconv.Unquote(value)
	}
	if written, _ := formatKey(key, quoted); written != value {
		return ""
	}
	return key
}
