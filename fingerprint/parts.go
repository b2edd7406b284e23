package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

// Parts is a fingerprint function that can report which parts of two requests differ when a key is refused as reused. The
// report has the names of the parts, without their values. Parts compares everything that an underlying function compares, and
// always the query, the media type and the named parts. Give the method Fingerprint to Options.Fingerprint, and call the
// method Differences in an [idempotency.Observer], or give Differences to package console.
//
// A fingerprint of Parts has the length of every fingerprint. Half is the beginning of the fingerprint by the underlying
// function. The other half is a mark of the names and a tag of one byte for each part. Two things follow for security:
//
//   - An attacker who computes about 2^64 fingerprints can find two requests with the same fingerprint.
//   - A reader of the store can rule out 255 of 256 guesses of a single part, without knowing the other parts. This includes
//     the query, the media type and the rest of the body. If any part is a secret, use package seal.
//
// Parts is safe for concurrent use.
type Parts struct {
	hashWhole   idempotency.FingerprintFunc
	namesMark   []byte
	tagNames    []string // requestParts and the names of bodyParts
	bodyParts   []bodyPart
	allPointers *pointerTree // the pointers of all bodyParts
}

// bodyPart is a named part of the body: a value of JSON, or a field of a form.
type bodyPart struct {
	partName string
	pointer  *pointerTree // nil for a field of a form
}

// A fingerprint consists of a mark of the names, the beginning of the underlying fingerprint, and the tags.
const (
	markEnd      = 4
	wholeEnd     = markEnd + 16
	mediaTypeTag = 1 // index into the tags
	maxNames     = sha256.Size - wholeEnd - len(requestParts)
)

// requestParts are the parts of every request. Their tags precede the tags of the named parts.
var requestParts = [...]string{"the query", "the media type", "the rest of the body"}

