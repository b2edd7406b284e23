// Package webhook receives webhooks: deliveries that their sender signs, and repeats until it is told that they have
// arrived. A [Receiver] checks the signature, and runs the handler for each delivery until it has succeeded:
//
//	hooks, err := webhook.New(store, webhook.Stripe(secret), idempotency.Options{})
//	mux.Handle("POST /webhooks/stripe", hooks.Handler(book))
//
// It is an [idempotency.Middleware] with a check in front and other defaults. The ID of the delivery is the key, in place
// of Idempotency-Key. Nothing else tells deliveries apart ([fingerprint.None]), because a sender may write one event in
// several ways: Stripe's pending_webhooks changes. Only an answer of 200 to 299 is kept, see Options.Storable. So a delivery
// that fails because of a bug succeeds once the bug is mended. What the failed run has done then happens again, unless the
// store is transactional, or the handler finds it by the ID of the [idempotency.Operation].
//
// # What senders are told
//
// The handler's answers pass as they are. All these senders take 2xx for success, and everything else for a failure. Stripe,
// Shopify and those of Standard Webhooks then try again, for hours or days. GitHub does not: somebody must
// have it deliver again.
//
//	answer                 situation
//	the handler's          first delivery, or the one before failed
//	the stored one         the delivery has succeeded before. Its status alone, if its body was not kept
//	503 with Retry-After   another attempt is in progress, or the store is down
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
// Webhooks sign with both in that time.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// ErrSignature is why a delivery is refused whose sender could not be verified: its signature is missing, wrong, or too
// old. The error that Options.ErrorHandler and Options.Observer get wraps it and the error of Sender.Verify.
var ErrSignature = errors.New("webhook: signature is missing, wrong, or too old")

// Receiver runs a handler for each delivery of a [Sender], until it has succeeded. It is safe for concurrent use.
type Receiver struct {
	idem   *idempotency.Middleware
	sender Sender
	opts   idempotency.Options
}

// New returns a Receiver of deliveries by sender that keeps its records in store. The error reports every fault at once.
//
// Options are those of [idempotency.New] with other defaults: TTL and MaxBody are those of the sender, and Storable keeps
// 200 to 299. ErrorHandler gets the refusals of the Receiver, too, with the status that the sender is told. Headers,
// Methods and Fingerprint must be unset. MaxBodies counts a body only once its signature has been checked. Receivers may
// share a store with each other and with a Middleware: the endpoint is a part of the key, by default its path.
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
	if opts.Storable == nil {
		opts.Storable = func(answer *idempotency.Response) bool { return isSuccess(answer.Status) }
	}
	if opts.ErrorHandler == nil {
		opts.ErrorHandler = idempotency.WriteProblem
	}
	rc := &Receiver{sender: sender, opts: opts}
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
		delivery, refusal := rc.verified(w, r)
		if refusal == nil {
			guarded.ServeHTTP(w, delivery)
			return
		}
		if rc.opts.Observer != nil {
			rc.opts.Observer(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeRejected, Err: refusal})
		}
		rc.refuse(w, r, refusal)
	})
}

// Shutdown is [idempotency.Middleware.Shutdown].
func (rc *Receiver) Shutdown(ctx context.Context) error { return rc.idem.Shutdown(ctx) }

// verified returns a request with the ID of the delivery as its key, if the sender has signed it.
func (rc *Receiver) verified(w http.ResponseWriter, r *http.Request) (*http.Request, *idempotency.Error) {
	if r.Method != http.MethodPost { // a key has the method: the same delivery could run once for each
		return nil, &idempotency.Error{Status: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {http.MethodPost}}}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, rc.opts.MaxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, &idempotency.Error{Status: http.StatusRequestEntityTooLarge,
			Err: fmt.Errorf("%w: %w", idempotency.ErrBodyTooLarge, err)}
	}
	if err != nil {
		return nil, &idempotency.Error{Status: http.StatusBadRequest,
			Err: fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err)}
	}
	id, err := rc.sender.Verify(r.Header, body)
	if err != nil {
		return nil, &idempotency.Error{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Signature"}},
			Detail: "The signature is missing, wrong, or too old.", Err: fmt.Errorf("%w: %w", ErrSignature, err)}
	}
	delivery := r.Clone(r.Context())
	delivery.Body, delivery.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	delivery.Header.Set("Idempotency-Key", id) // whatever was sent under this name
	return delivery, nil
}

// refuse answers a delivery that the handler does not see: with success if it has succeeded before, else with a status by
// which every sender knows a failure that may pass.
func (rc *Receiver) refuse(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	if errors.Is(e, idempotency.ErrNotReplayable) && isSuccess(e.OriginalStatus) {
		w.WriteHeader(e.OriginalStatus)
		return
	}
	told := *e
	if told.Status == http.StatusConflict || told.Status == http.StatusTooManyRequests {
		told.Status = http.StatusServiceUnavailable
	}
	rc.opts.ErrorHandler(w, r, &told)
}

func (rc *Receiver) user(*http.Request) (string, error) { return rc.sender.Name, nil }

func isSuccess(status int) bool { return status >= 200 && status <= 299 }
