package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
)

// Outcome says what became of a request.
type Outcome string

// The outcomes. Each request that carries a key, or should have, has exactly one, with two exceptions. Unrecorded may
// be followed by one of recorded, restored and claim-lost. A request has none if a function of the service other than
// the handler panics before the handler has run, or where it does not run: a [UserFunc], for instance, Options.Replay,
// or a [Cipher] that decrypts. Such a panic goes on unchanged.
const (
	OutcomeExecuted      Outcome = "executed"          // ran, and its answer is stored
	OutcomeReplayed      Outcome = "replayed"          // answered from the store
	OutcomeReleased      Outcome = "released"          // ran, and may be tried again: not storable, an error, a panic
	OutcomeAbandoned     Outcome = "abandoned"         // panicked, gave up or is Unknown; Refuse keeps it from being tried again
	OutcomeInProgress    Outcome = "in-progress"       // refused: another attempt is running
	OutcomeKeyReused     Outcome = "key-reused"        // refused: the key came with another request before
	OutcomeNotReplayable Outcome = "not-replayable"    // refused: ran before, but its answer was not kept
	OutcomeReplayRefused Outcome = "replay-refused"    // refused: ran before, and Options.Replay does not let its answer pass
	OutcomeClientLeft    Outcome = "client-left"       // not answered: its client left while it waited for another attempt
	OutcomeQuotaExceeded Outcome = "quota-exceeded"    // refused: its user has used up a share of the store
	OutcomeUnknown       Outcome = "outcome-unknown"   // refused: an earlier attempt was interrupted
	OutcomeRejected      Outcome = "rejected"          // refused for its key, user or body
	OutcomeUnavailable   Outcome = "store-unavailable" // refused: no claim could be had from the store
	OutcomeUnprotected   Outcome = "unprotected"       // ran without a claim, as FailOpen allows
	OutcomeUnrecorded    Outcome = "unrecorded"        // ran and was answered, but the store has not taken the answer yet
	OutcomeRecorded      Outcome = "recorded"          // the answer of a request that was unrecorded is stored by now, or its status
	OutcomeRestored      Outcome = "restored"          // ran, and its answer is stored; the store had lost the claim
	OutcomeClaimLost     Outcome = "claim-lost"        // another attempt has taken over: its answer counts
	OutcomeRolledBack    Outcome = "rolled-back"       // ran, and its effects were undone, or are in doubt
)

// Event is what an [Observer] is told about a request.
type Event struct {
	Outcome Outcome

	// Key prints and logs as a pseudonym. Long parts of it are shortened, see [Key]. It is zero if the request was rejected
	// before it had one.
	Key Key

	// Operation and Attempt are zero if the request was rejected, or the store did not answer.
	Operation uuid.UUID
	Attempt   int

	// Status is that of the handler's answer; zero if there is none, as after a panic.
	Status int

	// Began is when the store was first asked. It is zero if the request was rejected.
	Began time.Time

	// Total is the time from Began to the event. Of it, Claim is what the store took to answer the first question, Waited
	// what the request waited for another attempt, Work what the handler ran, and Completion what the store took to settle
	// the claim, with repetitions. What did not take place is zero.
	Total, Claim, Waited, Work, Completion time.Duration

	// Stored is how many bytes the header, the trailer and the body of the answer have that was stored or replayed.
	// Omitted says that it was stored without them, so that it cannot be replayed.
	Stored  int
	Omitted bool

	// FromCache says that a [Cache] knew the answer, and the store was not asked.
	FromCache bool

	// LeaseLeft is, with OutcomeInProgress, how long the lease of the attempt that holds the key still lasts. It is zero if
	// that is a transaction, which has none.
	LeaseLeft time.Duration

	// Note is what the handler has attached to the operation with [Annotate]. A replay has that of the attempt that was
	// answered.
	Note string

	// Err is the reason of a refusal or of what went wrong, else nil.
	Err error
}

// Observer is told of each [Outcome] when it is known, mostly before the answer is sent, with the context of the request,
// or of the handler if it has run. With [OutcomeRecorded], and what else follows [OutcomeUnrecorded], that is the context
// of a request that has ended, but it is not cancelled. The Observer is called by many goroutines at once, and the request
// waits for it. It should not panic: a panic goes on to the server, or to the caller of [Runner.Do], after the claim has been
// settled, so the client gets no answer although there may be one. After the request has ended, the panic is logged instead.
type Observer func(context.Context, Event)

// keeps says what is kept of the answer.
func (e *Event) keeps(resp *Response) {
	e.Stored, e.Omitted = len(resp.Header)+len(resp.Trailer)+len(resp.Body), resp.Omitted
}

// logged says whether an event is logged, and at which level. Those that are part of normal operation are not.
func (e *Event) logged() (slog.Level, bool) {
	switch e.Outcome {
	case OutcomeRejected:
		return slog.LevelError, errors.Is(e.Err, ErrBodyConsumed) // a fault of the server, not of the client
	case OutcomeReleased, OutcomeAbandoned:
		return slog.LevelWarn, errors.Is(e.Err, errAnsweredLater) // so is this one
	case OutcomeUnavailable, OutcomeUnprotected, OutcomeUnrecorded:
		return slog.LevelError, true
	case OutcomeRestored, OutcomeClaimLost, OutcomeRolledBack:
		return slog.LevelWarn, true
	case OutcomeRecorded:
		return slog.LevelInfo, true
	default:
		return 0, false
	}
}

// reporter tells observer and logger of outcomes.
type reporter struct {
	observer Observer
	logger   *slog.Logger
}

// now returns the time if anybody will be told of it.
func (p *reporter) now() time.Time {
	if p.observer == nil {
		return time.Time{}
	}
	return time.Now()
}

func (p *reporter) since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

func (p *reporter) report(ctx context.Context, e *Event) {
	if p.observer != nil {
		p.observer(ctx, *e)
	}
	level, ok := e.logged()
	if !ok {
		return
	}
	p.log().LogAttrs(ctx, level, "idempotency: "+string(e.Outcome), slog.Any("key", e.Key),
		slog.String("operation", e.Operation.String()), slog.Int("attempt", e.Attempt),
		slog.Int("status", e.Status), slog.Any("error", e.Err))
}

// panicked logs that the observer has panicked.
func (p *reporter) panicked(ctx context.Context, value any) {
	p.log().LogAttrs(ctx, slog.LevelError, "idempotency: observer panicked",
		slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

func (p *reporter) log() *slog.Logger {
	if p.logger == nil {
		return slog.Default()
	}
	return p.logger
}
