// Package upload guards requests whose bodies do not fit into memory. The client announces the body by its digest in the
// field Content-Digest (RFC 9530):
//
//	Content-Digest: sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:
//
// The fingerprint is made of the digest in place of the body. A replay or a refusal is therefore possible before the body
// has arrived, and the handler can read a body of any length while it arrives. The middleware verifies the body on the
// way. A body that differs from its digest, or breaks off, is a fault of the client, so the middleware stores no answer
// to such a body.
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

// Middleware guards handlers as an [idempotency.Middleware] does, but streams bodies with a digest instead of holding
// them in memory. The adapters for echo and gin accept a Middleware as well. For [idempotency.Middleware.Status], make a
// further Middleware by [idempotency.New] with the same store, user and options.
type Middleware struct {
	idem         *idempotency.Middleware // not embedded, because the Handler of idem verifies no body
	writeRefusal func(http.ResponseWriter, *http.Request, *idempotency.Error)
}

// New returns a Middleware. The parameters and the error are those of [idempotency.New]. MaxBody, MaxBodies and
// Fingerprint of opts do not apply to bodies with a digest. Limit these bodies by an [http.MaxBytesHandler], inside or
// outside of the Middleware.
func New(store idempotency.Store, user idempotency.UserFunc, opts idempotency.Options) (*Middleware, error) {
	fingerprintBody := opts.Fingerprint
	if fingerprintBody == nil {
		fingerprintBody = idempotency.FingerprintRaw
	}
	opts.Fingerprint = func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		pending, _ := r.Context().Value(uploadKey{}).(*pendingUpload)
		if pending == nil {
			return fingerprintBody(r, body)
		}
		content, err := pending.digests.fingerprintContent()
		if err != nil {
			return idempotency.Fingerprint{}, err
		}
		return idempotency.FingerprintRaw(r, content)
	}
	idem, err := idempotency.New(store, user, opts)
	if err != nil {
		return nil, err
	}
	m := &Middleware{idem: idem, writeRefusal: opts.ErrorHandler}
	if m.writeRefusal == nil {
		m.writeRefusal = idempotency.WriteProblem
	}
	if refuse := m.writeRefusal; opts.ProblemBase != "" {
		m.writeRefusal = func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			if e.Type == "" {
				e.Type = opts.ProblemBase + e.Code
			}
			refuse(w, r, e)
		}
	}
	return m, nil
}

// Shutdown is Shutdown of [idempotency.Middleware]. Call Shutdown before the program ends.
func (m *Middleware) Shutdown(ctx context.Context) error { return m.idem.Shutdown(ctx) }

// Handler guards next, as Handler of [idempotency.Middleware] does. For a guarded request with a Content-Digest of
// sha-256 or sha-512, there are two differences:
//
//   - next reads the body while the client sends it. If the body differs from a digest, the last read returns an error in
//     place of [io.EOF]. So next must not take effect before it has read the end of the body.
//   - The answer of next is kept only if the whole body was right. Before an answer below 400 begins, the Middleware
//     reads the rest of the body. If the body was wrong, the client gets 400 body-invalid in place of the answer, or 413
//     body-too-large if a limit has ended the body. The type of the problem is the registered digest-mismatching-values
//     if the body differs from a digest. The Middleware releases the operation in both cases, and also if next
//     answers 400 or more before the end of the body, unless next has decided [idempotency.Unknown].
//
// A client that falls silent in the middle of the body holds the key until a read fails, so set ReadTimeout of the
// server, or a read deadline with [http.ResponseController]. Such a client holds no connection of the store, because the
// lease is renewed from time to time. A retry sends the whole body again, because an upload cannot be resumed.
//
// A malformed Content-Digest is refused with 400 body-invalid. If a digest has the wrong length, the type of the problem
// is the registered digest-invalid-values. A digest in a trailer is ignored. The body of a request without a digest is
// read into memory, up to MaxBody, and its fingerprint is made of the body. A retry of an upload must therefore have the
// same digest as the first request.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	guarded := m.idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := r.Context().Value(uploadKey{}).(*pendingUpload)
		if u == nil {
			next.ServeHTTP(w, r)
			return
		}
		if _, ok := idempotency.FromContext(r.Context()); !ok { // the request has no key
			next.ServeHTTP(w, u.original)
			return
		}
		full, body := u.withBody(r)
		defer func() { u.original.MultipartForm = full.MultipartForm }() // so that the server removes its files
		m.serveVerified(next, w, full, body)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := parseDigests(r.Header.Values("Content-Digest"))
		if d.areEmpty() {
			guarded.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, (&pendingUpload{r, d}).withoutBody())
	})
}

