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

// The outcomes. Each request that carries a key, or should carry one, has exactly one outcome, with three exceptions:
//
//   - Happened and not-happened come in addition, before the outcome of the request, if Reconcile has ended the operation.
//     If an operator has ended it, by package resolve, there is no request.
//   - Unrecorded may be followed by one of recorded, restored and claim-lost.
//   - A request has no outcome if a function of the service panics and the handler has not run. Such functions are a
//     [UserFunc], for instance, Options.Replay, and a Cipher of package seal. The panic goes on unchanged.
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
	OutcomeUnknown       Outcome = "outcome-unknown"   // refused: an earlier attempt ended without a known result
	OutcomeRejected      Outcome = "rejected"          // refused for its key, user or body
	OutcomeUnavailable   Outcome = "store-unavailable" // refused: the store could not grant a claim
	OutcomeUnprotected   Outcome = "unprotected"       // ran without a claim, as FailOpen allows
	OutcomeUnrecorded    Outcome = "unrecorded"        // ran and was answered, but the store has not taken the answer yet
	OutcomeRecorded      Outcome = "recorded"          // follows unrecorded: the answer, or only its status, is stored now
	OutcomeRestored      Outcome = "restored"          // ran, and its answer is stored; the store had lost the claim
	OutcomeClaimLost     Outcome = "claim-lost"        // another attempt has taken over: its answer counts
	OutcomeHappened      Outcome = "happened"          // an abandoned operation was ended: it has happened, and its answer is stored
	OutcomeNotHappened   Outcome = "not-happened"      // an abandoned operation was ended: it has not happened, and may be tried again
)

// Event is what an [Observer] is told about a request.
type Event struct {
	Outcome Outcome

	// Key prints and logs as Operation. Its long parts are shortened, see [Key]. It is zero if the request was rejected
	// before its key was known.
	Key Key

	// Operation is [Key.OperationID]. It is zero if Key is.
	Operation uuid.UUID

	// Attempt is zero if the request was rejected, or the store did not answer.
	Attempt int

	// Status is that of the handler's answer. It is zero if there is no answer, as after a panic.
	Status int

	// Began is when the store was first asked. It is zero if the request was rejected.
	Began time.Time

	// Total is the time from Began to the event. It includes the four times below. Each of them is zero if it did not take
	// place:
	//
	//   - Claim: the store answered the first question.
	//   - Waited: the request waited for another attempt.
	//   - Work: the handler ran.
	//   - Completion: the store settled the claim, with repetitions.
	Total, Claim, Waited, Work, Completion time.Duration

	// Stored is how many bytes the stored or replayed answer has: header, trailer and body together. Omitted says that the
	// answer was stored without them, so that it cannot be replayed.
	Stored  int
	Omitted bool

	// FromCache says that the answer came from a cache in front of the store, see [Record].
	FromCache bool

	untouched bool // the handler ran and has done nothing

	// LeaseLeft is set with OutcomeInProgress. It is how long the lease of the attempt that holds the key still lasts.
	LeaseLeft time.Duration

	// Fingerprints is set with OutcomeKeyReused: they are that of the request which came with the key before, and that of
	// this one. A [FingerprintFunc] may be able to tell from them what differs: see Parts in package fingerprint.
	Fingerprints *[2]Fingerprint

	// Note is what the handler has attached to the operation with [Annotate]. A replay has the note of the attempt whose
	// answer is replayed.
	Note string

	// Resolved is set with OutcomeHappened and OutcomeNotHappened. It is what the record keeps of the resolution.
	Resolved *Resolved

	// Err is the reason of a refusal, or of what went wrong. Otherwise it is nil.
	Err error
}

// Observer is told of each [Outcome] as soon as it is known, mostly before the answer is sent. The context is that of
// the request or, if the handler has run, that of the handler. For [OutcomeRecorded] and the others that follow
// [OutcomeUnrecorded], the request has ended, but the context is not cancelled. Many goroutines call the Observer at
// once, and each request waits for its call.
//
// It should not panic. A panic goes on to the server, or to the caller of [Runner.Do], after the claim has been settled:
// the client gets no answer, although one may be stored. After the request has ended, a panic is logged instead.
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
		return slog.LevelWarn, !e.untouched
	case OutcomeUnavailable, OutcomeUnprotected, OutcomeUnrecorded:
		return slog.LevelError, true
	case OutcomeRestored, OutcomeClaimLost:
		return slog.LevelWarn, true
	case OutcomeRecorded, OutcomeHappened, OutcomeNotHappened:
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
	level, logged := e.logged()
	if p.observer == nil && !logged {
		return
	}
	if e.Key != (Key{}) {
		e.Operation = e.Key.OperationID()
	}
	if p.observer != nil {
		p.observer(ctx, *e)
	}
	if !logged {
		return
	}
	p.log().LogAttrs(ctx, level, "idempotency: "+string(e.Outcome), e.attributes()...)
}

// attributes returns what a line of the log says of the event, as far as it is known.
func (e *Event) attributes() []slog.Attr {
	all := make([]slog.Attr, 0, 7)
	if e.Operation != uuid.Nil {
		all = append(all, slog.String("operation", e.Operation.String()))
	}
	if e.Key.Endpoint != "" {
		all = append(all, slog.String("endpoint", e.Key.Endpoint))
	}
	if e.Attempt != 0 {
		all = append(all, slog.Int("attempt", e.Attempt))
	}
	if e.Status != 0 {
		all = append(all, slog.Int("status", e.Status))
	}
	if r := e.Resolved; r != nil && r.Operator != "" {
		all = append(all, slog.String("operator", r.Operator), slog.String("reason", r.Reason))
	}
	if e.Err != nil {
		all = append(all, slog.Any("error", e.Err))
	}
	return all
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
