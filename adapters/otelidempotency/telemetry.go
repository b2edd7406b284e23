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

const instrumentationScope = "github.com/idempotency-go/idempotency/adapters/otelidempotency"

// Options are the settings of a [Telemetry]. The zero value of each field is its default.
type Options struct {
	// MeterProvider makes the instruments. Nil means the global provider (see [otel.GetMeterProvider]).
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans of Observe and Step. Nil means the global provider (see [otel.GetTracerProvider]). With the
	// provider of package trace/noop, Observe makes no spans, which saves time in a service without traces.
	TracerProvider trace.TracerProvider

	// Attributes returns additional attributes for the metrics of an event, such as the name of a route. Each combination of values
	// makes new series, so use few values, and never a user or a key. Attributes is called once for each event, concurrently. The
	// metric idempotency.operations.active never has additional attributes. Nil means no additional attributes.
	//
	// A series with additional attributes begins at its first event instead of at zero.
	Attributes func(context.Context, idempotency.Event) []attribute.KeyValue
}

// Telemetry makes metrics and traces from the events of any number of [idempotency.Middleware] and [idempotency.Runner]. A Telemetry
// is safe for concurrent use.
type Telemetry struct {
	tracer          trace.Tracer // nil if traces are off
	instruments     *instruments
	extraAttributes func(context.Context, idempotency.Event) []attribute.KeyValue
}

// New returns a Telemetry. New returns the errors of the MeterProvider if the MeterProvider refuses an instrument.
func New(opts Options) (*Telemetry, error) {
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	instruments, err := newInstruments(opts.MeterProvider.Meter(instrumentationScope))
	if err != nil {
		return nil, err
	}
	t := &Telemetry{instruments: instruments, extraAttributes: opts.Attributes}
	if _, off := opts.TracerProvider.(noop.TracerProvider); !off {
		t.tracer = opts.TracerProvider.Tracer(instrumentationScope)
	}
	return t, nil
}

// Observe is an [idempotency.Observer].
func (t *Telemetry) Observe(ctx context.Context, event idempotency.Event) {
	o := observation{Event: event, isLate: isLateEvent(ctx, &event)}
	labels := t.instruments.labelsFor(&o)
	if t.extraAttributes != nil {
		labels = labels.withAttributes(seriesKeyOf(&o.Event), t.extraAttributes(ctx, event))
	}
	t.instruments.recordEvent(ctx, &o, labels)
	t.traceEvent(ctx, &o)
}

// observation is an event. A late event follows an earlier event of the same request, when an unrecorded answer is settled in the
// background.
type observation struct {
	idempotency.Event
	isLate bool
}

// isLateEvent reports whether e is a late event. Outcomes that may be late or not are told apart by ctx, because the context of a
// late event has no operation.
func isLateEvent(ctx context.Context, e *idempotency.Event) bool {
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
