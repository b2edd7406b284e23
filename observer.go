package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Outcome is the result of a request.
type Outcome string

// The outcomes. Each request with a key, or with a required key missing, has exactly one outcome, with three
// exceptions:
//
//   - Happened and not-happened precede the outcome of the request if Reconcile has ended the operation. If an
//     operator has ended the operation by package resolve, no request is involved.
//   - Unrecorded may be followed by recorded, restored or claim-lost.
//   - A request has no outcome if a function of the service panics before the handler runs, for example a [UserFunc],
//     Options.Replay, or a Cipher of package seal. The panic goes on unchanged.
//
// A question to [Middleware.Status] has an outcome only if the store fails: store-unavailable.
//
// In the comments below, "ran" means that the handler ran.
const (
	OutcomeExecuted      Outcome = "executed"          // ran, and the answer is stored
	OutcomeReplayed      Outcome = "replayed"          // answered from the store
	OutcomeReleased      Outcome = "released"          // ran, and may be tried again: not storable, an error, a panic
	OutcomeAbandoned     Outcome = "abandoned"         // ran to an unknown end, and Refuse forbids another attempt
	OutcomeInProgress    Outcome = "in-progress"       // refused: another attempt is running
	OutcomeKeyReused     Outcome = "key-reused"        // refused: the key was used with another request
	OutcomeNotReplayable Outcome = "not-replayable"    // refused: completed, but the answer was not kept
	OutcomeReplayRefused Outcome = "replay-refused"    // refused: completed, but Options.Replay denied the answer
	OutcomeClientLeft    Outcome = "client-left"       // unanswered: the client left while waiting
	OutcomeQuotaExceeded Outcome = "quota-exceeded"    // refused: the user has used up a share of the store
	OutcomeUnknown       Outcome = "outcome-unknown"   // refused: an earlier attempt ended without a known result
	OutcomeRejected      Outcome = "rejected"          // refused because of the key, user or body
	OutcomeUnavailable   Outcome = "store-unavailable" // refused: the store could not grant a claim, or show the record
	OutcomeUnprotected   Outcome = "unprotected"       // ran without a claim, as FailOpen allows
	OutcomeUnrecorded    Outcome = "unrecorded"        // ran and was answered, but the answer is not stored yet
	OutcomeRecorded      Outcome = "recorded"          // follows unrecorded: the answer, or only its status, is stored now
	OutcomeRestored      Outcome = "restored"          // ran, and the answer is stored; the store had lost the record
	OutcomeClaimLost     Outcome = "claim-lost"        // the lease lapsed or may have: the answer does not count, or the handler did not run
	OutcomeHappened      Outcome = "happened"          // resolved: the abandoned operation has happened
	OutcomeNotHappened   Outcome = "not-happened"      // resolved: the abandoned operation has not happened
)

// Event is the report on a request for an [Observer].
type Event struct {
	Outcome Outcome

	// Key prints and logs as Operation. Long parts are shortened, see [Key]. Key is zero if the request was rejected
	// before the key was known.
	Key Key

	// Operation is [Key.OperationID], or zero if Key is zero.
	Operation uuid.UUID

	// Attempt is the number of the attempt. Attempt is zero if the request was rejected, or if the store has failed.
	Attempt int

	// Status is the status of the handler's answer. Status is zero without an answer, as after a panic.
	Status int

	// Began is when the store was first asked. Began is zero if the request was rejected.
	Began time.Time

	// Total is the time from Began to the event, and includes the four times below. A time is zero if the phase did not
	// take place:
	//
	//   - Claim: until the store answered the first request for a claim.
	//   - Waited: waiting for another attempt.
	//   - Work: running the handler.
	//   - Completion: settling the claim in the store, with repetitions.
	Total, Claim, Waited, Work, Completion time.Duration

	// Stored is the size in bytes of the stored or replayed answer: header, trailer and body together. Omitted says
	// that the answer was stored without header, trailer and body, and cannot be replayed.
	Stored  int
	Omitted bool

	// FromCache says that a cache in front of the store had the answer, see [Record].
	FromCache bool

	hadNoEffect bool // the handler ran, and had no effect

	// LeaseLeft is set with OutcomeInProgress: the remaining lease of the attempt that holds the key.
	LeaseLeft time.Duration

	// Fingerprints is set with OutcomeKeyReused: the fingerprint of the first request with the key, and the fingerprint
	// of this request. A [FingerprintFunc] may be able to tell the difference, see Parts in package fingerprint.
	Fingerprints *[2]Fingerprint

	// Note is the note that the handler has attached to the operation with [Annotate]. A replay has the note of the
	// attempt that gave the answer.
	Note string

	// Resolved is set with OutcomeHappened and OutcomeNotHappened: the resolution as the record keeps it.
	Resolved *Resolved

	// Err is the reason of a refusal, or of a failure. Otherwise Err is nil.
	Err error
}

// Observer gets an Event for each [Outcome] as soon as the outcome is known, mostly before the answer is sent. The
// context is the context of the request or, if the handler has run, of the handler. For outcomes that follow
// [OutcomeUnrecorded], the request has ended, but the context is not cancelled. Many goroutines call the Observer at
// once, and each request waits for its call.
//
// An Observer should not panic. A panic goes on to the server, or to the caller of [Runner.Do], after the claim has
// been settled: the client gets no answer, although the answer may be stored. After the end of the request, a panic is
// logged instead.
type Observer func(context.Context, Event)

// setStored sets Stored and Omitted for the response in the store.
func (e *Event) setStored(resp *Response) {
	e.Stored, e.Omitted = len(resp.Header)+len(resp.Trailer)+len(resp.Body), resp.Omitted
}

