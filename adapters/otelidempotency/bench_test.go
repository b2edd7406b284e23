package otelidempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
)

// executed is the event of an execution with all durations.
var executed = idempotency.Event{
	Outcome: idempotency.OutcomeExecuted, Operation: uuid.New(), Attempt: 1, Status: 201, Began: time.Now(), Stored: 200,
	Total: time.Second, Claim: time.Millisecond, Work: time.Second, Completion: time.Millisecond,
}

// BenchmarkObserve measures Observe with metrics alone, with attributes of the service, and with a recorded span. For
// comparison, one case is a recorded span without Observe.
func BenchmarkObserve(b *testing.B) {
	replayed := executed
	replayed.Outcome, replayed.Work, replayed.Completion = idempotency.OutcomeReplayed, 0, 0
	replayed.Note = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	route := func(context.Context, idempotency.Event) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("http.route", "/payments")}
	}
	for _, row := range []struct {
		name       string
		event      idempotency.Event
		attributes func(context.Context, idempotency.Event) []attribute.KeyValue
	}{
		{"executed", executed, nil},
		{"replayed", replayed, nil},
		{"executed, with attributes", executed, route},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := newSDK(b)
			telemetry := s.newUntracedTelemetry(b, row.attributes)
			ctx, n := context.Background(), 0
			b.ReportAllocs()
			for b.Loop() {
				telemetry.Observe(ctx, row.event)
				n++
			}
			requireCounted(b, s, n)
		})
	}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(tracetest.NewNoopExporter())).Tracer("test")
	b.Run("a span without it", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, span := tracer.Start(context.Background(), "request")
			span.End()
		}
	})
	for _, event := range []idempotency.Event{executed, replayed} {
		b.Run(string(event.Outcome)+", traced", func(b *testing.B) {
			s := newSDK(b)
			telemetry, n := s.newUntracedTelemetry(b, nil), 0
			b.ReportAllocs()
			for b.Loop() {
				ctx, span := tracer.Start(context.Background(), "request")
				telemetry.Observe(ctx, event)
				span.End()
				n++
			}
			requireCounted(b, s, n)
		})
	}
}

// newUntracedTelemetry returns a Telemetry with the metrics of s, and without spans.
func (s *sdk) newUntracedTelemetry(
	t testing.TB, attributes func(context.Context, idempotency.Event) []attribute.KeyValue,
) *otelidempotency.Telemetry {
	t.Helper()
	telemetry, err := otelidempotency.New(otelidempotency.Options{
		MeterProvider: s.meterProvider, TracerProvider: noop.NewTracerProvider(), Attributes: attributes,
	})
	require.NoError(t, err)
	return telemetry
}

// requireCounted requires that n requests are counted.
func requireCounted(t testing.TB, s *sdk, n int) {
	t.Helper()
	for _, count := range s.collectCounts(t, "idempotency.requests") {
		require.EqualValues(t, n, count)
	}
}

// Observe without spans allocates nothing.
func TestAllocations(t *testing.T) {
	s := newSDK(t)
	telemetry, ctx := s.newUntracedTelemetry(t, nil), context.Background()
	telemetry.Observe(ctx, executed) // the first event makes the series
	require.Zero(t, testing.AllocsPerRun(1000, func() { telemetry.Observe(ctx, executed) }))
}
