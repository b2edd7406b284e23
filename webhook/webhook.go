// Package webhook receives webhooks: deliveries that their sender signs, and repeats until it is told that they have
// arrived. A [Receiver] checks the signature, and runs the handler for each delivery until it has succeeded:
//
//	hooks, err := webhook.New(store, webhook.Stripe(secret), idempotency.Options{})
//	mux.Handle("POST /webhooks/stripe", hooks.Handler(book))
//
// A Receiver is an [idempotency.Middleware] with a check in front and other defaults. The key is the name of the sender and
// the ID of the delivery, in place of Idempotency-Key. Nothing else tells deliveries apart. The path does not, because
// senders do not sign it, and one path can be written in several ways. The body does not ([fingerprint.None]), because a
// sender may write one event in several ways: Stripe's pending_webhooks changes.
//
// Only an answer of 200 to 299 is kept, see Options.Storable. So a delivery that fails because of a bug succeeds once the
// bug is mended. The effects of the failed run then happen again, except for steps whose result is stored, and for effects that the
// handler finds by the ID of the [idempotency.Operation].
//
// # What senders are told
//
// The handler's answers pass as they are. All these senders take 2xx for success, and everything else for a failure. Stripe,
// Shopify and those of Standard Webhooks then try again, for hours or days. GitHub does not: somebody must
// have it deliver again.
//
//	answer                 situation
//	the handler's          first delivery, or the one before failed
//	the stored one         the delivery has succeeded before. Its status alone, if its body was not kept, or 200 if the
//	                       store does not vouch for the status, as package seal in front of a store without room
//	503 with Retry-After   another attempt is in progress, the store is down, or too many deliveries arrive at once
//	503                    the outcome of an attempt is unknown (Options.Abandoned is Refuse): until an operator, or
//	                       Options.Reconcile, says what has happened
//	401                    the signature is missing, wrong, or too old. Shopify demands this status
//	400                    the delivery has no ID, or its body breaks off
//	405, 413               it is no POST, or its body is larger than Options.MaxBody
//
// A Receiver never answers 410, by which a sender of Standard Webhooks disables the endpoint, nor 409 or 429: to
// some senders a 4xx means that they should not try again. Senders also give up on endpoints that fail for long: Shopify
// removes a subscription after 8 failures in a row. So answer fast: Shopify waits for 5 seconds, GitHub for 10. If the
// sender has hung up, the handler goes on, and the next attempt gets its answer. Put long work into a queue, and answer 202.
//
// # Secrets that change
//
// Give the new secret and the old one to the Receiver, then change it at the sender, and later take the old one away. The
// senders go on with the old one for a while: Shopify for up to an hour. Stripe, if it is told to, and those of Standard
// Webhooks sign with both in that time. Public keys change in the same way, and a sender may change from a secret to a
// public key.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// ErrSignature is why a delivery is refused whose sender could not be verified: its signature is missing, wrong, or too
// old. The error that Options.ErrorHandler and Options.Observer get wraps it and the error of Sender.Verify.
var ErrSignature = errors.New("webhook: signature is missing, wrong, or too old")

// Receiver runs a handler for each delivery of a [Sender], until it has succeeded. It is safe for concurrent use.
type Receiver struct {
	idem       *idempotency.Middleware
	sender     Sender
	opts       idempotency.Options
	unverified bounds.Shares // bytes of bodies whose signature has not been checked yet
}

// defaultUnverified is the budget for unverified bodies if Options.MaxBodies is zero. It has room for five bodies of 25 MiB,
// the largest of GitHub, which does not repeat a delivery that was refused.
const defaultUnverified = 128 << 20

// New returns a Receiver of deliveries by sender that keeps its records in store. The error reports every fault at once.
//
// Options are those of [idempotency.New] with other defaults and meanings:
//
//   - TTL and MaxBody are those of the sender. Storable keeps 200 to 299.
//   - Endpoint is "webhook" for all deliveries. Receivers may share a store with a Middleware, and with each other. If their
//     senders have the same Name, a delivery that one of them has received is known to all of them.
//   - MaxBodies limits the bodies of verified deliveries, and in a second budget of the same size the bodies whose signature
//     is not checked yet. Beyond that, a delivery is refused with 503 and Retry-After. Zero means no limit for the former,
//     and for the latter 128 MiB, or the buffer of a body of MaxBody if that is more.
//   - MaxUserBodies is MaxBodies, because the sender is the only user. For the same reason, set MaxUserBytes of a
//     [idempotency.MemoryStore] to its MaxBytes.
//   - ErrorHandler gets the refusals of the Receiver, too, with the status that the sender is told.
//   - Headers, Methods and Fingerprint must be unset.
//
// A body counts as unverified until all of it has arrived. So set ReadTimeout of the [http.Server], because otherwise
// strangers who send slowly can keep the room for a long time.
func New(store idempotency.Store, sender Sender, opts idempotency.Options) (*Receiver, error) {
	fault := sender.fault
	if sender.Name == "" || sender.Verify == nil {
		fault = errors.Join(fault, errors.New("webhook: the sender has no Name or no Verify"))
	}
	if opts.Headers != nil || opts.Methods != nil || opts.Fingerprint != nil {
		fault = errors.Join(fault, errors.New("webhook: Headers, Methods and Fingerprint follow from the sender"))
	}
	opts.TTL = cmp.Or(opts.TTL, sender.TTL)
	opts.MaxBody = cmp.Or(opts.MaxBody, sender.MaxBody, 1<<20)
	opts.MaxUserBodies = cmp.Or(opts.MaxUserBodies, opts.MaxBodies)
	if opts.Endpoint == nil {
		opts.Endpoint = func(*http.Request) string { return "webhook" }
	}
	if opts.Storable == nil {
		opts.Storable = func(answer *idempotency.Response) bool { return isSuccess(answer.Status) }
	}
	if opts.ErrorHandler == nil {
		opts.ErrorHandler = idempotency.WriteProblem
	}
	unverified := cmp.Or(opts.MaxBodies, max(defaultUnverified, bounds.Room(opts.MaxBody)))
	rc := &Receiver{sender: sender, opts: opts, unverified: bounds.Shares{Total: unverified, Each: unverified}}
	opts.Required, opts.ErrorHandler, opts.Fingerprint = true, rc.refuse, fingerprint.None
	idem, err := idempotency.New(store, rc.user, opts)
	if err := errors.Join(fault, err); err != nil {
		return nil, err
	}
	rc.idem = idem
	return rc, nil
}