// NewParts returns a Parts on top of whole, for example [JSON]. A name with a leading slash is a pointer into JSON bodies, as in
// [JSONOnly]. Any other name is a field of URL-encoded forms. Parts compares the query, the media type and the named parts
// even if whole ignores them, and compares the rest of the request as whole does.
//
// NewParts returns an error that reports every invalid name, and more than nine names. When a service begins to use Parts, or
// changes whole or names, retries of earlier operations are refused as reused until their records expire.
//
// Each fingerprint calls whole twice, and parses the body once more. The second call passes a request without a query, and a
// body without the named parts: whole must accept both.
func NewParts(whole idempotency.FingerprintFunc, names ...string) (*Parts, error) {
	names = slices.Sorted(slices.Values(names))
	mark := sha256.Sum256(appendNames("parts", names))
	p := &Parts{hashWhole: whole, namesMark: mark[:markEnd], tagNames: append(requestParts[:], names...), allPointers: &pointerTree{}}
	var faults []error
	if whole == nil {
		faults = append(faults, errors.New("fingerprint: whole is nil: give a function such as JSON"))
	}
	if len(names) > maxNames {
		faults = append(faults, fmt.Errorf("fingerprint: %d names are too many: at most %d fit into a fingerprint", len(names), maxNames))
	}
	var pointers, fields []string
	for _, name := range names {
		newPart := bodyPart{partName: name}
		if strings.HasPrefix(name, "/") {
			newPart.pointer, _ = parsePointers([]string{name})
			pointers = append(pointers, name)
		} else {
			fields = append(fields, name)
		}
		p.bodyParts = append(p.bodyParts, newPart)
	}
	if len(pointers) > 0 {
		tree, err := parsePointers(pointers)
		p.allPointers, faults = tree, append(faults, err)
	}
	if len(fields) > 0 {
		faults = append(faults, checkNames(fields))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

// Fingerprint is an [idempotency.FingerprintFunc]. Fingerprint returns the errors of the underlying function and, for names
// that differ in case only, the errors of [JSONOnly] and [FormOnly].
func (p *Parts) Fingerprint(r *http.Request, body []byte) (fp idempotency.Fingerprint, err error) {
	whole, err := p.hashWhole(r, body)
	if err != nil {
		return fp, err
	}
	sentType := mediaType(r)
	tags, remainder, err := p.splitBody(contentMediaType(r), body)
	if err != nil {
		return fp, err
	}
	bareRequest := r.WithContext(r.Context())
	bareRequest.URL = &url.URL{Path: r.URL.Path}
	remainderHash, err := p.hashWhole(bareRequest, remainder)
	if err != nil {
		return fp, err
	}
	copy(fp[:], p.namesMark)
	copy(fp[markEnd:wholeEnd], whole[:])
	copy(fp[wholeEnd:], []byte{tagOf([]byte(r.URL.RawQuery)), tagOf([]byte(sentType)), remainderHash[0]})
	copy(fp[wholeEnd+len(requestParts):], tags)
	return fp, nil
}

// splitBody returns the tags of the named parts, and the body without the named parts. In a body that is malformed or has
// another media type, all named parts count as missing.
func (p *Parts) splitBody(mediaType string, body []byte) (tags, remainder []byte, err error) {
	var value []byte
	var form url.Values
	remainder = body
	switch {
	case isJSON(mediaType):
		if canonical, fault := canonicaljson.Form(body); fault == nil {
			err = p.allPointers.checkMemberNames(canonical)
			value, remainder = canonical, appendWithout(nil, canonical, []*pointerTree{p.allPointers})
		}
	case mediaType == urlEncoded:
		if parsed, fault := url.ParseQuery(string(body)); fault == nil {
			err = checkFieldNames(parsed, p.tagNames[len(requestParts):])
			form = parsed
		}
	}
	if err != nil {
		return nil, nil, err
	}
	for _, bodyPart := range p.bodyParts {
		if bodyPart.pointer != nil {
			tags = append(tags, tagOf(bodyPart.pointer.appendSelected(nil, value)))
			continue
		}
		tags = append(tags, tagOf(appendValues(nil, form[bodyPart.partName])))
		delete(form, bodyPart.partName)
	}
	if form != nil {
		remainder = []byte(form.Encode())
	}
	return tags, remainder, nil
}

// tagOf returns the first byte of the hash of part. Two different parts have the same tag in one of 256 cases.
func tagOf(part []byte) byte { return sha256.Sum256(part)[0] }

// Differences returns the names of the parts in which a refused request differs from the first request with its key. The names
// are the names given to NewParts, and "the query", "the media type" and "the rest of the body". If the media types differ,
// Differences leaves out all parts of the body. Of 256 differences of a part, Differences misses one.
//
// Differences returns nil in these cases:
//
//   - Every part has the same tag in both requests.
//   - The outcome of the event is not [idempotency.OutcomeKeyReused].
//   - Either request was sent to a service with other names.
//   - The middleware has changed the fingerprint of either request, because the request has a field of
//     Options.FingerprintHeaders, a Content-Encoding, or a field that overrides the method.
//   - The operation is incomplete, and package seal hides its fingerprint.
//   - The bodies differ only in how they are written, and the underlying function compares that.
func (p *Parts) Differences(e idempotency.Event) (names []string) {
	if e.Fingerprints == nil {
		return nil
	}
	first, sent := e.Fingerprints[0][:], e.Fingerprints[1][:]
	if !bytes.HasPrefix(first, p.namesMark) || !bytes.HasPrefix(sent, p.namesMark) {
		return nil
	}
	firstTags, sentTags := first[wholeEnd:], sent[wholeEnd:]
	compared := p.tagNames
	if firstTags[mediaTypeTag] != sentTags[mediaTypeTag] {
		compared = compared[:mediaTypeTag+1]
	}
	for i, name := range compared {
		if firstTags[i] != sentTags[i] {
			names = append(names, name)
		}
	}
	return names
}
