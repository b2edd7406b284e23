package otelidempotency

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/idempotency-go/idempotency"
)

const scope = "github.com/idempotency-go/idempotency/adapters/otelidempotency"

// Options are the settings of a [Telemetry]. The zero value of each field is its default.
type Options struct {
	// MeterProvider makes the instruments. Nil means the global one, see [otel.GetMeterProvider].
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans that Observe begins. Nil means the global one, see [otel.GetTracerProvider]. With the
	// provider of package trace/noop, Observe begins none, which saves time where there are no traces at all.
	TracerProvider trace.TracerProvider

	// Attributes returns further attributes for what an event adds to metrics, such as the name of a route. Each
	// combination of values makes new series, so there must be few of them: never a user or a key. It is called once for
	// each event, by many goroutines at once. The metric of operations that run now does not have these attributes. Nil
	// means none.
	//
	// Series with such attributes begin when they first count something.
	Attributes func(context.Context, idempotency.Event) []attribute.KeyValue
}

// Telemetry makes metrics and traces of the events of any number of [idempotency.Middleware] and [idempotency.Runner]. It
// is safe for concurrent use.
type Telemetry struct {
	tracer      trace.Tracer // nil: Observe begins no spans
	instruments *instruments
	attributes  func(context.Context, idempotency.Event) []attribute.KeyValue
}

// New returns a Telemetry. The error is that of the MeterProvider, if it refuses an instrument.
func New(opts Options) (*Telemetry, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	instruments, err := newInstruments(opts.MeterProvider.Meter(scope))
	if err != nil {
		return nil, err
	}
	t := &Telemetry{instruments: instruments, attributes: opts.Attributes}
	if _, off := opts.TracerProvider.(noop.TracerProvider); !off {
		t.tracer = opts.TracerProvider.Tracer(scope)
	}
	return t, nil
}

// Observe is an [idempotency.Observer].
func (t *Telemetry) Observe(ctx context.Context, event idempotency.Event) {
	o := observation{Event: event, late: isLate(ctx, &event)}
	labels := t.instruments.labelsOf(&o)
	if t.attributes != nil {
		labels = labels.with(seriesOf(&o.Event), t.attributes(ctx, event))
	}
	t.instruments.record(ctx, &o, labels)
	t.trace(ctx, &o)
}

// observation is an event, and whether it comes after another one of the same request: an unrecorded answer that was
// settled in the background.
type observation struct {
	idempotency.Event
	late bool
}

// isLate tells by the context, which belongs to the operation only as long as the handler's does.
func isLate(ctx context.Context, e *idempotency.Event) bool {
	switch e.Outcome {
	case idempotency.OutcomeRecorded:
		return true
	case idempotency.OutcomeRestored, idempotency.OutcomeClaimLost:
		op, _ := idempotency.FromContext(ctx)
		return op.ID != e.Operation
	default:
		return false
	}
}
