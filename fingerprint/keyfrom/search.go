package keyfrom

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// search is the search for the key of a request.
type search struct {
	*Middleware
	original *http.Request // as the server knows the request
	request  *http.Request // to pass on: original, or a copy with the key in its header and the body from memory
	user     string        // the caller, if the body was read
	body     *bounds.Body  // nil if the body was not read

	hasKey   bool // the request has a key, perhaps an invalid one
	key      string
	keyPlace string // where key was found, for errors
}

// findKey finds the key, and prepares the request to pass on. Before findKey reads the body, it looks at everything that
// can refuse the request without the body.
func (s *search) findKey() error {
	if isInvalid := s.findInHeader(); isInvalid {
		return nil // the middleware refuses the request, and says why
	}
	isInHeader := s.hasKey
	if query := s.places.query; query != nil {
		key, found, err := query.findKey(s.original)
		if err := s.addKey(query, key, found, err); err != nil {
			return err
		}
	}
	if s.mustReadBody() {
		if err := s.findInBody(); err != nil {
			return err
		}
	}
	if s.hasKey && !isInHeader {
		s.request = withKey(s.request, s.opts.Headers[0], s.key)
	}
	return nil
}

// mustReadBody reports whether the body may have the key, or is the content by which a request without a key is guarded.
func (s *search) mustReadBody() bool {
	if s.contentGuard != nil && !s.hasKey {
		return true
	}
	hasBody := s.original.Body != nil && s.original.Body != http.NoBody
	return hasBody && slices.ContainsFunc(s.places.inBody, func(source bodySource) bool { return source.mayHaveKey(s.original) })
}

// findInHeader looks for the key in the header, and reports whether the header has an invalid key, or several keys.
func (s *search) findInHeader() (isInvalid bool) {
	for _, name := range s.opts.Headers {
		values := s.original.Header[name]
		if len(values) == 0 {
			continue
		}
		s.hasKey = true
		key, err := idempotency.ParseKey(values)
		if err != nil || s.keyPlace != "" && s.key != key {
			return true
		}
		s.key, s.keyPlace = key, "the header"
	}
	return false
}

// addKey adds a key that was found in place. The key must be equal to a key that was found before.
func (s *search) addKey(place fmt.Stringer, key string, found bool, err error) error {
	switch {
	case err != nil:
		return err
	case found && s.hasKey && key != s.key:
		return newKeyFault("%s and %s have different keys", s.keyPlace, place)
	case found:
		s.hasKey, s.key, s.keyPlace = true, key, place.String()
	}
	return nil
}

// findInBody reads the body and looks for the key in it. The user is asked first, because the body counts against the
// share of the user.
func (s *search) findInBody() error {
	user, err := s.userFunc(s.original)
	if err != nil || user == "" {
		return refuseUser(err)
	}
	s.user = user
	s.body = bounds.NewBody(&s.searchedBodies, user)
	if err := s.readBody(); err != nil {
		return err
	}
	for _, source := range s.places.inBody {
		if !source.mayHaveKey(s.original) {
			continue
		}
		if isCoded(s.original) && !source.readsCoded() {
			if s.hasKey {
				continue
			}
			return errCoded
		}
		key, found, err := source.findKey(s.original, s.body.Bytes())
		if err := s.addKey(source, key, found, err); err != nil {
			return err
		}
	}
	if s.hasKey || s.contentGuard != nil {
		s.request = s.original.WithContext(context.WithValue(s.original.Context(), s.Middleware, user))
	} // otherwise the request itself passes, by which the adapters of frameworks recognise an unguarded request
	if s.original.Body != nil && s.original.Body != http.NoBody {
		s.request.Body = s.body
	}
	return nil
}

// readBody reads the body within the limits.
func (s *search) readBody() error {
	if err := s.body.ReadRequest(s.original, s.opts.MaxBody); err != nil {
		return bodyFault(err)
	}
	r := s.original
	if len(s.body.Bytes()) == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil) {
		return idempotency.ErrBodyConsumed
	}
	return nil
}

// serve passes r on to handler. Afterwards the original has the multipart form that the handler has parsed, because the
// server removes the temporary files of the original's form only.
func (s *search) serve(handler http.Handler, w http.ResponseWriter, r *http.Request) {
	defer func() { s.original.MultipartForm = r.MultipartForm }()
	handler.ServeHTTP(w, r)
}

// close gives the room of the body back.
func (s *search) close() {
	if s.body != nil {
		_ = s.body.Close()
	}
}

// withKey returns a copy of r with key in the field name of its header. A key that would be ambiguous as it stands is sent
// as a string of RFC 9651.
func withKey(r *http.Request, name, key string) *http.Request {
	if strings.ContainsAny(key, `",;\`) {
		key = `"` + quoteEscaper.Replace(key) + `"`
	}
	keyed := r.WithContext(r.Context())
	keyed.Header = r.Header.Clone()
	keyed.Header[name] = []string{key}
	return keyed
}

var quoteEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
