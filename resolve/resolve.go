// Package resolve lets an operator end operations whose outcome is unknown.
//
// With Abandoned: [idempotency.Refuse], the middleware refuses an operation whose owner has died until its record
// expires. An operator can end such an operation earlier. The operator first asks the system that has the effects, for
// example a payment provider, whether the effect has happened:
//
//   - It has happened: the operator gives the answer that retries get from now on.
//   - It has not happened: the next request runs the operation again.
//
// In Go:
//
//	resolver, err := resolve.New(store, resolve.Options{})
//	entry, err := store.Inspect(ctx, key)
//	by := resolve.By{Operator: "alice", Reason: "charge ch_17 is in the provider's list"}
//	err = resolver.Happened(ctx, entry, idempotency.Response{Status: 201, Body: receipt}, by)
//	// or, if the provider has no such charge: err = resolver.NotHappened(ctx, entry, by)
//
// Only an abandoned operation can be resolved. The record keeps its fingerprint, so a changed request is still refused.
//
// [EraseUser] removes all records of a user, unless an attempt is running.
package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/idempotency-go/idempotency"
)

// Options are the settings of a [Resolver]. The zero value of each field is its default.
type Options struct {
	// TTL is how long the store keeps the record after its resolution. Zero means 24 hours (the default of
	// idempotency.Options.TTL), or the remaining TTL of the record if that is longer.
	TTL time.Duration

	// MaxResponse is the largest body of an answer, in bytes. Happened returns an error for a larger body. Zero means 1
	// MiB.
	MaxResponse int64

	// Observer receives an event for each resolution, with [idempotency.OutcomeHappened] or
	// [idempotency.OutcomeNotHappened], and with the operator, the time and the reason in Resolved. Pass the observer of
	// the service, so that its metrics count resolutions as well. Nil means no observer.
	Observer idempotency.Observer

	// Logger logs each resolution with operator and reason. Nil means [slog.Default] at the time of the event.
	Logger *slog.Logger
}

// By names the operator who resolves an operation, and the reason. The record keeps both (see
// [idempotency.Entry.Resolved]). Clients never see them.
type By struct {
	Operator string
	Reason   string
}

// Clean returns by in its stored form: without surrounding spaces, and with invisible characters escaped as in Go, for
// example \n. Clean returns an error if operator or reason is empty, or has more than [idempotency.MaxOperator] or
// [idempotency.MaxReason] bytes.
func (by By) Clean() (By, error) {
	cleaned := By{escapeInvisible(by.Operator), escapeInvisible(by.Reason)}
	var faults []error
	if cleaned.Operator == "" {
		faults = append(faults, errors.New("idempotency: resolve: no operator"))
	}
	if cleaned.Reason == "" {
		faults = append(faults, errors.New("idempotency: resolve: no reason"))
	}
	if n := len(cleaned.Operator); n > idempotency.MaxOperator {
		faults = append(faults, fmt.Errorf("idempotency: resolve: the operator has %d bytes, more than %d", n, idempotency.MaxOperator))
	}
	if n := len(cleaned.Reason); n > idempotency.MaxReason {
		faults = append(faults, fmt.Errorf("idempotency: resolve: the reason has %d bytes, more than %d", n, idempotency.MaxReason))
	}
	return cleaned, errors.Join(faults...)
}

