package otelidempotency

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// Handler wraps a handler that is guarded: idem.Handler(t.Handler(next)). While next runs, the operation counts as
// active. The current span gets the ID of the operation and the number of the attempt, and its traceparent is stored
// with the answer, so that replays can have a link to it. Each step of next has a span, see [Telemetry.Step]. If
// otelhttp is inside of idem.Handler, put Handler inside of otelhttp.
//
// Requests that belong to no operation, such as those without a key, reach next untouched. One that runs without protection
// (Options.FailOpen) belongs to an operation: its attempt is 0, and nothing is stored.
func (t *Telemetry) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.begin(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		defer t.end(r.Context())
		t.serve(next, w, r)
	})
}

// serve calls next with a request whose steps are traced.
func (t *Telemetry) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	traced := r
	if t.traces(r.Context()) {
		traced = r.WithContext(step.WithTracer(r.Context(), t.Step))
		defer func() { r.MultipartForm = traced.MultipartForm }() // for the server to remove its files
	}
	next.ServeHTTP(w, traced)
}

// Start does what [Telemetry.Handler] does, for the work of an [idempotency.Runner], and for handlers of frameworks.
// For spans of steps, see [Telemetry.Step]. Call end when the work has ended, also if it panics:
//
//	defer telemetry.Start(ctx)()
//
// The context must be the one that the work, or the handler, was given.
func (t *Telemetry) Start(ctx context.Context) (end func()) {
	if !t.begin(ctx) {
		return func() {}
	}
	return func() { t.end(ctx) }
}

// begin reports whether ctx belongs to an operation, which counts as active then.
func (t *Telemetry) begin(ctx context.Context) bool {
	op, ok := idempotency.FromContext(ctx)
	if !ok {
		return false
	}
	t.instruments.active.Add(ctx, 1)
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetAttributes(operationKey.String(op.ID.String()), attemptKey.Int(op.Attempt))
	}
	if span.SpanContext().IsSampled() {
		_ = idempotency.Annotate(ctx, noteOf(ctx)) // fails for no operation only, and there is one
	}
	return true
}

func (t *Telemetry) end(ctx context.Context) { t.instruments.active.Add(ctx, -1) }