// serveVerified runs next, and keeps no answer to a wrong body.
func (m *Middleware) serveVerified(next http.Handler, w http.ResponseWriter, r *http.Request, b *verifiedBody) {
	ctx, headerBefore := r.Context(), w.Header().Clone()
	held := &verifyingWriter{ResponseWriter: w, verifyBody: func(status int) *idempotency.Error {
		if status < 400 {
			_, _ = io.Copy(io.Discard, b)
		}
		return judgeBody(ctx, b)
	}}
	next.ServeHTTP(held, r)
	if ctx.Err() == nil { // after the end of ctx, outer middleware answers
		held.beginAnswer(http.StatusOK)
	}
	_ = judgeBody(ctx, b) // next may have decided since the answer began
	if held.refusal != nil {
		clear(w.Header())
		maps.Copy(w.Header(), headerBefore)
		m.writeRefusal(w, r, held.refusal)
	}
}

// judgeBody returns the refusal of a wrong body, or nil. Unless the whole body was right, judgeBody also makes sure that no
// answer is kept.
func judgeBody(ctx context.Context, b *verifiedBody) *idempotency.Error {
	err := b.readEnd()
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

// refusalFor returns the refusal of a body that ended with err.
func refusalFor(err error) *idempotency.Error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &idempotency.Error{
			Status: http.StatusRequestEntityTooLarge, Code: "body-too-large", Title: "Request body is too large",
			Detail: "Its answer does not count. Send a smaller body.",
			Retry:  idempotency.RetryNever, Err: fmt.Errorf("%w: %w", idempotency.ErrBodyTooLarge, err),
		}
	}
	refusal := &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Title: "Request body could not be read",
		Detail: "It broke off. Retry with the same key and the whole body.",
		Retry:  idempotency.RetrySameKey, Err: fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err),
	}
	if err == errDiffers {
		refusal.Type, refusal.Title = typeMismatchingDigest, "Mismatching digest values"
		refusal.Detail = "The body differs from its Content-Digest. Retry with the same key and the whole body."
	}
	return refusal
}

// pendingUpload is a request whose body the idempotency middleware must not read.
type pendingUpload struct {
	original *http.Request
	digests  digests
}

// uploadKey is the context key of the pendingUpload.
type uploadKey struct{}

// withoutBody returns the original request without its body.
func (u *pendingUpload) withoutBody() *http.Request {
	r := u.original.WithContext(context.WithValue(u.original.Context(), uploadKey{}, u))
	r.Body, r.ContentLength = http.NoBody, 0
	return r
}

// withBody returns r with the original body, which is verified while it is read.
func (u *pendingUpload) withBody(r *http.Request) (*http.Request, *verifiedBody) {
	b := &verifiedBody{source: u.original.Body, digestChecks: u.digests.newChecks()}
	// A second Middleware within this one must not find the upload, because this one verifies the body.
	r = r.WithContext(context.WithValue(r.Context(), uploadKey{}, nil))
	r.Body, r.ContentLength = b, u.original.ContentLength
	ctx := r.Context()
	b.onFault = func() { // decides at once, because an adapter may ask for the decision before the answer begins
		if _, decided := idempotency.Decided(ctx); !decided {
			idempotency.Decide(ctx, idempotency.Free)
		}
	}
	return r, b
}
