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

// Key identifies an operation by three parts. Requests whose keys are equal in all three belong to one operation. The
// same ID from another user, or for another endpoint, belongs to another operation.
//
// A Key does not print its parts, because they may be personal: it formats and logs as the ID of its operation, see
// [Key.OperationID]. There are two exceptions, in which fmt does not ask the Key and shows the parts: the verbs %p and
// %w, which are not meant for a Key, and a Key in an unexported field of a struct.
//
// A part of more than 255 bytes is replaced by one of 257 bytes: its first 192 bytes, a tilde, and its SHA-256 in
// hexadecimal. If the 192 bytes would end within a UTF-8 character, that character is left out, and more tildes take
// its place. A [Store], an [Operation] and an [Event] have the Key in this form, so its parts are not always those that
// the service has named.
type Key struct {
	User     string // as the [UserFunc] names the caller
	Endpoint string // as Options.Endpoint names it: "POST /payments"
	ID       string // what the client sent
}

// A longer part of a key keeps its beginning, for people to read, and its digest, which tells it from others. It is longer
// than any part that is kept whole, so that no two different parts become the same. Text stays text: no character is cut.
const (
	maxPartSize    = 255
	keptPrefixSize = 192
)

// Bounded returns the key as a [Store] has it: with parts of at most 257 bytes. Use it to ask an [Inspector] for a key
// whose parts you have from the service or from the client. A key that a store has returned is bounded already.
func (k Key) Bounded() Key { return k.boundParts() }

// bounded returns the key with parts that have a limited length, whatever their source allows.
func (k Key) boundParts() Key {
	return Key{User: boundPart(k.User), Endpoint: boundPart(k.Endpoint), ID: boundPart(k.ID)}
}

// clone returns the key without the memory that its parts may be cut out of.
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

// Digest returns the SHA-256 of the three parts. Each is preceded by its length, so that two keys with the same text in
// different parts differ. Stores use the digest as their key: its size is fixed, and no client can choose its bytes.
func (k Key) Digest() [sha256.Size]byte {
	var space [512]byte // on the stack, and enough for all but the longest keys
	b := append(space[:0], "idempotency/key/1"...)
	for _, part := range [...]string{k.User, k.Endpoint, k.ID} {
		b = appendPart(b, part)
	}
	return sha256.Sum256(b)
}

// String returns [Key.OperationID].
func (k Key) String() string { return k.OperationID().String() }

// Format implements [fmt.Formatter]: it writes String, whatever the verb.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) }

// MarshalText keeps the parts of the key out of JSON: it returns String. The key cannot be read back from it.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue keeps the parts of the key out of structured logs: it returns String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

const maxKeyLength = maxPartSize

// keyError is [ErrKeyInvalid] with a reason that the client is told.
type keyError struct{ clientReason error }

func newKeyError(format string, args ...any) error { return &keyError{fmt.Errorf(format, args...)} }

func (e *keyError) Error() string   { return ErrKeyInvalid.Error() + ": " + e.clientReason.Error() }
func (e *keyError) Unwrap() []error { return []error{ErrKeyInvalid, e.clientReason} }

// hasKey reports whether h has a field with one of the names.
func hasKey(h http.Header, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(h[name]) > 0 })
}

// findKey returns the key in the fields of h with one of the names. If several were sent, they must have the same key.
func findKey(h http.Header, names []string) (string, error) {
	key, from := "", ""
	for _, name := range names {
		id, err := parseKeyValues(name, h[name])
		if err == ErrKeyMissing {
			continue
		}
		if err != nil {
			return "", err
		}
		if from != "" && id != key {
			return "", newKeyError("%s and %s have different keys", from, name)
		}
		key, from = id, name
	}
	if from == "" {
		return "", ErrKeyMissing
	}
	return key, nil
}

// ParseKey returns the key in the values of the header Idempotency-Key, by the rules of [Middleware]: one value, bare
// or as an RFC 9651 string, of 1 to 255 visible ASCII characters. It is for services that use a [Runner] behind another
// protocol. The error is an [*Error]. It wraps [ErrKeyMissing] if there is no value, and otherwise [ErrKeyInvalid].
func ParseKey(values []string) (string, error) {
	id, err := parseKeyValues("Idempotency-Key", values)
	if err != nil {
		return "", refusalFor(err)
	}
	return id, nil
}

// keyIn returns the key in the values of a field.
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

// parseKey returns the key in a value of the header. One key is written in either of two forms: bare, as the SDKs of
// payment providers send it, or as an RFC 9651 string, as draft-ietf-httpapi-idempotency-key-header asks.
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

// unquoteKey decodes a string of RFC 9651, section 3.3.3. The draft defines no parameters, so none are accepted.
func unquoteKey(s string) (string, error) {
	content, closed := strings.CutSuffix(s[1:], `"`)
	if !closed || strings.ContainsAny(removeEscapes.Replace(content), `"\`) {
		return "", errMalformed
	}
	return unescapeKey.Replace(content), nil
}

// checkKey reports what a key cannot have. In a bare one these are also the characters by which the two forms, or two
// header lines that a proxy has joined, could be mistaken for one another.
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

// ValidateUUID accepts only UUIDs in their usual form of 36 characters, in lower case. It is meant for Options.ValidateKey.
//
// RFC 9562, section 4, allows both cases. But keys are compared byte by byte, so a UUID in both cases would be two keys, and
// a client that changes the case between two attempts would carry out its operation twice.
func ValidateUUID(id string) error {
	if len(id) != 36 {
		return fmt.Errorf("a UUID has 36 characters, not %d", len(id))
	}
	if id != strings.ToLower(id) {
		return errors.New("a UUID must be in lower case")
	}
	return uuid.Validate(id)
}

// DefaultEndpoint is the default of Options.Endpoint: the method and the escaped path of a request, as in
// "POST /payments". The method is r.Method. The path is the one that the client asked for, before any StripPrefix. The
// host is not a part of it. To add the host, or the name of the service, set an Endpoint that puts it in front of
// DefaultEndpoint.
func DefaultEndpoint(r *http.Request) string { return r.Method + " " + requestPath(r) }

// newKey returns the key of a request, in a string of its own: its parts may be cut out of something much larger, such as
// the request line, which nobody is to keep because of them. Without a function for it, the endpoint is DefaultEndpoint,
// whose parts are joined here to save an allocation.
func newKey(r *http.Request, user, id string, endpoint func(*http.Request) string) Key {
	method, space, path := r.Method, " ", requestPath(r)
	if endpoint != nil {
		method, space, path = "", "", endpoint(r)
	}
	if max(len(user), len(method)+len(space)+len(path), len(id)) > maxPartSize {
		return Key{User: user, Endpoint: method + space + path, ID: id}.boundParts().cloneParts()
	}
	all := user + method + space + path + id // in one allocation
	end := len(all) - len(id)
	return Key{User: all[:len(user)], Endpoint: all[len(user):end], ID: all[end:]}
}

// requestPath reads the path from the request line, which StripPrefix and rewriting middleware leave alone.
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

// pathOf returns the escaped path of a URL. One like mailto:somebody has none, but what stands for it.
func escapedPath(u *url.URL) string {
	if u.Opaque != "" {
		return u.Scheme + ":" + u.Opaque
	}
	return u.EscapedPath()
}
