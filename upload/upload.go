// Package upload guards requests whose bodies do not fit into memory. The client says what it sends before it sends it, by
// a digest of the body in the field Content-Digest (RFC 9530):
//
//	Content-Digest: sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:
//
// The digest stands for the body in the fingerprint. So a replay, or a refusal, needs no body at all, and the handler reads
// the body as it arrives, however long it is. The body is verified on the way. What differs from its digest, or breaks off,
// is a fault of the client: it is never stored as an answer.
//
//	account := func(r *http.Request) (string, error) { ... } // the ID of the authenticated caller
//	idem, err := upload.New(store, account, idempotency.Options{})
//	mux.Handle("POST /scans", idem.Handler(http.MaxBytesHandler(archive, 1<<30)))
package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"

	"github.com/idempotency-go/idempotency"
)

// Middleware guards handlers as an [idempotency.Middleware] does, but does not hold bodies in memory if they have a digest.
// The adapters for echo and gin take it, too.
type Middleware struct {
	idem   *idempotency.Middleware // unexported, because its own Handler verifies no body
	refuse func(http.ResponseWriter, *http.Request, *idempotency.Error)
}

// New returns a Middleware. It takes what [idempotency.New] takes, and returns its error. For bodies with a digest, MaxBody,
// MaxBodies and Fingerprint of the options do not count: [http.MaxBytesHandler] limits them, outside or inside.
func New(store idempotency.Store, user idempotency.UserFunc, opts idempotency.Options) (*Middleware, error) {
	whole := opts.Fingerprint
	if whole == nil {
		whole = idempotency.FingerprintRaw
	}
	opts.Fingerprint = func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		u, _ := r.Context().Value(key{}).(*upload)
		if u == nil {
			return whole(r, body)
		}
		content, err := u.digests.content()
		if err != nil {
			return idempotency.Fingerprint{}, err
		}
		return idempotency.FingerprintRaw(r, content)
	}
	idem, err := idempotency.New(store, user, opts)
	if err != nil {
		return nil, err
	}
	m := &Middleware{idem: idem, refuse: opts.ErrorHandler}
	if m.refuse == nil {
		m.refuse = idempotency.WriteProblem
	}
	if refuse := m.refuse; opts.ProblemBase != "" {
		m.refuse = func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			e.Type = opts.ProblemBase + e.Code
			refuse(w, r, e)
		}
	}
	return m, nil
}

// Shutdown does what Shutdown of [idempotency.Middleware] does. Call it before the program ends.
func (m *Middleware) Shutdown(ctx context.Context) error { return m.idem.Shutdown(ctx) }

// Handler guards next, as Handler of [idempotency.Middleware] does. It changes two things if a guarded request has a
// Content-Digest with sha-256 or sha-512:
//
//   - Next reads the body as the client sends it. If the body differs from a digest, its end is an error, and not
//     [io.EOF]. So next must not take effect before it has read that end.
//   - The answer of next is kept only if the whole body was right. Before an answer below 400 begins, what next has left of
//     the body is read. If the body was wrong, the client gets 400 body-invalid in place of the answer, or 413
//     body-too-large if a limit has ended it. In both cases, or if next answers 400 or more before it has read the whole
//     body, the operation is released, unless next has decided [idempotency.Unknown].
//
// A client that falls silent in the middle holds the key until a read fails: set ReadTimeout of the server, or a read
// deadline by [http.ResponseController]. It holds no connection of the store: the lease is renewed from time to time. A retry
// sends the whole body again; there is no resuming.
//
// A field that cannot be read is refused with 400 body-invalid. A digest in a trailer is not looked at. A request without a
// digest is read into memory, up to MaxBody. So a key that came with a digest must come with the same one again.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	guarded := m.idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := r.Context().Value(key{}).(*upload)
		if u == nil {
			next.ServeHTTP(w, r)
			return
		}
		if _, ok := idempotency.FromContext(r.Context()); !ok { // it has no key
			next.ServeHTTP(w, u.sent)
			return
		}
		full, body := u.restored(r)
		defer func() { u.sent.MultipartForm = full.MultipartForm }() // so that the server removes its files
		m.serve(next, w, full, body)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := parse(r.Header.Values("Content-Digest"))
		if d.none() {
			guarded.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, (&upload{r, d}).emptied())
	})
}

// serve has next answer, and sees to it that no answer to a wrong body is kept.
func (m *Middleware) serve(next http.Handler, w http.ResponseWriter, r *http.Request, b *body) {
	ctx, before := r.Context(), w.Header().Clone()
	answer := &writer{ResponseWriter: w, verify: func(status int) *idempotency.Error {
		if status < 400 {
			_, _ = io.Copy(io.Discard, b)
		}
		return settle(ctx, b)
	}}
	next.ServeHTTP(answer, r)
	if ctx.Err() == nil { // else outer middleware answers, if nobody has
		answer.begin(http.StatusOK)
	}
	_ = settle(ctx, b) // next may have decided since
	if answer.refusal != nil {
		clear(w.Header())
		maps.Copy(w.Header(), before)
		m.refuse(w, r, answer.refusal)
	}
}

// settle lets no answer be kept unless the body was right, and returns what the client gets in its place if it was wrong.
func settle(ctx context.Context, b *body) *idempotency.Error {
	err := b.end()
	if err == io.EOF {
		return nil
	}
	if v, ok := idempotency.Decided(ctx); !ok || v == idempotency.Keep || v == idempotency.Tombstone {
		idempotency.Decide(ctx, idempotency.Free)
	}
	if err == nil {
		return nil
	}
	return refusalFor(err)
}

// refusalFor returns what a client gets whose body ended with err.
func refusalFor(err error) *idempotency.Error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &idempotency.Error{
			Status: http.StatusRequestEntityTooLarge, Code: "body-too-large", Title: "Request body is too large",
			Detail: "Its answer does not count. Send a smaller body.",
			Retry:  idempotency.RetryNever, Err: fmt.Errorf("%w: %w", idempotency.ErrBodyTooLarge, err),
		}
	}
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Title: "Request body could not be read",
		Detail: "It broke off, or differs from its Content-Digest. Retry with the same key and the whole body.",
		Retry:  idempotency.RetrySameKey, Err: fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err),
	}
}

// upload is a request whose body the idempotency middleware does not read.
type upload struct {
	sent    *http.Request
	digests digests
}

// key is that of an upload in the context of its request.
type key struct{}

// emptied returns the request without its body.
func (u *upload) emptied() *http.Request {
	r := u.sent.WithContext(context.WithValue(u.sent.Context(), key{}, u))
	r.Body, r.ContentLength = http.NoBody, 0
	return r
}

// restored returns the emptied request with the body that was sent.
func (u *upload) restored(r *http.Request) (*http.Request, *body) {
	b := &body{sent: u.sent.Body, checks: u.digests.checks()}
	r = r.WithContext(context.WithValue(r.Context(), key{}, nil)) // for a middleware inside
	r.Body, r.ContentLength = b, u.sent.ContentLength
	ctx := r.Context()
	b.onFault = func() { // at once, so that an adapter that looks at the handler's answer finds a verdict
		if _, decided := idempotency.Decided(ctx); !decided {
			idempotency.Decide(ctx, idempotency.Free)
		}
	}
	return r, b
}
