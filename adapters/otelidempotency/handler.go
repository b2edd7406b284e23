package otelidempotency

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// Handler wraps a guarded handler: idem.Handler(t.Handler(next)). While next runs, the operation counts as active. The current span
// gets the ID of the operation and the number of the attempt. The traceparent of the span is stored with the answer, so that
// replays can link to the span. Each step of next has a span (see [Telemetry.Step]). If otelhttp is inside idem.Handler, put
// Handler inside otelhttp.
//
// Requests without an operation, for example without a key, reach next unchanged. A request that runs unprotected
// (Options.FailOpen) has an operation with attempt 0, and its answer is not stored.
func (t *Telemetry) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.beginOperation(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		defer t.endOperation(r.Context())
		t.serveTraced(next, w, r)
	})
}

// serveTraced calls next with a request whose steps are traced.
func (t *Telemetry) serveTraced(next http.Handler, w http.ResponseWriter, r *http.Request) {
	traced := r
	if t.shouldTrace(r.Context()) {
		traced = r.WithContext(step.WithTracer(r.Context(), t.Step))
		defer func() { r.MultipartForm = traced.MultipartForm }() // the server removes the temporary files of the form of r
	}
	next.ServeHTTP(w, traced)
}

// Start is [Telemetry.Handler] for the work of an [idempotency.Runner], and for handlers of frameworks. For spans of steps, see
// [Telemetry.Step]. Call end when the work has ended, even after a panic:
//
//	defer telemetry.Start(ctx)()
//
// ctx must be the context that the work or the handler has received.
func (t *Telemetry) Start(ctx context.Context) (end func()) {
	if !t.beginOperation(ctx) {
		return func() {}
	}
	return func() { t.endOperation(ctx) }
}

// beginOperation counts the operation of ctx as active. beginOperation returns false if ctx has no operation.
func (t *Telemetry) beginOperation(ctx context.Context) bool {
	op, ok := idempotency.FromContext(ctx)
	if !ok {
		return false
	}
	t.instruments.activeOperations.Add(ctx, 1)
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		span.SetAttributes(operationKey.String(op.ID.String()), attemptKey.Int(op.Attempt))
	}
	if span.SpanContext().IsSampled() {
		_ = idempotency.Annotate(ctx, traceparentOf(ctx)) // fails only without an operation
	}
	return true
}

func (t *Telemetry) endOperation(ctx context.Context) { t.instruments.activeOperations.Add(ctx, -1) }
