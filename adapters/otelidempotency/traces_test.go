package otelidempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
)

// outside has otelhttp outside of the middleware.
func outside(s *service, payments http.Handler) http.Handler { return s.otelhttp(plain(s, payments)) }

// inside has otelhttp inside of the middleware.
func inside(s *service, payments http.Handler) http.Handler {
	return s.idem.Handler(s.otelhttp(s.telemetry.Handler(payments)))
}

func (s *service) otelhttp(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "payments", otelhttp.WithTracerProvider(s.tracer), otelhttp.WithMeterProvider(s.meters))
}

// spansOf waits until so many spans have ended, and returns them in the order in which they began. A server ends a span
// after its answer.
func (s *service) spansOf(t *testing.T, n int) tracetest.SpanStubs {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.spans.GetSpans()) >= n }, 10*time.Second, time.Millisecond)
	spans := s.spans.GetSpans()
	require.Len(t, spans, n)
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return spans
}

// told returns the attributes of ours that a span has.
func told(span tracetest.SpanStub) map[string]string {
	attributes := map[string]string{}
	for _, kv := range span.Attributes {
		if name, ours := strings.CutPrefix(string(kv.Key), "idempotency."); ours {
			attributes[name] = kv.Value.String()
		}
	}
	return attributes
}

func eventsOf(span tracetest.SpanStub) (names []string) {
	for _, e := range span.Events {
		names = append(names, strings.TrimPrefix(e.Name, "idempotency."))
	}
	return names
}

func linksOf(span tracetest.SpanStub) (links []string) {
	for _, link := range span.Links {
		links = append(links, link.SpanContext.TraceID().String()+" "+link.SpanContext.SpanID().String())
	}
	return links
}

func nameOf(span tracetest.SpanStub) string {
	return span.SpanContext.TraceID().String() + " " + span.SpanContext.SpanID().String()
}

func TestSpansWithOtelhttpOutside(t *testing.T) {
	t.Parallel()
	s := newService(t, outside, charge, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "9900"))
	require.Equal(t, 400, s.send(t, "no key", "4200"))
	require.Equal(t, 201, s.send(t, "", "4200"))
	failWith(&s.store.begin, errDown)
	require.Equal(t, 503, s.send(t, key, "4200"))

	spans, operation := s.spansOf(t, 6), s.events.all()[0].Operation.String()
	first := spans[0]
	require.Equal(t, map[string]string{
		"outcome": "executed", "replayed": "false", "operation.id": operation, "attempt": "1",
		"stored.size": fmt.Sprint(s.events.all()[0].Stored),
	}, told(first))
	require.Equal(t, []string{"claimed", "handled", "outcome"}, eventsOf(first))
	require.Empty(t, first.Links)

	replay := spans[1]
	require.Equal(t, map[string]string{
		"outcome": "replayed", "replayed": "true", "operation.id": operation, "attempt": "1",
		"stored.size": fmt.Sprint(s.events.all()[0].Stored),
	}, told(replay))
	require.Equal(t, []string{nameOf(first)}, linksOf(replay))
	require.NotEqual(t, first.SpanContext.TraceID(), replay.SpanContext.TraceID())

	require.Equal(t, map[string]string{"outcome": "key-reused", "replayed": "false", "operation.id": operation, "attempt": "1"},
		told(spans[2]))
	require.Equal(t, map[string]string{"outcome": "rejected", "replayed": "false"}, told(spans[3]))
	require.Equal(t, "key_invalid", errorTypeOf(spans[3]))
	require.Empty(t, told(spans[4]), "a request without a key")
	require.Equal(t, map[string]string{"outcome": "store-unavailable", "replayed": "false", "operation.id": operation},
		told(spans[5]))
	require.Equal(t, "_OTHER", errorTypeOf(spans[5]))
}

func errorTypeOf(span tracetest.SpanStub) string {
	for _, kv := range span.Events[len(span.Events)-1].Attributes {
		if kv.Key == "error.type" {
			return kv.Value.AsString()
		}
	}
	return ""
}

