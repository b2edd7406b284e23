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
	// [idempotency.OutcomeNotHappened]. Its Note has the operator and the reason. Nil means no observer. Give it that of the
	// service, so that it is counted with the others.
	Observer idempotency.Observer

	// Logger is told of each resolution. Nil means [slog.Default] at the time of the event.
	Logger *slog.Logger
}

// By says who resolves an operation, and why.
type By struct {
	Operator string
	Reason   string
}

// Note returns the note that stays in the record: "operator: reason". It is [idempotency.Response.Note] of an answer, and
// [idempotency.Entry.Note] in any case. It is never sent to a client.
//
// A note is ASCII, so any other character is written as in Go, such as \u00e9. The error says that operator or reason is
// empty, or that both together have more than 253 bytes.
func (by By) Note() (string, error) {
	operator, reason := ascii(by.Operator), ascii(by.Reason)
	note := operator + ": " + reason
	switch {
	case operator == "":
		return "", errors.New("idempotency: resolve: no operator")
	case reason == "":
		return "", errors.New("idempotency: resolve: no reason")
	case len(note) > 255:
		return "", fmt.Errorf("idempotency: resolve: operator and reason have %d bytes together, more than 253", len(note)-len(": "))
	}
	return note, nil
}

// ascii returns s without spaces around it, and with all that is not visible ASCII escaped.
func ascii(s string) string {
	var b strings.Builder
	for _, r := range strings.TrimSpace(s) {
		if r >= ' ' && r <= '~' {
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
// Retries get resp, and the handler does not run. If resp is Omitted, they get not-replayable with its status. The Note of resp is overwritten.
//
// The error is one of [idempotency.Resolver], or says what is wrong with resp or by. Nothing is changed then, unless the
// store has failed.
func (r *Resolver) Happened(ctx context.Context, entry idempotency.Entry, resp idempotency.Response, by By) error {
	note, err := by.Note()
	if int64(len(resp.Body)) > r.opts.MaxResponse {
		err = errors.Join(err, fmt.Errorf("idempotency: resolve: the body has %d bytes, more than %d", len(resp.Body), r.opts.MaxResponse))
	}
	if err != nil {
		return err
	}
	resp.Note = note
	return r.resolve(ctx, entry, idempotency.Resolution{Response: &resp}, note)
}

// NotHappened ends the operation of an entry that the store's Inspect or InspectDigest has returned: it has had no effect.
// The next request with the key runs the handler, if it is the same request. The results of its steps are kept. Errors
// are as for [Resolver.Happened].
func (r *Resolver) NotHappened(ctx context.Context, entry idempotency.Entry, by By) error {
	note, err := by.Note()
	if err != nil {
		return err
	}
	return r.resolve(ctx, entry, idempotency.Resolution{Note: note}, note)
}

func (r *Resolver) resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution, note string) error {
	resolution.TTL = cmp.Or(r.opts.TTL, max(24*time.Hour, entry.Remaining))
	if err := resolution.Validate(); err != nil {
		return err
	}
	began := time.Now()
	if err := r.store.Resolve(ctx, entry, resolution); err != nil {
		return err
	}
	event := idempotency.Event{
		Outcome: idempotency.OutcomeNotHappened, Key: entry.Key, Operation: entry.OperationID(), Attempt: entry.Attempt,
		Began: began, Total: time.Since(began), Note: note,
	}
	if resp := resolution.Response; resp != nil {
		event.Outcome, event.Status, event.Omitted = idempotency.OutcomeHappened, resp.Status, resp.Omitted
		event.Stored = len(resp.Header) + len(resp.Trailer) + len(resp.Body)
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
	attributes = append(attributes, slog.String("note", event.Note))
	log.LogAttrs(ctx, slog.LevelInfo, "idempotency: "+string(event.Outcome), attributes...)
}