// escapeInvisible returns s without surrounding spaces, and with invisible characters escaped.
func escapeInvisible(s string) string {
	var b strings.Builder
	for _, r := range strings.TrimSpace(s) {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// Resolver ends abandoned operations. A Resolver is safe for concurrent use.
type Resolver struct {
	recordStore idempotency.Resolver
	opts        Options
}

// New returns a Resolver for the operations of store. The error joins all faults of store and opts. If store does not
// implement [idempotency.Resolver], the error wraps [errors.ErrUnsupported].
func New(store idempotency.Inspector, opts Options) (*Resolver, error) {
	var faults []error
	resolver, ok := store.(idempotency.Resolver)
	if !ok {
		faults = append(faults, fmt.Errorf("idempotency: resolve: a %T is no Resolver: %w", store, errors.ErrUnsupported))
	}
	if opts.TTL < 0 {
		faults = append(faults, fmt.Errorf("idempotency: resolve: TTL %v is negative", opts.TTL))
	}
	if opts.MaxResponse < 0 {
		faults = append(faults, fmt.Errorf("idempotency: resolve: MaxResponse %d is negative", opts.MaxResponse))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	opts.MaxResponse = cmp.Or(opts.MaxResponse, 1<<20)
	return &Resolver{resolver, opts}, nil
}

// Happened ends the operation of entry as an operation that has taken effect: retries get resp, and the handler does not
// run again. If resp is Omitted, retries get not-replayable with the status of resp. Pass an entry from Inspect or
// InspectOperation of the store.
//
// The error is an error of [idempotency.Resolver], or describes a fault of resp or by. Unless the store has failed, an
// error means that the record is unchanged.
func (r *Resolver) Happened(ctx context.Context, entry idempotency.Entry, resp idempotency.Response, by By) error {
	var fault error
	if int64(len(resp.Body)) > r.opts.MaxResponse {
		fault = fmt.Errorf("idempotency: resolve: the body has %d bytes, more than %d", len(resp.Body), r.opts.MaxResponse)
	}
	return r.endOperation(ctx, entry, &resp, by, fault)
}

// NotHappened ends the operation of entry as an operation without an effect: the next request with the key runs the
// handler, provided that the request has the same fingerprint. The results of steps are kept. A step of AtMostOnce runs
// again if entry shows that the step has begun and has no result. Pass an entry from Inspect or InspectOperation of
// the store. NotHappened returns the same errors as [Resolver.Happened].
func (r *Resolver) NotHappened(ctx context.Context, entry idempotency.Entry, by By) error {
	return r.endOperation(ctx, entry, nil, by, nil)
}

// endOperation resolves the operation of entry, with resp or without an effect if resp is nil, and reports the event.
// fault is an error of the caller that endOperation joins to the faults of by.
func (r *Resolver) endOperation(
	ctx context.Context, entry idempotency.Entry, resp *idempotency.Response, by By, fault error,
) error {
	by, err := by.Clean()
	if err := errors.Join(fault, err); err != nil {
		return err
	}
	startedAt := time.Now()
	resolution := idempotency.Resolution{
		Response: resp, Operator: by.Operator, Reason: by.Reason, At: startedAt,
		TTL: cmp.Or(r.opts.TTL, max(24*time.Hour, entry.Remaining)),
	}
	if err := resolution.Validate(); err != nil {
		return err
	}
	if err := r.recordStore.Resolve(ctx, entry, resolution); err != nil {
		return err
	}
	resolved := resolution.Resolved(entry)
	event := idempotency.Event{
		Outcome: idempotency.OutcomeNotHappened, Key: entry.Key, Operation: entry.Operation, Attempt: entry.Attempt,
		Began: startedAt, Total: time.Since(startedAt), Resolved: &resolved,
	}
	if resp != nil {
		event.Outcome, event.Status, event.Note = idempotency.OutcomeHappened, resp.Status, resp.Note
		event.Stored, event.Omitted = len(resp.Header)+len(resp.Trailer)+len(resp.Body), resp.Omitted
	}
	r.reportEvent(ctx, event)
	return nil
}

// reportEvent passes event to the observer and to the logger.
func (r *Resolver) reportEvent(ctx context.Context, event idempotency.Event) {
	if r.opts.Observer != nil {
		r.opts.Observer(ctx, event)
	}
	logger := r.opts.Logger
	if logger == nil {
		logger = slog.Default()
	}
	attributes := []slog.Attr{slog.String("operation", event.Operation.String()), slog.Int("attempt", event.Attempt)}
	if event.Status != 0 {
		attributes = append(attributes, slog.Int("status", event.Status))
	}
	attributes = append(attributes,
		slog.String("operator", event.Resolved.Operator), slog.String("reason", event.Resolved.Reason))
	logger.LogAttrs(ctx, slog.LevelInfo, "idempotency: "+string(event.Outcome), attributes...)
}
