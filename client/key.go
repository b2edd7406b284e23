package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// ErrKeyInvalid is returned for a request whose key of [WithKey] is invalid, so that every server would refuse the key. The
// request was not sent.
var ErrKeyInvalid = errors.New("idempotency: key invalid: it must have 1 to 255 visible ASCII characters, without spaces")

// WithKey returns a context in which a [Transport] sends key with POST and PATCH requests, unless the caller has set the
// header. The Transport sends key to any host, but retries only requests to Transport.Hosts. Use a key for one operation.
// Store the key with the operation before the first request, so that a restarted client can send the request again.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

type contextKey struct{}

// methodTakesKey reports whether requests of the method of req have a key even if the caller has not set the header.
func methodTakesKey(req *http.Request) bool {
	return req.Method == http.MethodPost || req.Method == http.MethodPatch
}

// chooseHeaderValue returns the value of the header for req. An empty value means that req is sent without a key.
func (t *Transport) chooseHeaderValue(req *http.Request) (string, error) {
	if value, isGiven, err := t.callerHeaderValue(req); isGiven {
		return value, err
	}
	if !methodTakesKey(req) || !t.isListedHost(req) {
		return "", nil
	}
	name := t.headerName()
	if redirect := req.Response; redirect != nil && redirect.Request != nil && redirect.Request.Header.Get(name) != "" {
		return redirect.Request.Header.Get(name), nil
	}
	return formatKey(uuid.NewString(), t.Quoted)
}

// callerHeaderValue returns the value of the header that the caller has given, in the header itself or with WithKey.
func (t *Transport) callerHeaderValue(req *http.Request) (value string, isGiven bool, err error) {
	name := t.headerName()
	if _, isSet := req.Header[name]; isSet {
		return req.Header.Get(name), true, nil
	}
	key, isGiven := req.Context().Value(contextKey{}).(string)
	if !isGiven || !methodTakesKey(req) {
		return "", false, nil
	}
	value, err = formatKey(key, t.Quoted)
	return value, true, err
}

// cloneWithHeader returns a copy of req with headerValue in the header. If headerValue is empty, the copy has no such
// header field.
func (t *Transport) cloneWithHeader(req *http.Request, headerValue string) *http.Request {
	clone := req.Clone(req.Context())
	clone.Trailer = req.Trailer // shared, because the caller may set values while net/http reads the body
	if clone.Header == nil {
		clone.Header = make(http.Header)
	}
	switch name := t.headerName(); {
	case headerValue == "":
		delete(clone.Header, name)
	case clone.Header[name] == nil:
		clone.Header[name] = []string{headerValue}
	}
	return clone
}

// formatKey returns key as a value of the header. The value is the bare key, or a string of RFC 9651 if isQuoted is set
// or if key has characters with a meaning in header fields.
func formatKey(key string, isQuoted bool) (string, error) {
	isInvisible := func(c rune) bool { return c < 0x21 || c > 0x7E }
	if key == "" || len(key) > 255 || strings.ContainsFunc(key, isInvisible) {
		return "", ErrKeyInvalid
	}
	if isQuoted || strings.ContainsAny(key, `",;\`) {
		return strconv.Quote(key), nil // for visible ASCII, Quote escapes as RFC 9651 does
	}
	return key, nil
}

// parseKey is the inverse of formatKey. For a value that formatKey cannot have written, parseKey returns the empty string.
func parseKey(headerValue string) string {
	key, isQuoted := headerValue, strings.HasPrefix(headerValue, `"`)
	if isQuoted {
		key, _ = strconv.Unquote(headerValue)
	}
	if formatted, _ := formatKey(key, isQuoted); formatted != headerValue {
		return ""
	}
	return key
}
