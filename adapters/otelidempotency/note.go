package otelidempotency

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A note is the header traceparent of W3C Trace Context, by which another trace can have a link to a span.

// noteOf returns the note of the span of ctx.
func noteOf(ctx context.Context) string {
	var c carrier
	propagation.TraceContext{}.Inject(ctx, &c)
	return string(c)
}

// spanOf returns the span of a note. It is not valid if the note is something else.
func spanOf(note string) trace.SpanContext {
	if note == "" {
		return trace.SpanContext{}
	}
	c := carrier(note)
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &c))
}

// carrier is a header with the field traceparent only.
type carrier string

const traceparent = "traceparent"

func (c *carrier) Get(key string) string {
	if key != traceparent {
		return ""
	}
	return string(*c)
}

func (c *carrier) Set(key, value string) {
	if key == traceparent {
		*c = carrier(value)
	}
}

func (c *carrier) Keys() []string { return []string{traceparent} }
