package idempotency

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// UserFunc names the caller of a request: whatever identifies the account that authentication has established. Keys
// of different users never meet. An error or an empty name refuses the request with user-unknown.
//
// If the error is or wraps an [*Error], that is the answer: for example 503 if authentication is down, or 401 with a
// WWW-Authenticate field of another scheme than Bearer. What ErrorHandler and [Observer] get wraps both the returned
// error and [ErrUserUnknown], whatever the status.
type UserFunc func(*http.Request) (string, error)

// SingleUser is the UserFunc of a service that has one caller only, or none that it could tell apart. Where there are
// several, they share their keys, and one may be shown the answer to another.
func SingleUser(*http.Request) (string, error) { return "single", nil }

// Middleware makes handlers safe to retry. It is safe for concurrent use.
type Middleware struct {
	runner  *Runner
	user    UserFunc
	opts    Options
	events  *reporter
	passing passing
}

// New returns a Middleware that keeps its records in store and calls user for the caller of each guarded request.
// The error reports every fault at once.
func New(store Store, user UserFunc, opts Options) (*Middleware, error) {
	opts = opts.withDefaults()
	runner, err := NewRunner(store, opts.runner())
	err = errors.Join(err, opts.validate())
	if user == nil {
		err = errors.Join(err, errors.New("idempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	if err != nil {
		return nil, err
	}
	return &Middleware{runner, user, opts, &runner.events, newPassing(opts.OmitHeaders)}, nil
}

// Handler guards next. The method value m.Handler is what routers such as chi and gorilla/mux take as a middleware.
//
// It must stand behind authentication, which tells the users apart, and inside of the router, whose own answers
// (redirects, 404) are not the handler's. Requests of other methods, and those without a key unless Required is set,
// reach next untouched.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	methods, headers := m.opts.Methods, m.opts.Headers
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		if !m.opts.Required && !hasKey(r.Header, headers) {
			next.ServeHTTP(w, r)
			return
		}
		if err := m.serve(next, w, r); err != nil {
			m.refuse(w, r, err)
		}
	})
}

// serve answers a guarded request, unless it returns an error to be answered. What can be known from the header is
// checked before the body is read, and the body before the store is asked.
func (m *Middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request) error {
	key, err := m.key(r)
	if err != nil {
		return m.reject(r, key, err)
	}
	c := calls.Get().(*call)
	defer c.free()
	if err := c.body.readBody(r, m.opts.MaxBody); err != nil {
		return m.reject(r, key, err)
	}
	fp, err := m.opts.Fingerprint(r, c.body.b)
	if err != nil {
		return m.reject(r, key, fmt.Errorf("%w: %w", ErrBodyInvalid, err))
	}
	c.execution.key = key
	replay, err := m.runner.admit(r.Context(), &c.execution, fp)
	switch {
	case err != nil:
		return err
	case replay != nil:
		replay.replay(w)
		return nil
	default:
		return c.execute(m, next, w, r)
	}
}

// reject reports and returns why a request is refused before the store is asked.
func (m *Middleware) reject(r *http.Request, key Key, err error) error {
	m.events.report(r.Context(), &Event{Outcome: OutcomeRejected, Key: key, Err: err})
	return refuse(err)
}

func (m *Middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	refusal, ok := errors.AsType[*Error](err)
	if !ok {
		refusal = refuse(err)
	}
	if errors.Is(err, ErrKeyReused) {
		refusal.Status = m.opts.ReuseStatus
	}
	m.opts.ErrorHandler(w, r, refusal)
}

func (m *Middleware) key(r *http.Request) (Key, error) {
	id, err := findKey(r.Header, m.opts.Headers)
	if err != nil {
		return Key{}, err
	}
	if m.opts.ValidateKey != nil {
		if err := m.opts.ValidateKey(id); err != nil {
			return Key{}, &keyError{err}
		}
	}
	user, err := m.user(r)
	if err != nil {
		return Key{}, refuseUser(err)
	}
	if user == "" {
		return Key{}, ErrUserUnknown
	}
	return Key{User: user, Endpoint: m.opts.Endpoint(r), ID: id}, nil
}
