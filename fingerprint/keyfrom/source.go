package keyfrom

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// Source is a place in which clients send their keys. [JSON], [Query], [Form], [Body] and [Content] return a Source.
type Source struct {
	places
	faults error
}

// places are the places of keys outside of the header.
type places struct {
	query   *querySource // nil without Query
	inBody  []bodySource
	content *contentRule // nil without Content
}

// bodySource finds keys in bodies.
type bodySource interface {
	// mayHaveKey reports whether the body of r may have the key. It looks at the media type, but not at the body.
	mayHaveKey(r *http.Request) bool

	// findKey returns the key in body, or found = false.
	findKey(r *http.Request, body []byte) (key string, found bool, err error)

	// readsCoded reports whether findKey can read a body with a content coding such as gzip.
	readsCoded() bool

	// leaveOut returns a function that compares bodies without the key, and all other requests as compare does.
	leaveOut(compare idempotency.FingerprintFunc) idempotency.FingerprintFunc

	fmt.Stringer // names the place in errors
}

// joinSources returns the places of all sources, or all faults of sources.
func joinSources(sources []Source) (all places, faults error) {
	if len(sources) == 0 {
		faults = errors.New("keyfrom: sources are missing: use idempotency.New if all keys are in the header")
	}
	errTwice := errors.New("keyfrom: two sources are of one kind")
	kinds := map[string]bool{}
	for _, source := range sources {
		faults = errors.Join(faults, source.faults)
		switch {
		case source.query != nil && all.query != nil, source.content != nil && all.content != nil:
			faults = errors.Join(faults, errTwice)
		case source.query != nil:
			all.query = source.query
		case source.content != nil:
			all.content = source.content
		case len(source.inBody) == 0:
			faults = errors.Join(faults, errors.New("keyfrom: a Source is empty: use JSON, Query, Form, Body or Content"))
		case kinds[fmt.Sprintf("%T", source.inBody[0])]:
			faults = errors.Join(faults, errTwice)
		default:
			kinds[fmt.Sprintf("%T", source.inBody[0])] = true
			all.inBody = append(all.inBody, source.inBody...)
		}
	}
	return all, faults
}

// leaveOutKeys returns a function that compares requests without their keys, and everything else as compare does.
func (p places) leaveOutKeys(compare idempotency.FingerprintFunc) idempotency.FingerprintFunc {
	for _, source := range p.inBody {
		compare = source.leaveOut(compare)
	}
	if p.query == nil {
		return compare
	}
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		return compare(p.query.withoutKey(r), body)
	}
}

// Query returns the parameter name of the query as a Source. A query that [url.ParseQuery] cannot parse is refused with
// key-invalid.
func Query(name string) Source {
	return Source{places{query: &querySource{name}}, checkName("Query", name)}
}

func checkName(function, name string) error {
	if name == "" {
		return fmt.Errorf("keyfrom: %s has no name", function)
	}
	return nil
}

type querySource struct{ parameterName string }

func (s *querySource) String() string { return fmt.Sprintf("the query parameter %q", s.parameterName) }

// findKey returns the key in the query of r, or found = false.
func (s *querySource) findKey(r *http.Request) (key string, found bool, err error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", false, newKeyFault("the query is malformed")
	}
	return pickValue(values, s.parameterName, s)
}

// withoutKey returns a copy of r without the key. The rest of the query is left as sent.
func (s *querySource) withoutKey(r *http.Request) *http.Request {
	var kept []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		escaped, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(escaped); err != nil || name != s.parameterName {
			kept = append(kept, pair)
		}
	}
	without, address := r.WithContext(r.Context()), *r.URL
	address.RawQuery = strings.Join(kept, "&")
	without.URL = &address
	return without
}

// pickValue returns the value of the field name. The field must occur once at most, and all other names must differ from
// name in more than case, because some decoders, such as the decoder of echo, would read both fields into one value.
func pickValue(values url.Values, name string, source fmt.Stringer) (key string, found bool, err error) {
	for other := range values {
		if other != name && strings.EqualFold(other, name) {
			return "", false, newKeyFault("the name %q differs from %q in case only", other, name)
		}
	}
	switch sent := values[name]; len(sent) {
	case 0:
		return "", false, nil
	case 1:
		return sent[0], true, nil
	default:
		return "", false, newKeyFault("%s was sent %d times", source, len(sent))
	}
}

// Body returns the result of find as a Source, for keys that the other functions cannot find. For example, find may decode
// a message of Connect, and return a field of the message. The parameter body is the whole body as sent, with its content
// coding. An empty key means that the body has no key.
//
// If find returns an error, the request is refused with body-invalid. If the error is or wraps an [*idempotency.Error], the
// client gets that Error. Several goroutines call find at the same time. The function must not read r.Body, and must
// neither modify nor keep body. The key stays in the fingerprint, unless Options.Fingerprint leaves it out.
func Body(find func(r *http.Request, body []byte) (key string, err error)) Source {
	var fault error
	if find == nil {
		fault = errors.New("keyfrom: Body has no function")
	}
	return Source{places{inBody: []bodySource{funcSource{find}}}, fault}
}

type funcSource struct {
	findInBody func(r *http.Request, body []byte) (key string, err error)
}

func (s funcSource) String() string                { return "the body" }
func (s funcSource) mayHaveKey(*http.Request) bool { return true }
func (s funcSource) readsCoded() bool              { return true }

func (s funcSource) findKey(r *http.Request, body []byte) (key string, found bool, err error) {
	key, err = s.findInBody(r, body)
	if err != nil {
		return "", false, fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err)
	}
	return key, key != "", nil
}

func (s funcSource) leaveOut(compare idempotency.FingerprintFunc) idempotency.FingerprintFunc {
	return compare
}

// isCoded reports whether the body has a content coding (RFC 9110, section 8.4).
func isCoded(r *http.Request) bool {
	for _, line := range r.Header["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return true
			}
		}
	}
	return false
}

// mediaType returns the type and subtype of Content-Type in lower case, without parameters.
func mediaType(r *http.Request) string {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}
