// Package resolve lets an operator end operations whose outcome is unknown.
//
// With Abandoned: [idempotency.Refuse], an operation whose owner died is refused until its record expires. An operator
// asks the system that has the effects, such as a payment provider, and ends the operation in one of two ways: it has happened, with the answer
// that retries get from now on; or it has not happened, so that the next request runs it.
//
//	resolver, err := resolve.New(store, resolve.Options{})
//	entry, err := store.Inspect(ctx, key)
//	by := resolve.By{Operator: "alice", Reason: "charge ch_17 is in the provider's list"}
//	err = resolver.Happened(ctx, entry, idempotency.Response{Status: 201, Body: receipt}, by)
//	// or, if the provider does not know of it: err = resolver.NotHappened(ctx, entry, by)
//
// Only what was abandoned is resolved. The fingerprint stays: a changed request is still refused.
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
	// TTL is how long the record is kept, from its resolution. Zero means 24 hours, as for idempotency.Options.TTL, or as
	// long as the record would have been kept anyway, if that is longer.
	TTL time.Duration

	// MaxResponse is the largest body of an answer, in bytes. A larger one is an error. Zero means 1 MiB.
	MaxResponse int64

	// Observer is told of each resolution by an event with [idempotency.OutcomeHappened] or
	// [idempotency.OutcomeNotHappened], whose Resolved says who, when and why. Nil means no observer. Give it that of the
	// service, so that it is counted with the others.
	Observer idempotency.Observer

	// Logger is told of each resolution, with operator and reason. Nil means [slog.Default] at the time of the event.
	Logger *slog.Logger
}

// By says who resolves an operation, and why. Both stay in the record, see [idempotency.Entry.Resolved], and are never sent
// to a client.
type By struct {
	Operator string
	Reason   string
}

// Clean returns by as it is stored: without spaces around it, and with whatever is not visible written as in Go, such as
// \n. The error says that operator or reason is empty, or has more than [idempotency.MaxOperator] or
// [idempotency.MaxReason] bytes.
func (by By) Clean() (By, error) {
	clean := By{visible(by.Operator), visible(by.Reason)}
	var faults []error
	if clean.Operator == "" {
		faults = append(faults, errors.New("idempotency: resolve: no operator"))
	}
	if clean.Reason == "" {
		faults = append(faults, errors.New("idempotency: resolve: no reason"))
	}
	if n := len(clean.Operator); n > idempotency.MaxOperator {
		faults = append(faults, fmt.Errorf("idempotency: resolve: the operator has %d bytes, more than %d", n, idempotency.MaxOperator))
	}
	if n := len(clean.Reason); n > idempotency.MaxReason {
		faults = append(faults, fmt.Errorf("idempotency: resolve: the reason has %d bytes, more than %d", n, idempotency.MaxReason))
	}
	return clean, errors.Join(faults...)
}

// visible returns s without spaces around it, and with all that nobody sees escaped.
func visible(s string) string {
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

// Resolver ends abandoned operations. It is safe for concurrent use.
type Resolver struct {
	store idempotency.Resolver
	opts  Options
}

// New returns a Resolver for the operations of a store. It reports every fault at once. If the store is no
// [idempotency.Resolver], the error wraps [errors.ErrUnsupported].
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

// Happened ends the operation of an entry that the store's Inspect or InspectDigest has returned: it has taken effect.
// Retries get resp, and the handler does not run. If resp is Omitted, they get not-replayable with its status.
//
// The error is one of [idempotency.Resolver], or says what is wrong with resp or by. Nothing is changed then, unless the
// store has failed.
func (r *Resolver) Happened(ctx context.Context, entry idempotency.Entry, resp idempotency.Response, by By) error {
	var fault error
	if int64(len(resp.Body)) > r.opts.MaxResponse {
		fault = fmt.Errorf("idempotency: resolve: the body has %d bytes, more than %d", len(resp.Body), r.opts.MaxResponse)
	}
	return r.resolve(ctx, entry, &resp, by, fault)
}

// NotHappened ends the operation of an entry that the store's Inspect or InspectDigest has returned: it has had no effect.
// The next request with the key runs the handler, if it is the same request. The results of its steps are kept. A step of
// AtMostOnce runs again if the entry shows that it was begun and has no result. Errors are as for [Resolver.Happened].
func (r *Resolver) NotHappened(ctx context.Context, entry idempotency.Entry, by By) error {
	return r.resolve(ctx, entry, nil, by, nil)
}

func (r *Resolver) resolve(
	ctx context.Context, entry idempotency.Entry, resp *idempotency.Response, by By, fault error,
) error {
	by, err := by.Clean()
	if err := errors.Join(fault, err); err != nil {
		return err
	}
	began := time.Now()
	resolution := idempotency.Resolution{
		Response: resp, Operator: by.Operator, Reason: by.Reason, At: began,
		TTL: cmp.Or(r.opts.TTL, max(24*time.Hour, entry.Remaining)),
	}
	if err := resolution.Validate(); err != nil {
		return err
	}
	if err := r.store.Resolve(ctx, entry, resolution); err != nil {
		return err
	}
	resolved := resolution.Resolved(entry)
	event := idempotency.Event{
		Outcome: idempotency.OutcomeNotHappened, Key: entry.Key, Operation: entry.OperationID(), Attempt: entry.Attempt,
		Began: began, Total: time.Since(began), Resolved: &resolved,
	}
	if resp != nil {
		event.Outcome, event.Status, event.Note = idempotency.OutcomeHappened, resp.Status, resp.Note
		event.Stored, event.Omitted = len(resp.Header)+len(resp.Trailer)+len(resp.Body), resp.Omitted
	}
	r.report(ctx, event)
	return nil
}

func (r *Resolver) report(ctx context.Context, event idempotency.Event) {
	if r.opts.Observer != nil {
		r.opts.Observer(ctx, event)
	}
	log := r.opts.Logger
	if log == nil {
		log = slog.Default()
	}
	attributes := []slog.Attr{slog.String("operation", event.Operation.String()), slog.Int("attempt", event.Attempt)}
	if event.Status != 0 {
		attributes = append(attributes, slog.Int("status", event.Status))
	}
	attributes = append(attributes,
		slog.String("operator", event.Resolved.Operator), slog.String("reason", event.Resolved.Reason))
	log.LogAttrs(ctx, slog.LevelInfo, "idempotency: "+string(event.Outcome), attributes...)
}
