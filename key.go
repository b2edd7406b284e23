package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Key identifies an operation by three parts. Requests with three equal parts belong to one operation. A request from
// another user, or for another endpoint, belongs to another operation even if its ID is the same.
//
// The parts of a Key may be personal, so a Key formats and logs as the ID of its operation (see [Key.OperationID])
// instead of its parts. In two cases, package fmt shows the parts without asking the Key: the verbs %p and %w, which
// are not meant for a Key, and a Key in an unexported field of a struct.
//
// A part of more than 255 bytes is replaced by a part of 257 bytes: the first 192 bytes, a tilde, and the SHA-256 of
// the part in hexadecimal. If byte 192 is in the middle of a UTF-8 character, tildes replace the bytes of this
// character. A [Store], an [Operation] and an [Event] have the Key in this form, so a part may differ from the part
// that the service has returned.
type Key struct {
	User     string // the caller, as returned by the [UserFunc]
	Endpoint string // the endpoint, as returned by Options.Endpoint: "POST /payments"
	ID       string // the key that the client sent
}

// A part of more than maxPartSize bytes keeps its beginning, which people can read, and gets its digest, which
// distinguishes the part from other parts. The result is longer than maxPartSize, so it cannot equal a part that was
// kept whole.
const (
	maxPartSize    = 255
	keptPrefixSize = 192 // enough to recognise a part
)

// Bounded returns the key in the form in which a [Store] has the key: with parts of at most 257 bytes. Use Bounded to
// ask an [Inspector] for a key whose parts come from the service or from the client. A key that a store has returned
// is bounded already.
func (k Key) Bounded() Key {
	return Key{User: boundPart(k.User), Endpoint: boundPart(k.Endpoint), ID: boundPart(k.ID)}
}

// cloneParts returns the key with copies of its parts. The parts may be substrings of a larger string, which can then
// be garbage-collected, or strings of fiber, whose memory another request uses later.
func (k Key) cloneParts() Key {
	return Key{User: strings.Clone(k.User), Endpoint: strings.Clone(k.Endpoint), ID: strings.Clone(k.ID)}
}

func boundPart(s string) string {
	if len(s) <= maxPartSize {
		return s
	}
	end := keptPrefixSize
	for end > keptPrefixSize-utf8.UTFMax+1 && !utf8.RuneStart(s[end]) {
		end--
	}
	digest := sha256.Sum256([]byte(s))
	return s[:end] + strings.Repeat("~", keptPrefixSize+1-end) + hex.EncodeToString(digest[:])
}

// OperationID returns the ID of the operation with this key, see [Operation]. The stores of this library name the
// record by this ID, and logs, spans, events and refusals contain the ID, so each of them leads to the record.
//
// The ID is a UUID of version 8 (RFC 9562, section 5.8). Its other 122 bits are the first bits of a SHA-256 of the
// three parts. The length of each part precedes the part, so keys with the same text in different parts have different
// IDs. Content of the request, time, chance, store and settings have no influence on the ID.
//
// 122 bits are enough because the user is a part of the key. A client that wants a key with the ID of another user's
// operation (a second preimage) must try about 2^122 keys. A client that wants two keys of its own with the same ID (a
// collision) must try about 2^61 keys, and then confuses only its own operations.
//
// A key that is used again after its TTL has the same ID. An effect stored under the ID is found again: compare the
// stored [Operation].Fingerprint before returning the effect. The ID is no secret, because user, endpoint and key are
// enough to compute the ID.
func (k Key) OperationID() uuid.UUID {
	var space [512]byte // on the stack, and enough for all but the longest keys
	b := append(space[:0], "idempotency/operation/1"...)
	for _, part := range [...]string{k.User, k.Endpoint, k.ID} {
		b = appendPart(b, part)
	}
	sum := sha256.Sum256(b)
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id
}

// digestUser returns the first 128 bits of a SHA-256 of the user. The tag keeps the digest apart from other digests of
// the same text.
func digestUser(user string) [16]byte {
	var space [512]byte // as in OperationID
	sum := sha256.Sum256(append(append(space[:0], "idempotency/user/1"...), user...))
	return [16]byte(sum[:16])
}

// String returns [Key.OperationID].
func (k Key) String() string { return k.OperationID().String() }

// Format implements [fmt.Formatter], and writes String for every verb.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) }

// MarshalText returns String, so that JSON does not contain the parts of the key. A Key cannot be unmarshalled.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue returns String, so that structured logs do not contain the parts of the key.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

const maxKeyLength = maxPartSize

// keyError is [ErrKeyInvalid] with a reason for the client.
type keyError struct{ clientReason error }

func newKeyError(format string, args ...any) error { return &keyError{fmt.Errorf(format, args...)} }

func (e *keyError) Error() string   { return ErrKeyInvalid.Error() + ": " + e.clientReason.Error() }
func (e *keyError) Unwrap() []error { return []error{ErrKeyInvalid, e.clientReason} }

// hasKey reports whether h has a field with one of the names.
func hasKey(h http.Header, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(h[name]) > 0 })
}

// findKey returns the key in the fields of h with one of the names. All fields that the client has sent must have the
// same key.
func findKey(h http.Header, names []string) (string, error) {
	key, keyField := "", ""
	for _, name := range names {
		id, err := parseKeyValues(name, h[name])
		if err == ErrKeyMissing {
			continue
		}
		if err != nil {
			return "", err
		}
		if keyField != "" && id != key {
			return "", newKeyError("%s and %s have different keys", keyField, name)
		}
		key, keyField = id, name
	}
	if keyField == "" {
		return "", ErrKeyMissing
	}
	return key, nil
}

