package otelidempotency

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// Step is a [step.Tracer]: it makes a span for each step. [Telemetry.Handler] puts it into the context of its handler.
// The work of an [idempotency.Runner], and a handler of a framework, does that itself:
//
//	ctx = step.WithTracer(ctx, telemetry.Step)
func (t *Telemetry) Step(ctx context.Context, name string) (_ context.Context, end func(found bool, err error)) {
	if !t.traces(ctx) {
		return ctx, func(bool, error) {}
	}
	about := []attribute.KeyValue{stepNameKey.String(name)}
	if op, ok := idempotency.FromContext(ctx); ok {
		about = append(about, operationKey.String(op.ID.String()), attemptKey.Int(op.Attempt))
	}
	ctx, span := t.tracer.Start(ctx, "step "+name, trace.WithAttributes(about...))
	return ctx, func(found bool, err error) {
		defer span.End()
		span.SetAttributes(stepFoundKey.Bool(found))
		if err != nil {
			kind := stepErrorType(err)
			span.SetAttributes(errorTypeKey.String(kind))
			span.SetStatus(codes.Error, kind)
		}
	}
}

// traces reports whether spans are begun in ctx.
func (t *Telemetry) traces(ctx context.Context) bool {
	current := trace.SpanContextFromContext(ctx)
	return t.tracer != nil && (current.IsSampled() || !current.IsValid())
}

// stepErrorTypes are found before [errorTypes].
var stepErrorTypes = []struct {
	is   error
	name string
}{
	{step.ErrUnknown, "outcome_unknown"},
	{step.ErrResult, "result_unusable"},
	{idempotency.ErrClaimLost, "claim_lost"},
	{idempotency.ErrUserQuota, "user_quota"},
}

func stepErrorType(err error) string {
	for _, t := range stepErrorTypes {
		if errors.Is(err, t.is) {
			return t.name
		}
	}
	return errorType(err)
}
