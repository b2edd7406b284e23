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

// Step is a [step.Tracer] that makes a span for each step. [Telemetry.Handler] adds Step to the context of the handler. In the work
// of an [idempotency.Runner] and in handlers of frameworks, add Step yourself:
//
//	ctx = step.WithTracer(ctx, telemetry.Step)
func (t *Telemetry) Step(ctx context.Context, name string) (_ context.Context, end func(found bool, err error)) {
	if !t.shouldTrace(ctx) {
		return ctx, func(bool, error) {}
	}
	attributes := []attribute.KeyValue{stepNameKey.String(name)}
	if op, ok := idempotency.FromContext(ctx); ok {
		attributes = append(attributes, operationKey.String(op.ID.String()), attemptKey.Int(op.Attempt))
	}
	ctx, span := t.tracer.Start(ctx, "step "+name, trace.WithAttributes(attributes...))
	return ctx, func(found bool, err error) {
		defer span.End()
		span.SetAttributes(stepFoundKey.Bool(found))
		if err != nil {
			errorType := classifyStepError(err)
			span.SetAttributes(errorTypeKey.String(errorType))
			span.SetStatus(codes.Error, errorType)
		}
	}
}

// shouldTrace reports whether to make spans in ctx: always inside a sampled span, and without any span.
func (t *Telemetry) shouldTrace(ctx context.Context) bool {
	current := trace.SpanContextFromContext(ctx)
	return t.tracer != nil && (current.IsSampled() || !current.IsValid())
}

// stepErrorTypeRules take precedence over errorTypeRules.
var stepErrorTypeRules = []struct {
	wrapped   error
	errorType string
}{
	{step.ErrUnknown, "outcome_unknown"},
	{step.ErrResult, "result_unusable"},
	{idempotency.ErrClaimLost, "claim_lost"},
	{idempotency.ErrUserQuota, "user_quota"},
}

func classifyStepError(err error) string {
	for _, rule := range stepErrorTypeRules {
		if errors.Is(err, rule.wrapped) {
			return rule.errorType
		}
	}
	return classifyError(err)
}
