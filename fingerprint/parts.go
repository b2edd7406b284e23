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

// Parts compares what another function compares and, in any case, the query, the media type and the named parts. When a key is
// refused as reused, it can tell which of them differ, by their names only. Its method Fingerprint is for
// Options.Fingerprint, and its method Differences for an [idempotency.Observer], or for package console.
//
// Its fingerprints are stored as any others are. Half of one is the beginning of the other function's, the rest are a mark
// of the names, and a tag of one byte for each part. Whoever computes about 2^64 fingerprints can find two requests that
// count as one. Somebody who reads the store can rule out 255 of 256 guesses of one part, without knowing the others. Query,
// media type and the rest of the body have tags, too: if any part is a secret, use package seal.
//
// It is safe for concurrent use.
type Parts struct {
	whole    idempotency.FingerprintFunc
	mark     []byte
	names    []string // of all tags
	parts    []part
	pointers *selection // all of them
}

// part is a part of the body.
type part struct {
	name    string
	pointer *selection // nil: it is a field of a form
}

// The bytes of a fingerprint are a mark, the beginning of that of the whole, and tags.
const (
	markEnds  = 4
	wholeEnds = markEnds + 16
	media     = 1 // the place of its tag
	mostParts = sha256.Size - wholeEnds - len(always)
)

// always are the parts that each request has. Their tags precede the others.
var always = [...]string{"the query", "the media type", "the rest of the body"}

// NewParts returns a Parts on another function, such as [JSON]. Names that begin with a slash are pointers into bodies of JSON,
// as those of [JSONOnly]; the others are fields of URL-encoded forms. Query, media type and all that is named count, also if
// whole leaves them out. Of everything else, what whole compares counts.
//
// The error reports every fault of the names. At most nine are possible. When you begin to use Parts, or change the names or
// whole, retries of earlier operations are refused as reused until these expire.
//
// Each fingerprint takes two calls of whole, and reads the body once more. In the second call, the request has no query, and a
// body without what is named: whole must accept that.
func NewParts(whole idempotency.FingerprintFunc, names ...string) (*Parts, error) {
	names = slices.Sorted(slices.Values(names))
	mark := sha256.Sum256(appendNames("parts", names))
	p := &Parts{whole: whole, mark: mark[:markEnds], names: append(always[:], names...), pointers: &selection{}}
	var faults []error
	if whole == nil {
		faults = append(faults, errors.New("fingerprint: no function for the whole"))
	}
	if len(names) > mostParts {
		faults = append(faults, fmt.Errorf("fingerprint: %d names, more than %d", len(names), mostParts))
	}
	var pointers, fields []string
	for _, name := range names {
		of := part{name: name}
		if strings.HasPrefix(name, "/") {
			of.pointer, _ = parsePointers([]string{name})
			pointers = append(pointers, name)
		} else {
			fields = append(fields, name)
		}
		p.parts = append(p.parts, of)
	}
	if len(pointers) > 0 {
		all, err := parsePointers(pointers)
		p.pointers, faults = all, append(faults, err)
	}
	if len(fields) > 0 {
		faults = append(faults, checkNames(fields))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

// Fingerprint is an [idempotency.FingerprintFunc]. Its errors are those of the function for the whole, and those of [JSONOnly]
// and [FormOnly] for names that differ in case only.
func (p *Parts) Fingerprint(r *http.Request, body []byte) (fp idempotency.Fingerprint, err error) {
	whole, err := p.whole(r, body)
	if err != nil {
		return fp, err
	}
	kind := mediaType(r)
	tags, others, err := p.take(readableType(r), body)
	if err != nil {
		return fp, err
	}
	bare := r.WithContext(r.Context())
	bare.URL = &url.URL{Path: r.URL.Path}
	rest, err := p.whole(bare, others)
	if err != nil {
		return fp, err
	}
	copy(fp[:], p.mark)
	copy(fp[markEnds:wholeEnds], whole[:])
	copy(fp[wholeEnds:], []byte{tag([]byte(r.URL.RawQuery)), tag([]byte(kind)), rest[0]})
	copy(fp[wholeEnds+len(always):], tags)
	return fp, nil
}

// take returns the tags of all that is named, and the body without that. Where nothing can be read, it is missing.
func (p *Parts) take(kind string, body []byte) (tags, rest []byte, err error) {
	var value []byte
	var form url.Values
	rest = body
	switch {
	case isJSON(kind):
		if v, fault := canonicaljson.Form(body); fault == nil {
			err = p.pointers.checkSpelling(v)
			value, rest = v, without(nil, v, []*selection{p.pointers})
		}
	case kind == urlEncoded:
		if f, fault := url.ParseQuery(string(body)); fault == nil {
			err = checkSpelling(f, p.names[len(always):])
			form = f
		}
	}
	if err != nil {
		return nil, nil, err
	}
	for _, of := range p.parts {
		if of.pointer != nil {
			tags = append(tags, tag(of.pointer.only(nil, value)))
			continue
		}
		tags = append(tags, tag(appendValues(nil, form[of.name])))
		delete(form, of.name)
	}
	if form != nil {
		rest = []byte(form.Encode())
	}
	return tags, rest, nil
}

// tag differs for 255 of 256 other parts.
func tag(part []byte) byte { return sha256.Sum256(part)[0] }

// Differences returns the names of the parts in which a request differs from the one that came with its key before. Besides
// those that NewParts was given, they are "the query", "the media type" and "the rest of the body". If the media type differs,
// nothing is said of the body. For each part, one of 256 differences is not seen.
//
// It returns nil if nothing can be told:
//
//   - No difference was seen.
//   - The event has another outcome than [idempotency.OutcomeKeyReused].
//   - One of the requests was sent to a service with other names. Or the middleware has changed its fingerprint, because it
//     has a field of Options.FingerprintHeaders, a Content-Encoding, or a field that overrides the method.
//   - Package seal hides the fingerprint of an operation that is not completed.
//   - The difference is in how the body is written, and the function for the whole heeds that.
func (p *Parts) Differences(e idempotency.Event) (names []string) {
	if e.Fingerprints == nil {
		return nil
	}
	first, sent := e.Fingerprints[0][:], e.Fingerprints[1][:]
	if !bytes.HasPrefix(first, p.mark) || !bytes.HasPrefix(sent, p.mark) {
		return nil
	}
	a, b := first[wholeEnds:], sent[wholeEnds:]
	compared := p.names
	if a[media] != b[media] {
		compared = compared[:media+1]
	}
	for i, name := range compared {
		if a[i] != b[i] {
			names = append(names, name)
		}
	}
	return names
}
