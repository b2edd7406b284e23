package keyfrom

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

// JSON returns the members at pointers of JSON bodies as a Source: bodies of the media type application/json, or of a type
// that ends in +json. A pointer has the syntax of RFC 6901, for example "/idempotency_key" or "/meta/key". Numbers are names
// of members.
//
// Give several pointers if clients spell the name in several ways: a service behind grpc-gateway accepts "/request_id" and
// "/requestId". If a body has several of the members, all of them must have the same key.
//
// The value must be a string. A missing member and null mean that the body has no key, and an empty string is an invalid
// key. Bodies are read as by [fingerprint.JSON], whose errors refuse the request with body-invalid. By default, bodies are
// also compared in that way, without the members at pointers.
//
// Faults of pointers, which New reports, are those of [fingerprint.JSONWithout], a token "*", and two pointers that differ
// in case only.
func JSON(pointers ...string) Source {
	compareRest, faults := fingerprint.JSONWithout(pointers...)
	s := jsonSource{compareRest: compareRest}
	for i, pointer := range pointers {
		tokens := strings.Split(pointer, "/")[1:]
		for j, token := range tokens {
			tokens[j] = tokenUnescaper.Replace(token)
		}
		s.pointers = append(s.pointers, jsonPointer{pointer, tokens})
		if slices.Contains(tokens, "*") {
			faults = errors.Join(faults, fmt.Errorf("keyfrom: pointer %q has a *, which is no name of a member", pointer))
		}
		isSpelling := func(other string) bool { return other != pointer && strings.EqualFold(other, pointer) }
		if slices.ContainsFunc(pointers[:i], isSpelling) {
			faults = errors.Join(faults, fmt.Errorf("keyfrom: pointer %q differs from another pointer in case only", pointer))
		}
	}
	return Source{places{inBody: []bodySource{s}}, faults}
}

// tokenUnescaper turns a token of a pointer into a name (RFC 6901, section 4).
var tokenUnescaper = strings.NewReplacer("~0", "~", "~1", "/")

type jsonSource struct {
	pointers    []jsonPointer
	compareRest idempotency.FingerprintFunc
}

func (s jsonSource) String() string                  { return s.pointers[0].text }
func (s jsonSource) mayHaveKey(r *http.Request) bool { return isJSON(r) }
func (s jsonSource) readsCoded() bool                { return false }

func isJSON(r *http.Request) bool {
	media := mediaType(r)
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

func (s jsonSource) findKey(_ *http.Request, body []byte) (key string, found bool, err error) {
	if len(body) == 0 {
		return "", false, nil
	}
	document, err := canonicaljson.Form(body) // without duplicate names, so that all parsers find the same value
	if err != nil {
		return "", false, fmt.Errorf("%w: body as JSON: %w", idempotency.ErrBodyInvalid, err)
	}
	var place string
	for _, pointer := range s.pointers {
		value, err := pointer.findValue(document)
		if err != nil {
			return "", false, err
		}
		if value == nil || string(value) == "null" {
			continue
		}
		var other string
		if json.Unmarshal(value, &other) != nil {
			return "", false, newKeyFault("the value at %s is no string", pointer.text)
		}
		if found && other != key {
			return "", false, newKeyFault("%s and %s have different keys", place, pointer.text)
		}
		key, found, place = other, true, pointer.text
	}
	return key, found, nil
}

func (s jsonSource) leaveOut(compare idempotency.FingerprintFunc) idempotency.FingerprintFunc {
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		if isJSON(r) {
			return s.compareRest(r, body)
		}
		return compare(r, body)
	}
}

// jsonPointer leads to a member of an object, perhaps of an object within others.
type jsonPointer struct {
	text        string
	memberNames []string
}

// findValue returns the value in document, which is canonical JSON, or nil. A name that differs from a name of the pointer
// in case only is an error, because encoding/json would read both members into one field.
func (p jsonPointer) findValue(document []byte) (value json.RawMessage, err error) {
	value = document
	for _, name := range p.memberNames {
		var members map[string]json.RawMessage
		if value[0] != '{' || json.Unmarshal(value, &members) != nil {
			return nil, nil
		}
		for other := range members {
			if other != name && strings.EqualFold(other, name) {
				return nil, newKeyFault("the name %q differs from %q in case only", other, name)
			}
		}
		if value = members[name]; value == nil {
			return nil, nil
		}
	}
	return value, nil
}
