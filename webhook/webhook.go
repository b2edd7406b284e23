// Package webhook receives webhooks: signed deliveries that their sender repeats until the receiver acknowledges them. A
// [Receiver] checks the signature, and runs the handler for each delivery until the handler has succeeded:
//
//	hooks, err := webhook.New(store, webhook.Stripe(secret), idempotency.Options{})
//	mux.Handle("POST /webhooks/stripe", hooks.Handler(book))
//
// A Receiver is an [idempotency.Middleware] with different defaults, behind a check of the signature. In place of
// Idempotency-Key, the key is the name of the sender and the ID of the delivery. Only the key tells deliveries apart:
//
//   - The path does not count, because senders do not sign the path, and because a path can be written in several ways.
//   - The body does not count ([fingerprint.None]), because a sender may write an event in several ways. For example,
//     Stripe's pending_webhooks changes.
//
// Only answers of 200 to 299 are kept (see Options.Storable), so a delivery that fails because of a bug succeeds after
// the bug is fixed. The effects of the failed run then happen again, except for steps with a stored result, and for
// effects that the handler finds by the ID of the [idempotency.Operation].
//
// # What senders are told
//
// The Receiver passes the answers of the handler unchanged. All of these senders treat 2xx as a success, and all other
// statuses as a failure. After a failure, Stripe, Shopify and senders of Standard Webhooks try again, for hours or days.
// At GitHub, somebody must redeliver by hand.
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
// A Receiver never answers 410, because a sender of Standard Webhooks then disables the endpoint, nor 409 or 429, because
// some senders give up after a 4xx. Senders also give up on endpoints that fail for long: Shopify removes a subscription
// after 8 failures in a row.
//
// Answer fast, because Shopify waits for 5 seconds and GitHub for 10. If the sender has hung up, the handler continues,
// and the next attempt gets the answer. Put long work into a queue, and answer 202.
//
// # Secrets that change
//
// To change a secret, give the new and the old secret to the Receiver, then change the secret at the sender, and remove
// the old secret later. Senders use the old secret for a while: Shopify for up to an hour. Stripe, on request, and
// senders of Standard Webhooks sign with both secrets in that time. Public keys change in the same way, and a sender may
// change from a secret to a public key.
package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// ErrSignature is the reason for the refusal of a delivery whose signature is missing, wrong, or too old.
// Options.ErrorHandler and Options.Observer get an error that wraps ErrSignature and the error of Sender.Verify.
var ErrSignature = errors.New("webhook: signature is missing, wrong, or too old")

// Receiver runs a handler for each delivery of a [Sender] until the handler has succeeded. A Receiver is safe for
// concurrent use.
type Receiver struct {
	middleware       *idempotency.Middleware
	sender           Sender
	opts             idempotency.Options
	unverifiedBudget bounds.Shares // for bodies whose signature is not checked yet
}

// defaultUnverifiedBudget is the budget for unverified bodies if Options.MaxBodies is zero. It has room for five bodies
// of 25 MiB, the largest bodies of GitHub, which does not repeat a refused delivery.
const defaultUnverifiedBudget = 128 << 20