// ParseKey returns the key in the values of the header Idempotency-Key, by the rules of [Middleware]: exactly one
// value, bare or as an RFC 9651 string, with 1 to 255 visible ASCII characters. Use ParseKey with a [Runner] behind a
// protocol other than HTTP. The error is an [*Error]. It wraps [ErrKeyMissing] if values is empty, and
// [ErrKeyInvalid] otherwise.
func ParseKey(values []string) (string, error) {
	id, err := parseKeyValues("Idempotency-Key", values)
	if err != nil {
		return "", refusalFor(err)
	}
	return id, nil
}

// parseKeyValues returns the key in the values of the field with the given name.
func parseKeyValues(name string, values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrKeyMissing
	case 1:
		return parseKeyValue(values[0])
	default:
		return "", newKeyError("%s was sent %d times", name, len(values))
	}
}

// parseKeyValue returns the key in a field value. A client may write the same key in two forms: bare, as the SDKs of
// payment providers do, or as an RFC 9651 string, as draft-ietf-httpapi-idempotency-key-header requires.
func parseKeyValue(value string) (id string, err error) {
	id, quoted := value, strings.HasPrefix(value, `"`)
	if quoted {
		if id, err = unquoteKey(value); err != nil {
			return "", err
		}
	}
	if err := checkKey(id, quoted); err != nil {
		return "", err
	}
	return id, nil
}

var (
	errMalformed  = newKeyError("a key that begins with a double quote must be a well-formed RFC 9651 string, without parameters")
	unescapeKey   = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
	removeEscapes = strings.NewReplacer(`\\`, "", `\"`, "")
)

// unquoteKey decodes a string of RFC 9651, section 3.3.3. The draft defines no parameters, so unquoteKey accepts
// none.
func unquoteKey(s string) (string, error) {
	content, closed := strings.CutSuffix(s[1:], `"`)
	if !closed || strings.ContainsAny(removeEscapes.Replace(content), `"\`) {
		return "", errMalformed
	}
	return unescapeKey.Replace(content), nil
}

// checkKey refuses keys with invalid characters or lengths. A bare key must not have the characters `",;\`, because a
// bare key could then be confused with a quoted key, or with two header lines that a proxy has joined.
func checkKey(id string, quoted bool) error {
	switch {
	case id == "":
		return newKeyError("the key is empty")
	case len(id) > maxKeyLength:
		return newKeyError("the key is longer than %d characters", maxKeyLength)
	case strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7E }):
		return newKeyError("a key must not contain spaces, control characters or characters outside of ASCII")
	case !quoted && strings.ContainsAny(id, `",;\`):
		return newKeyError("a key with a comma, semicolon, backslash or double quote must be sent in quotes, as an RFC 9651 string")
	}
	return nil
}

// ValidateUUID accepts only UUIDs in the usual form of 36 characters, in lower case. Use ValidateUUID as
// Options.ValidateKey.
//
// RFC 9562, section 4, allows both cases. Keys are compared byte by byte, so a client that changed the case between
// two attempts would send two keys and execute its operation twice.
func ValidateUUID(id string) error {
	if len(id) != 36 {
		return fmt.Errorf("a UUID has 36 characters, not %d", len(id))
	}
	if id != strings.ToLower(id) {
		return errors.New("a UUID must be in lower case")
	}
	return uuid.Validate(id)
}

// DefaultEndpoint is the default of Options.Endpoint. It returns the method and the escaped path of a request, such
// as "POST /payments". The method is r.Method. The path is the path that the client has sent, before any StripPrefix.
// The host is not included. To include the host, or the name of the service, set an Endpoint that returns it in front
// of DefaultEndpoint.
func DefaultEndpoint(r *http.Request) string { return r.Method + " " + requestPath(r) }

// newKey returns the key of a request. The parts are substrings of one new string, because the arguments may be
// substrings of larger strings such as the request line, which would stay in memory as long as the key. If endpoint
// is nil, newKey uses the parts of DefaultEndpoint and joins them here, which saves an allocation.
func newKey(r *http.Request, user, id string, endpoint func(*http.Request) string) Key {
	method, space, path := r.Method, " ", requestPath(r)
	if endpoint != nil {
		method, space, path = "", "", endpoint(r)
	}
	if max(len(user), len(method)+len(space)+len(path), len(id)) > maxPartSize {
		return Key{User: user, Endpoint: method + space + path, ID: id}.Bounded().cloneParts()
	}
	all := user + method + space + path + id // in one allocation
	end := len(all) - len(id)
	return Key{User: all[:len(user)], Endpoint: all[len(user):end], ID: all[end:]}
}

// requestPath returns the path in the request line, because StripPrefix and rewriting middleware change r.URL only.
func requestPath(r *http.Request) string {
	if strings.HasPrefix(r.RequestURI, "/") {
		path, _, _ := strings.Cut(r.RequestURI, "?")
		return path
	}
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil { // the absolute form, as proxies send it
		return escapedPath(u)
	}
	return escapedPath(r.URL)
}

// escapedPath returns the escaped path of a URL. For a URL without a path, such as mailto:user@host, the result is
// scheme and opaque part.
func escapedPath(u *url.URL) string {
	if u.Opaque != "" {
		return u.Scheme + ":" + u.Opaque
	}
	return u.EscapedPath()
}