// Handler guards next. Mount it inside the router. Nothing outside of it may read the body: the signature would be wrong.
// In next, the ID of the delivery is Key.ID of the operation that [idempotency.FromContext] returns.
func (rc *Receiver) Handler(next http.Handler) http.Handler {
	guarded := rc.idem.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := &deliveryBody{budget: &rc.unverified}
		defer body.Close()
		delivery, refusal := rc.verify(r, body)
		if refusal == nil {
			defer func() { r.MultipartForm = delivery.MultipartForm }() // so that the server removes its files
			guarded.ServeHTTP(w, delivery)
			return
		}
		body.Close()
		if rc.opts.Observer != nil {
			rc.opts.Observer(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeRejected, Err: refusal})
		}
		rc.refuse(w, r, refusal)
	})
}

// Shutdown is [idempotency.Middleware.Shutdown].
func (rc *Receiver) Shutdown(ctx context.Context) error { return rc.idem.Shutdown(ctx) }

// verify reads the body of r into body. If the sender has signed the delivery, verify returns a request that has the ID of
// the delivery as its key, and body as its body.
func (rc *Receiver) verify(r *http.Request, body *deliveryBody) (*http.Request, *idempotency.Error) {
	if r.Method != http.MethodPost { // a key has the method: the same delivery could run once for each
		return nil, &idempotency.Error{Status: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {http.MethodPost}}}
	}
	if refusal := rc.read(r, body); refusal != nil {
		return nil, refusal
	}
	id, err := rc.sender.Verify(r.Header, body.unread)
	if err != nil {
		return nil, &idempotency.Error{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Signature"}},
			Detail: "The signature is missing, wrong, or too old.", Err: fmt.Errorf("%w: %w", ErrSignature, err)}
	}
	delivery := r.Clone(r.Context())
	delivery.Body, delivery.ContentLength = body, int64(len(body.unread))
	delivery.Header.Set("Idempotency-Key", id) // whatever was sent under this name
	return delivery, nil
}

// read reads the body of r into body, within the budget for unverified bodies.
func (rc *Receiver) read(r *http.Request, body *deliveryBody) *idempotency.Error {
	var err error
	body.buffer, err = bounds.ReadBody(r, rc.opts.MaxBody, &rc.unverified, "")
	body.unread = body.buffer.B
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bounds.ErrNoRoom):
		return &idempotency.Error{Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Detail: "Too many deliveries arrive at once. Deliver this one again later.",
			Err:    fmt.Errorf("%w: signature not checked yet", idempotency.ErrOverloaded)}
	case errors.Is(err, bounds.ErrTooLarge):
		return &idempotency.Error{Status: http.StatusRequestEntityTooLarge,
			Err: fmt.Errorf("%w: %w", idempotency.ErrBodyTooLarge, err)}
	default:
		return &idempotency.Error{Status: http.StatusBadRequest,
			Err: fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err)}
	}
}

// deliveryBody is the body of a delivery. It is in the budget for unverified bodies until the Middleware has copied it into
// its own budget, so that a handler that runs for long takes no room from deliveries that arrive. A refused delivery leaves
// the budget before its answer goes out, because its sender may read slowly.
type deliveryBody struct {
	budget *bounds.Shares

	mu     sync.Mutex
	buffer *bounds.Buffer // nil once the room is given back
	unread []byte         // of the buffer
}

func (b *deliveryBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.unread)
	b.unread = b.unread[n:]
	if len(b.unread) > 0 {
		return n, nil
	}
	b.giveBack()
	return n, io.EOF
}

// Close gives the room of the body back. What is unread is lost.
func (b *deliveryBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveBack()
	return nil
}

func (b *deliveryBody) giveBack() {
	if b.buffer == nil {
		return
	}
	b.budget.GiveBack("", int64(cap(b.buffer.B)))
	b.buffer.Free()
	b.buffer, b.unread = nil, nil
}

// refuse answers a delivery that the handler does not see: with success if the delivery has succeeded before, else with a
// status by which every sender knows a failure that may pass.
//
// Package seal reports the status zero if the store behind it had no room for the sealed answer, because the status is not
// authenticated then. Such a delivery is completed and never runs again, so the sender is told a success: if it were told
// a failure, it would repeat the delivery until it gives up.
func (rc *Receiver) refuse(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	if errors.Is(e, idempotency.ErrNotReplayable) {
		if status := cmp.Or(e.OriginalStatus, http.StatusOK); isSuccess(status) {
			w.WriteHeader(status)
			return
		}
	}
	if body, ok := r.Body.(*deliveryBody); ok {
		body.Close()
	}
	told := *e
	if told.Status == http.StatusConflict || told.Status == http.StatusTooManyRequests {
		told.Status = http.StatusServiceUnavailable
	}
	rc.opts.ErrorHandler(w, r, &told)
}

func (rc *Receiver) user(*http.Request) (string, error) { return rc.sender.Name, nil }

func isSuccess(status int) bool { return status >= 200 && status <= 299 }
