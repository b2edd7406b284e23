// Package keyfrom guards services whose clients send the key outside of the header, or send no key at all. Call
// keyfrom.New in place of [idempotency.New], and name the places of the key:
//
//	idem, err := keyfrom.New(store, account, idempotency.Options{Required: true}, keyfrom.JSON("/idempotency_key"))
//	mux.Handle("POST /payments", idem.Handler(payments))
//
// The places, which can be combined, are:
//
//	JSON     members of JSON bodies: /idempotency_key of Square and AdCP; /request_id and /requestId of AIP-155
//	Query    a parameter of the query
//	Form     a field of HTML forms, with or without files
//	Body     whatever a function finds in the body, such as a field of a message of Connect
//	Content  no place: for a window of time, requests with the same content are one operation
//
// A key in the header still counts. If a request has several keys, all of them must be equal. A key is the value as it
// stands in its place, and must have 1 to 255 visible ASCII characters. The handler finds the key in the header, in the
// field Options.Headers[0].
//
// The place of the key is left out of the fingerprint, so a client may move its key from one place to another between two
// attempts. If Options.Fingerprint is set, that function compares the request as sent, with its key.
//
// # Refusals
//
// Package keyfrom adds these refusals, in the form of those of [idempotency.Middleware] and with the same codes:
//
//   - 400 key-invalid: two keys differ; a place has several values, or a value that is no string; or a name differs from
//     the name of a place in case only, because some decoders would read both names into one value.
//   - 400 body-invalid: the body breaks off, or is malformed. Malformed is also JSON with a duplicate name, because JSON
//     parsers differ in the value that they keep.
//   - 415 body-invalid: the body has a content coding such as gzip, which hides the key. A request with a key in the
//     header or the query passes. So does every request if outer middleware decodes the body and removes the field
//     Content-Encoding.
//   - 413 body-too-large, 503 overloaded and 500 body-consumed: the limits of idempotency.Options apply to each body that
//     must be searched, also if no key is found in the end.
//   - 401 user-unknown: the [idempotency.UserFunc] is called before a body is searched, so every such request needs a user.
//
// All other requests without a key pass unprotected, unless Options.Required is set or Content is given. A body of another
// media type than JSON, for example, has no member of JSON. So set Required.
//
// # Questions about a key
//
// For [idempotency.Middleware.Status], make a further Middleware by [idempotency.New] with the same store, user and options.
// A question has its key in the header, wherever the request has its key.
//
// # Security
//
// A key in the header makes a browser ask for permission (CORS) before a page of another origin can send the request. A key
// in a form or in the query does not, so protect such routes from cross-site requests by outer middleware, for example
// [http.CrossOriginProtection]. A key in the query is written to access logs.
package keyfrom

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Middleware finds the key of a request, and guards handlers as an [idempotency.Middleware] does. The adapters for echo and
// gin accept a Middleware as well. A Middleware is safe for concurrent use.
type Middleware struct {
	keyed          *idempotency.Middleware // for requests with a key, and for those that pass
	contentGuard   *contentGuard           // nil without Content
	userFunc       idempotency.UserFunc
	opts           idempotency.Options // with the defaults that package keyfrom needs
	places         places
	searchedBodies bounds.Shares // bytes of bodies that are searched for a key
}

// New returns a Middleware that finds keys in the header and in sources. The other parameters are those of
// [idempotency.New]. The error reports all faults of all parameters.
//
// A body that is searched for its key counts against a second budget of the size of Options.MaxBodies, until the body is
// passed on. With Content, the bodies of requests without a key have a budget of their own, too.
func New(
	store idempotency.Store, user idempotency.UserFunc, opts idempotency.Options, sources ...Source,
) (*Middleware, error) {
	places, faults := joinSources(sources)
	m := &Middleware{userFunc: user, opts: withDefaults(opts), places: places}
	m.searchedBodies = bounds.Shares{Total: cmp.Or(opts.MaxBodies, math.MaxInt64), Each: m.opts.MaxUserBodies}
	opts.ErrorHandler = m.writeRefusal
	if opts.Fingerprint == nil {
		opts.Fingerprint = places.leaveOutKeys(idempotency.FingerprintRaw)
	}
	if user != nil { // idempotency.New reports a missing user
		user = m.userOf
	}
	if places.content != nil {
		faults = errors.Join(faults, places.content.findFaults(m.opts))
	}
	var err error
	m.keyed, err = idempotency.New(store, user, opts)
	if err = errors.Join(faults, err); err != nil {
		return nil, err
	}
	if places.content != nil {
		m.contentGuard, err = newContentGuard(store, user, opts, places.content)
	}
	return m, err
}

// withDefaults returns opts with the defaults of the fields that package keyfrom uses itself.
func withDefaults(opts idempotency.Options) idempotency.Options {
	if opts.Headers == nil {
		opts.Headers = []string{"Idempotency-Key"}
	}
	opts.Headers = slices.Clone(opts.Headers)
	for i, name := range opts.Headers {
		opts.Headers[i] = http.CanonicalHeaderKey(name)
	}
	if opts.Methods == nil {
		opts.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	opts.Methods = slices.Clone(opts.Methods)
	opts.MaxBody = cmp.Or(opts.MaxBody, 1<<20)
	opts.TTL, opts.Lease = cmp.Or(opts.TTL, 24*time.Hour), cmp.Or(opts.Lease, 30*time.Second)
	if opts.MaxBodies != 0 {
		opts.MaxUserBodies = cmp.Or(opts.MaxUserBodies, max(opts.MaxBodies/2, bounds.Room(opts.MaxBody)))
	}
	opts.ProblemBase = cmp.Or(opts.ProblemBase, "https://idempotency-go.github.io/idempotency/problems#")
	if opts.ErrorHandler == nil {
		opts.ErrorHandler = idempotency.WriteProblem
	}
	return opts
}

// Shutdown waits as Shutdown of [idempotency.Middleware] does. Call Shutdown before the program ends.
func (m *Middleware) Shutdown(ctx context.Context) error {
	err := m.keyed.Shutdown(ctx)
	if m.contentGuard != nil {
		err = errors.Join(err, m.contentGuard.shutDown(ctx))
	}
	return err
}

// Handler guards next, as Handler of [idempotency.Middleware] does, and has to be mounted in the same place. A request with
// a method outside of Options.Methods passes untouched: its body is not read, and its query is not searched.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	keyed := m.keyed.Handler(next)
	var byContent http.Handler
	if m.contentGuard != nil {
		byContent = m.contentGuard.middleware.Handler(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(m.opts.Methods, r.Method) {
			keyed.ServeHTTP(w, r)
			return
		}
		s := &search{Middleware: m, original: r, request: r}
		defer s.close()
		err := s.findKey()
		switch {
		case err != nil:
			s.close() // before the answer is sent, because the client may read the answer slowly
			m.rejectRequest(w, r, err)
		case !s.hasKey && byContent != nil:
			m.contentGuard.serve(w, s, byContent)
		default:
			s.serve(keyed, w, s.request)
		}
	})
}

// userOf returns the user of r. If the body was searched, the context of r has the user.
func (m *Middleware) userOf(r *http.Request) (string, error) {
	if user, ok := r.Context().Value(m).(string); ok {
		return user, nil
	}
	return m.userFunc(r)
}