// The events are at the times at which the things have happened.
func TestTimesOfSpanEvents(t *testing.T) {
	t.Parallel()
	var entered, left time.Time
	s := newService(t, outside, func(w http.ResponseWriter, r *http.Request) {
		entered = time.Now()
		charge(w, r)
		left = time.Now()
	}, idempotency.Options{})
	before := time.Now()
	require.Equal(t, 201, s.send(t, key, "4200"))
	events := s.spansOf(t, 1)[0].Events
	after := time.Now()
	claimed, handled, settled := events[0].Time, events[1].Time, events[2].Time
	for _, order := range [][2]time.Time{{before, claimed}, {claimed, entered}, {left, handled}, {handled, settled}, {settled, after}} {
		require.False(t, order[1].Before(order[0]), "%v, then %v", order[0], order[1])
	}
	e := s.events.all()[0]
	require.WithinDuration(t, e.Began.Add(e.Claim), claimed, 0)
	require.WithinDuration(t, settled.Add(-e.Completion), handled, 0)
	require.WithinDuration(t, e.Began.Add(e.Total), settled, 0)
}

// Only the request that runs the handler has a span of otelhttp. The outcomes are on spans that Observe makes.
func TestSpansWithOtelhttpInside(t *testing.T) {
	t.Parallel()
	s := newService(t, inside, charge, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "9900"))
	failWith(&s.store.begin, errDown)
	require.Equal(t, 503, s.send(t, key, "4200"))

	spans, told1 := s.spansOf(t, 5), s.events.all()
	executed, handler, replay, reused, unavailable := spans[0], spans[1], spans[2], spans[3], spans[4]
	operation := told1[0].Operation.String()
	require.Equal(t, trace.SpanKindServer, handler.SpanKind)
	require.Equal(t, map[string]string{"operation.id": operation, "attempt": "1"}, told(handler))

	for i, own := range []tracetest.SpanStub{executed, replay, reused, unavailable} {
		require.Equal(t, "idempotency "+string(told1[i].Outcome), own.Name)
		require.Equal(t, string(told1[i].Outcome), told(own)["outcome"])
		require.False(t, own.Parent.IsValid())
		require.WithinDuration(t, told1[i].Began, own.StartTime, 0)
		require.WithinDuration(t, told1[i].Began.Add(told1[i].Total), own.EndTime, 0)
	}
	require.Equal(t, operation, told(reused)["operation.id"])
	require.Equal(t, []string{nameOf(handler)}, linksOf(executed))
	require.Equal(t, []string{nameOf(handler)}, linksOf(replay))
	require.Empty(t, reused.Links)
	require.Equal(t, codes.Unset, replay.Status.Code)
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "store-unavailable"}, unavailable.Status)
}

// A handler that outlives the span of its request is told of on a child of that span. So is an answer that is stored in
// the background.
func TestSpanThatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan bool)
		impatient := func(s *service, payments http.Handler) http.Handler {
			return s.otelhttp(http.TimeoutHandler(s.idem.Handler(s.telemetry.Handler(payments)), time.Second, ""))
		}
		s := newService(t, impatient, func(w http.ResponseWriter, r *http.Request) {
			<-finish
			charge(w, r)
		}, idempotency.Options{StoreTimeout: 10 * time.Millisecond})
		failWith(&s.store.complete, errDown)
		require.Equal(t, 503, s.send(t, key, "4200"))
		request := s.spansOf(t, 1)[0]
		close(finish)
		require.Eventually(t, func() bool { return len(s.events.all()) == 1 }, 10*time.Second, time.Millisecond)
		s.store.complete.Store(nil)
		require.NoError(t, s.idem.Shutdown(t.Context()))

		for i, outcome := range []string{"unrecorded", "recorded"} {
			span := s.spans.GetSpans()[1+i]
			require.Equal(t, "idempotency "+outcome, span.Name)
			require.Equal(t, nameOf(request), span.Parent.TraceID().String()+" "+span.Parent.SpanID().String())
			require.Empty(t, span.Links, "its parent is the execution")
		}
		late, e := s.spans.GetSpans()[2], s.events.all()[1]
		require.Equal(t, []string{"outcome"}, eventsOf(late))
		require.WithinDuration(t, late.EndTime.Add(-e.Completion), late.StartTime, 0)
	})
}