// New returns a Receiver for the deliveries of sender, whose records are kept in store. The error joins all faults of
// sender and opts.
//
// The options are those of [idempotency.New], with these defaults and meanings:
//
//   - TTL and MaxBody default to those of sender. Storable defaults to 200 to 299.
//   - Endpoint defaults to "webhook" for all deliveries. Receivers may share a store with a Middleware, and with each
//     other. If the senders of two Receivers have the same Name, a delivery that one Receiver has received is known to
//     the other.
//   - MaxBodies is the budget for the bodies of verified deliveries. Bodies whose signature is not checked yet have a
//     second budget of the same size. If a budget is used up, the Receiver refuses a delivery with 503 and Retry-After.
//     Zero means no limit for verified bodies. For unverified bodies, zero means 128 MiB, or the buffer of a body of
//     MaxBody if that is larger.
//   - MaxUserBodies defaults to MaxBodies, because the sender is the only user. For the same reason, set MaxUserBytes of
//     a [idempotency.MemoryStore] to its MaxBytes.
//   - ErrorHandler also gets the refusals of the Receiver, with the status that the sender is told.
//   - Headers, Methods and Fingerprint must be unset.
//
// A body counts as unverified until all of it has arrived. Set ReadTimeout of the [http.Server], because otherwise
// attackers who send slowly can occupy the budget for a long time.
func New(store idempotency.Store, sender Sender, opts idempotency.Options) (*Receiver, error) {
	faults := sender.secretFaults
	if sender.Name == "" || sender.Verify == nil {
		faults = errors.Join(faults, errors.New("webhook: the sender has no Name or no Verify"))
	}
	if opts.Headers != nil || opts.Methods != nil || opts.Fingerprint != nil {
		faults = errors.Join(faults, errors.New("webhook: Headers, Methods and Fingerprint follow from the sender: leave them unset"))
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
	unverified := cmp.Or(opts.MaxBodies, max(defaultUnverifiedBudget, bounds.Room(opts.MaxBody)))
	rc := &Receiver{sender: sender, opts: opts, unverifiedBudget: bounds.Shares{Total: unverified, Each: unverified}}
	opts.Required, opts.ErrorHandler, opts.Fingerprint = true, rc.writeRefusal, fingerprint.None
	idem, err := idempotency.New(store, rc.senderName, opts)
	if err := errors.Join(faults, err); err != nil {
		return nil, err
	}
	rc.middleware = idem
	return rc, nil
}

// Handler guards next. Mount Handler inside the router, and let nothing outside of Handler read the body, because the
// signature covers the whole body. In next, the ID of the delivery is Key.ID of the operation that
// [idempotency.FromContext] returns.
func (rc *Receiver) Handler(next http.Handler) http.Handler {
	guarded := rc.middleware.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := bounds.NewBody(&rc.unverifiedBudget, "") // a refused delivery leaves the budget before its answer is sent
		defer body.Close()
		delivery, refusal := rc.verifyDelivery(r, body)
		if refusal == nil {
			defer func() { r.MultipartForm = delivery.MultipartForm }() // lets the server remove the temporary files
			guarded.ServeHTTP(w, delivery)
			return
		}
		body.Close()
		if rc.opts.Observer != nil {
			rc.opts.Observer(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeRejected, Err: refusal})
		}
		rc.writeRefusal(w, r, refusal)
	})
}

// Shutdown is [idempotency.Middleware.Shutdown].
func (rc *Receiver) Shutdown(ctx context.Context) error { return rc.middleware.Shutdown(ctx) }

// verifyDelivery reads the body of r into body, and checks the signature. The returned request has the ID of the delivery
// as its key, and body as its body.
func (rc *Receiver) verifyDelivery(r *http.Request, body *bounds.Body) (*http.Request, *idempotency.Error) {
	if r.Method != http.MethodPost { // the method is part of a key, so a delivery could run once for each method
		return nil, &idempotency.Error{Status: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {http.MethodPost}}}
	}
	if refusal := rc.readBody(r, body); refusal != nil {
		return nil, refusal
	}
	content := body.Bytes()
	id, err := rc.sender.Verify(r.Header, content)
	if err != nil {
		return nil, &idempotency.Error{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {"Signature"}},
			Detail: "The signature is missing, wrong, or too old.", Err: fmt.Errorf("%w: %w", ErrSignature, err)}
	}
	delivery := r.Clone(r.Context())
	delivery.Body, delivery.ContentLength = body, int64(len(content))
	delivery.Header.Set("Idempotency-Key", id) // replaces a header that the sender has set
	return delivery, nil
}

// readBody reads the body of r into body, within the budget for unverified bodies.
func (rc *Receiver) readBody(r *http.Request, body *bounds.Body) *idempotency.Error {
	err := body.ReadRequest(r, rc.opts.MaxBody)
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

// writeRefusal answers a delivery that the handler does not get. If the delivery has succeeded before, the answer is a
// success. Otherwise the answer is a status that every sender treats as a failure that may pass.
//
// Package seal reports the status zero if the store behind it had no room for the sealed answer, because the status is
// not authenticated in that case. Such a delivery is completed and never runs again, so writeRefusal answers with
// success. After a failure, the sender would repeat the delivery until it gives up.
func (rc *Receiver) writeRefusal(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	if errors.Is(e, idempotency.ErrNotReplayable) {
		if status := cmp.Or(e.OriginalStatus, http.StatusOK); isSuccess(status) {
			w.WriteHeader(status)
			return
		}
	}
	if body, ok := r.Body.(*bounds.Body); ok {
		body.Close()
	}
	told := *e
	if told.Status == http.StatusConflict || told.Status == http.StatusTooManyRequests {
		told.Status = http.StatusServiceUnavailable
	}
	rc.opts.ErrorHandler(w, r, &told)
}

func (rc *Receiver) senderName(*http.Request) (string, error) { return rc.sender.Name, nil }

func isSuccess(status int) bool { return status >= 200 && status <= 299 }
