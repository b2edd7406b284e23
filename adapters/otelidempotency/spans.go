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

// traceEvent describes an event on the span of ctx or, without a recording span, on a new span.
func (t *Telemetry) traceEvent(ctx context.Context, o *observation) {
	span := trace.SpanFromContext(ctx)
	current := span.SpanContext()
	switch {
	case span.IsRecording():
		o.describeOn(span, current, o.endTime())
	case t.shouldTrace(ctx): // the span is missing, has ended, or belongs to another process
		t.addSpan(ctx, current, o)
	}
}

func (t *Telemetry) addSpan(ctx context.Context, current trace.SpanContext, o *observation) {
	began, end := o.spanTimes()
	_, span := t.tracer.Start(ctx, "idempotency "+string(o.Outcome), trace.WithTimestamp(began))
	defer span.End(trace.WithTimestamp(end))
	if !span.IsRecording() {
		return
	}
	o.describeOn(span, current, end)
	if o.hasFailed() {
		span.SetStatus(codes.Error, string(o.Outcome))
	}
}

// findFirstSpan returns the span of the execution from the note of the operation. ok is false for the current span itself.
func (o *observation) findFirstSpan(current trace.SpanContext) (trace.SpanContext, bool) {
	first := parseTraceparent(o.Note)
	isSame := first.TraceID() == current.TraceID() && first.SpanID() == current.SpanID()
	return first, first.IsValid() && !isSame
}

// spanTimes returns begin and end of a new span for the event. The span of a late event begins with the completion.
func (o *observation) spanTimes() (began, end time.Time) {
	end = o.endTime()
	switch {
	case o.Began.IsZero():
		return end, end
	case o.isLate:
		return end.Add(-o.Completion), end
	default:
		return o.Began, end
	}
}

// endTime returns the time of the event.
func (o *observation) endTime() time.Time {
	if o.Began.IsZero() {
		return time.Now()
	}
	return o.Began.Add(o.Total)
}

// describeOn sets attributes, events and the link on span. current is the span context of the request.
func (o *observation) describeOn(span trace.Span, current trace.SpanContext, end time.Time) {
	if seriesKeyOf(&o.Event).isResolution() {
		span.AddEvent("idempotency.resolved", trace.WithTimestamp(end), trace.WithAttributes(outcomeKey.String(string(o.Outcome))))
		return
	}
	span.SetAttributes(o.spanAttributes()...)
	if first, ok := o.findFirstSpan(current); ok {
		span.AddLink(trace.Link{SpanContext: first})
	}
	if !o.isLate {
		o.addSteps(span, end)
	}
	outcomeAttributes := []attribute.KeyValue{outcomeKey.String(string(o.Outcome))}
	if errorType := ErrorType(o.Event); errorType != "" {
		outcomeAttributes = append(outcomeAttributes, errorTypeKey.String(errorType))
	}
	span.AddEvent("idempotency.outcome", trace.WithTimestamp(end), trace.WithAttributes(outcomeAttributes...))
}

func (o *observation) addSteps(span trace.Span, end time.Time) {
	if o.Waited > 0 {
		span.AddEvent("idempotency.waiting", trace.WithTimestamp(o.Began.Add(o.Claim)))
	}
	if o.wasClaimed() {
		span.AddEvent("idempotency.claimed", trace.WithTimestamp(o.Began.Add(o.Claim+o.Waited)))
	}
	if o.Work > 0 {
		span.AddEvent("idempotency.handled", trace.WithTimestamp(end.Add(-o.Completion)))
	}
}

func (o *observation) spanAttributes() []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 8)
	attributes = append(attributes,
		outcomeKey.String(string(o.Outcome)),
		replayedKey.Bool(o.Outcome == idempotency.OutcomeReplayed))
	if o.Operation != uuid.Nil {
		attributes = append(attributes, operationKey.String(o.Operation.String()))
	}
	if o.Attempt > 0 {
		attributes = append(attributes, attemptKey.Int(o.Attempt))
	}
	if o.FromCache {
		attributes = append(attributes, fromCacheKey.Bool(true))
	}
	if o.Omitted {
		attributes = append(attributes, omittedKey.Bool(true))
	}
	if o.Stored > 0 {
		attributes = append(attributes, storedKey.Int(o.Stored))
	}
	if o.LeaseLeft > 0 {
		attributes = append(attributes, leaseRemainingKey.Float64(o.LeaseLeft.Seconds()))
	}
	return attributes
}

// wasClaimed reports whether the store granted the claim to the request.
func (o *observation) wasClaimed() bool {
	switch o.Outcome {
	case idempotency.OutcomeExecuted, idempotency.OutcomeReleased, idempotency.OutcomeAbandoned,
		idempotency.OutcomeUnrecorded, idempotency.OutcomeRestored, idempotency.OutcomeClaimLost:
		return true
	default:
		return false
	}
}

// hasFailed reports whether the outcome is a failure of the service or of the store.
func (o *observation) hasFailed() bool {
	switch o.Outcome {
	case idempotency.OutcomeUnavailable, idempotency.OutcomeUnprotected, idempotency.OutcomeUnrecorded,
		idempotency.OutcomeClaimLost:
		return true
	default:
		return false
	}
}