func TestRequestThatIsNotSampled(t *testing.T) {
	t.Parallel()
	s := newService(t, outside, charge, idempotency.Options{}, sdktrace.WithSampler(sdktrace.AlwaysSample()))
	s.tracer = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithSyncer(s.spans))
	s.server.Config.Handler = outside(s, http.HandlerFunc(charge)) // Observe's own spans would be sampled
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Empty(t, s.events.all()[0].Note)
	require.Empty(t, s.spans.GetSpans())
}

func TestNotes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		note  string
		links int
	}{
		"none of the handler's own": {"", 1},
		"one of the handler's own":  {"payment 4711", 0},
		"another traceparent":       {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", 1},
		"zeros":                     {"00-00000000000000000000000000000000-0000000000000000-01", 0},
		"almost a traceparent":      {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01-more", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, outside, func(w http.ResponseWriter, r *http.Request) {
				if row.note != "" {
					require.NoError(t, idempotency.Annotate(r.Context(), row.note))
				}
				charge(w, r)
			}, idempotency.Options{})
			require.Equal(t, 201, s.send(t, key, "4200"))
			require.Equal(t, 201, s.send(t, key, "4200"))
			require.Len(t, s.spansOf(t, 2)[1].Links, row.links)
			if row.note != "" {
				require.Equal(t, row.note, s.events.all()[1].Note, "the last note counts")
			}
		})
	}
}

// Work of a Runner has no otelhttp. Its spans are the service's own.
func TestRunner(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.telemetry(t, otelidempotency.Options{})
	runner, err := idempotency.NewRunner(newStore(), idempotency.RunnerOptions{Observer: telemetry.Observe})
	require.NoError(t, err)
	tracer := s.tracer.Tracer("test")
	do := func() {
		ctx, span := tracer.Start(t.Context(), "message")
		defer span.End()
		_, _, err := runner.Do(ctx, idempotency.Key{ID: key}, nil, func(ctx context.Context) (idempotency.Response, error) {
			defer telemetry.Start(ctx)()
			require.Equal(t, map[string]int64{"": 1}, s.counts(t, "idempotency.operations.active"))
			return idempotency.Response{}, nil
		})
		require.NoError(t, err)
	}
	do()
	do()
	spans := s.spans.GetSpans()
	require.Equal(t, "replayed", told(spans[1])["outcome"])
	require.Equal(t, []string{nameOf(spans[0])}, linksOf(spans[1]))
}

// Every outcome has its attributes, and no more than the documentation says.
func TestAttributesOfSpans(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.telemetry(t, otelidempotency.Options{})
	operation := uuid.New()
	telemetry.Observe(t.Context(), idempotency.Event{
		Outcome: idempotency.OutcomeInProgress, Operation: operation, Attempt: 2, Began: time.Now(), Waited: time.Second,
		LeaseLeft: 1500 * time.Millisecond, FromCache: true, Omitted: true, Stored: 3,
	})
	span := s.spans.GetSpans()[0]
	require.Equal(t, map[string]string{
		"outcome": "in-progress", "replayed": "false", "operation.id": operation.String(), "attempt": "2", "from_cache": "true",
		"omitted": "true", "stored.size": "3", "lease.remaining": "1.5",
	}, told(span))
	require.Equal(t, []string{"waiting", "outcome"}, eventsOf(span))
	require.Equal(t, trace.SpanKindInternal, span.SpanKind)
	require.Contains(t, span.Events[1].Attributes, attribute.String("idempotency.outcome", "in-progress"))
}
