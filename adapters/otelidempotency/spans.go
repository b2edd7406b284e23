package otelidempotency

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
)

// trace tells of an event on the span of ctx, or on a span of its own.
func (t *Telemetry) trace(ctx context.Context, o *observation) {
	span := trace.SpanFromContext(ctx)
	current := span.SpanContext()
	switch {
	case span.IsRecording():
		o.describe(span, current, o.end())
	case t.traces(ctx): // there is none, it has ended, or it is that of another process
		t.ownSpan(ctx, current, o)
	}
}

func (t *Telemetry) ownSpan(ctx context.Context, current trace.SpanContext, o *observation) {
	began, end := o.span()
	_, span := t.tracer.Start(ctx, "idempotency "+string(o.Outcome), trace.WithTimestamp(began))
	defer span.End(trace.WithTimestamp(end))
	if !span.IsRecording() {
		return
	}
	o.describe(span, current, end)
	if o.failed() {
		span.SetStatus(codes.Error, string(o.Outcome))
	}
}

// first returns the span of the execution, as its note has it, unless that is the current one.
func (o *observation) first(current trace.SpanContext) (trace.SpanContext, bool) {
	first := spanOf(o.Note)
	same := first.TraceID() == current.TraceID() && first.SpanID() == current.SpanID()
	return first, first.IsValid() && !same
}

// span returns when a span of the event begins and ends. That of a late one begins with the completion.
func (o *observation) span() (began, end time.Time) {
	end = o.end()
	switch {
	case o.Began.IsZero():
		return end, end
	case o.late:
		return end.Add(-o.Completion), end
	default:
		return o.Began, end
	}
}

// end returns when the event took place.
func (o *observation) end() time.Time {
	if o.Began.IsZero() {
		return time.Now()
	}
	return o.Began.Add(o.Total)
}

// describe sets attributes, events and the link on a span. The current one is that of the request.
func (o *observation) describe(span trace.Span, current trace.SpanContext, end time.Time) {
	if seriesOf(&o.Event).resolves() {
		span.AddEvent("idempotency.resolved", trace.WithTimestamp(end), trace.WithAttributes(outcomeKey.String(string(o.Outcome))))
		return
	}
	span.SetAttributes(o.attributes()...)
	if first, ok := o.first(current); ok {
		span.AddLink(trace.Link{SpanContext: first})
	}
	if !o.late {
		o.addSteps(span, end)
	}
	settled := []attribute.KeyValue{outcomeKey.String(string(o.Outcome))}
	if kind := ErrorType(o.Event); kind != "" {
		settled = append(settled, errorTypeKey.String(kind))
	}
	span.AddEvent("idempotency.outcome", trace.WithTimestamp(end), trace.WithAttributes(settled...))
}

func (o *observation) addSteps(span trace.Span, end time.Time) {
	if o.Waited > 0 {
		span.AddEvent("idempotency.waiting", trace.WithTimestamp(o.Began.Add(o.Claim)))
	}
	if o.claimed() {
		span.AddEvent("idempotency.claimed", trace.WithTimestamp(o.Began.Add(o.Claim+o.Waited)))
	}
	if o.Work > 0 {
		span.AddEvent("idempotency.handled", trace.WithTimestamp(end.Add(-o.Completion)))
	}
}

func (o *observation) attributes() []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 8)
	all = append(all,
		outcomeKey.String(string(o.Outcome)),
		replayedKey.Bool(o.Outcome == idempotency.OutcomeReplayed))
	if o.Operation != uuid.Nil {
		all = append(all, operationKey.String(o.Operation.String()))
	}
	if o.Attempt > 0 {
		all = append(all, attemptKey.Int(o.Attempt))
	}
	if o.FromCache {
		all = append(all, fromCacheKey.Bool(true))
	}
	if o.Omitted {
		all = append(all, omittedKey.Bool(true))
	}
	if o.Stored > 0 {
		all = append(all, storedKey.Int(o.Stored))
	}
	if o.LeaseLeft > 0 {
		all = append(all, leaseRemainingKey.Float64(o.LeaseLeft.Seconds()))
	}
	return all
}

// claimed reports whether the request got the claim.
func (o *observation) claimed() bool {
	switch o.Outcome {
	case idempotency.OutcomeExecuted, idempotency.OutcomeReleased, idempotency.OutcomeAbandoned,
		idempotency.OutcomeUnrecorded, idempotency.OutcomeRestored, idempotency.OutcomeClaimLost:
		return true
	default:
		return false
	}
}

// failed reports whether the service or its store is to blame.
func (o *observation) failed() bool {
	switch o.Outcome {
	case idempotency.OutcomeUnavailable, idempotency.OutcomeUnprotected, idempotency.OutcomeUnrecorded,
		idempotency.OutcomeClaimLost:
		return true
	default:
		return false
	}
}