// logLevel reports whether the event is logged, and at which level. Events of normal operation are not logged.
func (e *Event) logLevel() (slog.Level, bool) {
	switch e.Outcome {
	case OutcomeRejected:
		return slog.LevelError, errors.Is(e.Err, ErrBodyConsumed) // a fault of the server, unlike all other rejections
	case OutcomeReleased, OutcomeAbandoned:
		return slog.LevelWarn, !e.hadNoEffect
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

// eventReporter passes events to observer and logger.
type eventReporter struct {
	observer Observer
	logger   *slog.Logger
}

// currentTime returns the time, or zero without an observer, because only observers get times.
func (r *eventReporter) currentTime() time.Time {
	if r.observer == nil {
		return time.Time{}
	}
	return time.Now()
}

// elapsedSince returns the time since a result of currentTime.
func (r *eventReporter) elapsedSince(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}

// deliverEvent completes the event and passes the event to the Report of ctx, observer and logger.
func (r *eventReporter) deliverEvent(ctx context.Context, e *Event) {
	level, isLogged := e.logLevel()
	report, _ := ctx.Value(reportKey{}).(*Report)
	if r.observer == nil && report == nil && !isLogged {
		return
	}
	if e.Key != (Key{}) {
		e.Operation = e.Key.OperationID()
	}
	report.keepEvent(e)
	if r.observer != nil {
		r.observer(ctx, *e)
	}
	if !isLogged {
		return
	}
	r.loggerOrDefault().LogAttrs(ctx, level, "idempotency: "+string(e.Outcome), e.logAttributes()...)
}

// logAttributes returns the attributes of the event's log line. Unknown attributes are left out.
func (e *Event) logAttributes() []slog.Attr {
	attrs := make([]slog.Attr, 0, 7)
	if e.Operation != uuid.Nil {
		attrs = append(attrs, slog.String("operation", e.Operation.String()))
	}
	if e.Key.Endpoint != "" {
		attrs = append(attrs, slog.String("endpoint", e.Key.Endpoint))
	}
	if e.Attempt != 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Status != 0 {
		attrs = append(attrs, slog.Int("status", e.Status))
	}
	if resolved := e.Resolved; resolved != nil && resolved.Operator != "" {
		attrs = append(attrs, slog.String("operator", resolved.Operator), slog.String("reason", resolved.Reason))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	return attrs
}

// logPanic logs a panic of the observer.
func (r *eventReporter) logPanic(ctx context.Context, value any) {
	r.loggerOrDefault().LogAttrs(ctx, slog.LevelError, "idempotency: the Observer panicked",
		slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

// loggerOrDefault returns the logger of the options, or the default logger at the time of the event.
func (r *eventReporter) loggerOrDefault() *slog.Logger {
	if r.logger == nil {
		return slog.Default()
	}
	return r.logger
}

// Report says what became of a request, for an access log outside of the Middleware, see [WithReport]. A Report is safe
// for concurrent use.
type Report struct {
	lastEvent atomic.Pointer[Event]
}

type reportKey struct{}

// WithReport returns a context for a request, or for [Runner.Do], and the Report that gets the events of the context. In
// an access log, log the Report when next has returned or panicked:
//
//	ctx, report := idempotency.WithReport(r.Context())
//	defer func() { logger.InfoContext(ctx, r.Method+" "+r.URL.Path, "idempotency", report) }()
//	next.ServeHTTP(w, r.WithContext(ctx))
//
// The Report is then complete, also if the client has left, with one exception: if [http.TimeoutHandler] stands inside of
// the access log and has given up, the handler still runs, and the Report stays empty until the handler returns. Events
// that follow [OutcomeUnrecorded] are not reported. If several operations get the context, the Report has the last event.
func WithReport(ctx context.Context) (context.Context, *Report) {
	report := new(Report)
	return context.WithValue(ctx, reportKey{}, report), report
}

// withoutReport returns ctx without the Report, for events that follow the outcome of the request.
func withoutReport(ctx context.Context) context.Context {
	return context.WithValue(ctx, reportKey{}, (*Report)(nil))
}

// ReportTo returns a middleware that gives the Report of each request to an access log outside, by one call of setAttrs
// with the attribute "idempotency". The call comes before the request is served, because the value of the attribute is
// read when the line is written, as with any [slog.LogValuer]. For example with httplog of chi:
//
//	r.Use(httplog.RequestLogger(logger, options), idempotency.ReportTo(httplog.SetAttrs))
func ReportTo(setAttrs func(context.Context, ...slog.Attr)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, report := WithReport(r.Context())
			setAttrs(ctx, slog.Any("idempotency", report))
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// Event returns the last event. Without an event, as for a request without a key, ok is false.
func (r *Report) Event() (e Event, ok bool) {
	if last := r.lastEvent.Load(); last != nil {
		return *last, true
	}
	return Event{}, false
}

// LogValue returns a group for package slog: outcome, attempt and operation and, for [OutcomeRejected], refusal with the
// Code of the [Error]. Unknown attributes are left out. Without an event the group is empty, so slog leaves out the
// group. The group is free of users and keys.
func (r *Report) LogValue() slog.Value {
	e, ok := r.Event()
	if !ok {
		return slog.GroupValue()
	}
	attrs := []slog.Attr{slog.String("outcome", string(e.Outcome))}
	if e.Attempt != 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Operation != uuid.Nil {
		attrs = append(attrs, slog.String("operation", e.Operation.String()))
	}
	if e.Outcome == OutcomeRejected {
		attrs = append(attrs, slog.String("refusal", refusalFor(e.Err).Code)) // the other outcomes name their refusal
	}
	return slog.GroupValue(attrs...)
}

// keepEvent makes a copy of e the last event. A nil Report keeps nothing.
func (r *Report) keepEvent(e *Event) {
	if r != nil {
		last := *e
		r.lastEvent.Store(&last)
	}
}
