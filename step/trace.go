package step

import "context"

// Tracer is told of each step that begins. It returns the context of the step, which may carry a span, and a function that
// is called when the step has ended. Found says that an earlier attempt has run the step; err is that of [Do].
type Tracer func(ctx context.Context, name string) (_ context.Context, end func(found bool, err error))

type tracerKey struct{}

// WithTracer returns a context whose steps the tracer is told of. Middleware around a handler calls it, or the Context of a
// server. Package otelidempotency has a tracer.
func WithTracer(ctx context.Context, tracer Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, tracer)
}

func traced(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
	if tracer, ok := ctx.Value(tracerKey{}).(Tracer); ok {
		return tracer(ctx, name)
	}
	return ctx, func(bool, error) {}
}
