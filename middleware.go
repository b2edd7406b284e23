package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// UserFunc names the caller of a request: whatever identifies the account that authentication has established. Keys
// of different users never meet. An error or an empty name refuses the request with user-unknown.
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header[m.opts.Header]
		if !slices.Contains(m.opts.Methods, r.Method) || len(values) == 0 && !m.opts.Required {
			next.ServeHTTP(w, r)
			return
		}
		if err := m.serve(next, w, r, values); err != nil {
			m.refuse(w, r, err)
		}
	})
}

// serve answers a guarded request, unless it returns an error to be answered. What can be known from the header is
// checked before the body is read, and the body before the store is asked.
func (m *Middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request, values []string) error {
	key, err := m.key(r, values)
	if err != nil {
		return m.reject(r, key, err)
	}
	body := getBuffer()
	defer body.free()
	if err := body.readBody(r, m.opts.MaxBody); err != nil {
		return m.reject(r, key, err)
	}
	fp, err := m.opts.Fingerprint(r, body.b)
	if err != nil {
		return m.reject(r, key, fmt.Errorf("%w: %w", ErrBodyInvalid, err))
	}
	adm, err := m.runner.admit(r.Context(), key, fp)
	switch {
	case err != nil:
		return err
	case adm.replay != nil:
		adm.replay.send(w, true)
		return nil
	default:
		return m.execute(next, w, r, body, adm)
	}
}

// execute answers a request by running the handler.
func (m *Middleware) execute(next http.Handler, w http.ResponseWriter, r *http.Request, body *buffer, adm admission) error {
	c := &call{m: m, next: next, w: w, r: r, body: body}
	defer c.close()
	_, err := m.runner.execute(r.Context(), adm, c.work)
	if err != nil && err != errNotStorable && !c.recorder.live { // errNotStorable comes wrapped if the claim was lost
		return err
	}
	c.recorder.send(c.response) // if the claim was lost after it went live, there is nothing to add
	return nil
}

// reject reports and returns why a request is refused before the store is asked.
func (m *Middleware) reject(r *http.Request, key Key, err error) error {
	m.events.report(r.Context(), Event{Outcome: OutcomeRejected, Key: key, Err: err})
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

func (m *Middleware) key(r *http.Request, values []string) (Key, error) {
	id, ok, err := parseKey(values)
	if err != nil {
		return Key{}, err
	}
	if !ok {
		return Key{}, ErrKeyMissing
	}
	if m.opts.ValidateKey != nil {
		if err := m.opts.ValidateKey(id); err != nil {
			return Key{}, fmt.Errorf("%w: %w", ErrKeyInvalid, err)
		}
	}
	user, err := m.user(r)
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrUserUnknown, err)
	}
	if user == "" {
		return Key{}, ErrUserUnknown
	}
	return Key{User: user, Endpoint: m.opts.Endpoint(r), ID: id}, nil
}

// errNotStorable ends an attempt whose answer is sent but not stored, so that it may be tried again.
var errNotStorable = errors.New("idempotency: answer not storable")

// call is one request on its way through the handler.
type call struct {
	m        *Middleware
	next     http.Handler
	w        http.ResponseWriter
	r        *http.Request
	body     *buffer
	reader   bodyReader
	recorder recorder
	response Response // as the first client gets it
}

// work runs the handler. It is called at most once: for the owner of the operation, or with FailOpen for nobody.
func (c *call) work(ctx context.Context, a *attempt) (Response, error) {
	c.record(a)
	defer c.recorder.close() // before the claim is settled, also when the handler does not return
	r := c.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		c.reader.unread = c.body.b
		r.Body = &c.reader
	}
	c.next.ServeHTTP(&c.recorder, r)
	c.r.MultipartForm = r.MultipartForm // so that the server removes its files

	resp, whole := c.recorder.finish()
	c.response = resp
	switch {
	case c.recorder.refused != nil:
		return resp, c.recorder.refused
	case !whole || !c.m.opts.Storable(resp.Status):
		return resp, errNotStorable
	case int64(len(resp.Body)) > c.m.opts.MaxResponse:
		resp.Body, resp.Omitted = nil, true
	}
	resp.Trailer = c.m.passing.strip(resp.Trailer)
	return resp, nil
}

// record sets up the recorder of an attempt.
func (c *call) record(a *attempt) {
	c.recorder = recorder{
		w: c.w, r: c.r, header: c.w.Header().Clone(), body: getBuffer(),
		passing: c.m.passing, limit: c.m.opts.MaxResponse,
	}
	if a != nil && !a.leased {
		return // the effects are bound to the record: not a byte may go out before it is stored, however many there are
	}
	c.recorder.stream = c.m.opts.Stream
	c.recorder.outgrown = func(resp Response) error {
		if a == nil || c.m.opts.Stream || !c.m.opts.Storable(resp.Status) {
			return nil
		}
		return a.complete(resp)
	}
}

// close takes the buffers away from a handler that may have left goroutines behind.
func (c *call) close() {
	c.reader.Close()
	if c.recorder.body != nil {
		c.recorder.body.free()
	}
}
