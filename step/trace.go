package step

import "context"

// Tracer observes each step that begins. Tracer returns the context of the step, which may carry a span, and a function
// end that the step calls when it ends: found reports that an earlier attempt has run the step, and err is the error of
// [Do].
type Tracer func(ctx context.Context, name string) (_ context.Context, end func(found bool, err error))

type tracerKey struct{}

// WithTracer returns a context whose steps are observed by tracer. Call WithTracer in middleware around the handler, or
// in the BaseContext of the [net/http.Server]. Package otelidempotency has a tracer for OpenTelemetry.
func WithTracer(ctx context.Context, tracer Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, tracer)
}

func startTrace(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
	if tracer, ok := ctx.Value(tracerKey{}).(Tracer); ok {
		return tracer(ctx, name)
	}
	return ctx, func(bool, error) {}
}
