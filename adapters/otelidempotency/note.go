package otelidempotency

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The note of an operation is the header traceparent of W3C Trace Context, so that the span of a replay can link to the span of the
// execution.

// traceparentOf returns the traceparent of the span of ctx.
func traceparentOf(ctx context.Context) string {
	var c traceparentCarrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return string(c)
}

// parseTraceparent returns the span context in note, or an invalid span context if note is any other text.
func parseTraceparent(note string) trace.SpanContext {
	if note == "" {
		return trace.SpanContext{}
	}
	c := traceparentCarrier(note)
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &c))
}

// traceparentCarrier is a header with the single field traceparent.
type traceparentCarrier string

const traceparentField = "traceparent"

func (c *traceparentCarrier) Get(key string) string {
	if key != traceparentField {
		return ""
	}
	return string(*c)
}

func (c *traceparentCarrier) Set(key, value string) {
	if key == traceparentField {
		*c = traceparentCarrier(value)
	}
}

func (c *traceparentCarrier) Keys() []string { return []string{traceparentField} }
