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

// wrapOtelhttpOutside is the stack with otelhttp outside the middleware.
func wrapOtelhttpOutside(s *service, payments http.Handler) http.Handler {
	return s.addOtelhttp(wrapWithoutOtelhttp(s, payments))
}

// wrapOtelhttpInside is the stack with otelhttp inside the middleware.
func wrapOtelhttpInside(s *service, payments http.Handler) http.Handler {
	return s.guard.Handler(s.addOtelhttp(s.telemetry.Handler(payments)))
}

// addOtelhttp wraps next in the middleware of otelhttp.
func (s *service) addOtelhttp(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "payments",
		otelhttp.WithTracerProvider(s.tracerProvider), otelhttp.WithMeterProvider(s.meterProvider))
}

// awaitSpans waits until n spans have ended, because a server ends its span after the answer. The spans are in the order
// of their starts.
func (s *service) awaitSpans(t *testing.T, n int) tracetest.SpanStubs {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.spanExporter.GetSpans()) >= n }, 10*time.Second, time.Millisecond)
	spans := s.spanExporter.GetSpans()
	require.Len(t, spans, n)
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return spans
}

// ownAttributes returns the attributes of span that belong to this library, without their prefix.
func ownAttributes(span tracetest.SpanStub) map[string]string {
	attributes := map[string]string{}
	for _, kv := range span.Attributes {
		if name, ours := strings.CutPrefix(string(kv.Key), "idempotency."); ours {
			attributes[name] = kv.Value.String()
		}
	}
	return attributes
}

// eventNames returns the names of the events of span, without their prefix.
func eventNames(span tracetest.SpanStub) (names []string) {
	for _, e := range span.Events {
		names = append(names, strings.TrimPrefix(e.Name, "idempotency."))
	}
	return names
}

// linkedSpanIDs returns the IDs of the spans that span links, as spanID does.
func linkedSpanIDs(span tracetest.SpanStub) (links []string) {
	for _, link := range span.Links {
		links = append(links, link.SpanContext.TraceID().String()+" "+link.SpanContext.SpanID().String())
	}
	return links
}

// spanID returns the trace ID and the span ID.
func spanID(span tracetest.SpanStub) string {
	return span.SpanContext.TraceID().String() + " " + span.SpanContext.SpanID().String()
}

func TestSpansWithOtelhttpOutside(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapOtelhttpOutside, charge, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "9900"))
	require.Equal(t, 400, s.send(t, "no key", "4200"))
	require.Equal(t, 201, s.send(t, "", "4200"))
	failWith(&s.store.beginErr, errDown)
	require.Equal(t, 503, s.send(t, key, "4200"))

	spans, operation := s.awaitSpans(t, 6), s.events.all()[0].Operation.String()
	first := spans[0]
	require.Equal(t, map[string]string{
		"outcome": "executed", "replayed": "false", "operation.id": operation, "attempt": "1",
		"stored.size": fmt.Sprint(s.events.all()[0].Stored),
	}, ownAttributes(first))
	require.Equal(t, []string{"claimed", "handled", "outcome"}, eventNames(first))
	require.Empty(t, first.Links)

	replay := spans[1]
	require.Equal(t, map[string]string{
		"outcome": "replayed", "replayed": "true", "operation.id": operation, "attempt": "1",
		"stored.size": fmt.Sprint(s.events.all()[0].Stored),
	}, ownAttributes(replay))
	require.Equal(t, []string{spanID(first)}, linkedSpanIDs(replay))
	require.NotEqual(t, first.SpanContext.TraceID(), replay.SpanContext.TraceID())

	require.Equal(t, map[string]string{"outcome": "key-reused", "replayed": "false", "operation.id": operation, "attempt": "1"},
		ownAttributes(spans[2]))
	require.Equal(t, map[string]string{"outcome": "rejected", "replayed": "false"}, ownAttributes(spans[3]))
	require.Equal(t, "key_invalid", eventErrorType(spans[3]))
	require.Empty(t, ownAttributes(spans[4]), "a request without a key")
	require.Equal(t, map[string]string{"outcome": "store-unavailable", "replayed": "false", "operation.id": operation},
		ownAttributes(spans[5]))
	require.Equal(t, "_OTHER", eventErrorType(spans[5]))
}

// The span of otelhttp says what became of a request that is refused beside the first attempt, whose handler panics, or whose client
// hangs up.
func TestSpansOfInterruptedRequests(t *testing.T) {
	t.Parallel()
	entered, proceed := make(chan bool), make(chan bool)
	keepOuterContext := func(s *service, payments http.Handler) http.Handler {
		guarded := wrapWithoutOtelhttp(s, payments)
		return s.addOtelhttp(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			guarded.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), outerContextKey{}, r.Context())))
		}))
	}
	s := newService(t, keepOuterContext, func(w http.ResponseWriter, r *http.Request) {
		switch op, _ := idempotency.FromContext(r.Context()); op.Attempt {
		case 1:
			entered <- true
			<-proceed
			panic(http.ErrAbortHandler)
		case 2:
			entered <- true
			<-r.Context().Value(outerContextKey{}).(context.Context).Done()
			charge(w, r)
		}
	}, idempotency.Options{})
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	sendAndFail := func() (failed chan error) {
		failed = make(chan error, 1)
		go func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+"/payments", strings.NewReader("4200"))
			r.Header.Set("Idempotency-Key", key)
			if resp, doErr := s.server.Client().Do(r); doErr == nil {
				resp.Body.Close()
			} else {
				err = doErr
			}
			failed <- err
		}()
		<-entered
		return failed
	}
	first := sendAndFail()
	require.Equal(t, 409, s.send(t, key, "4200"))
	s.awaitSpans(t, 1)
	close(proceed)
	require.Error(t, <-first)
	s.awaitSpans(t, 2)
	second := sendAndFail()
	hangUp()
	require.ErrorIs(t, <-second, context.Canceled)

	spans, operation := s.awaitSpans(t, 3), s.events.all()[0].Operation.String()
	for i, want := range []struct{ outcome, attempt string }{{"released", "1"}, {"in-progress", "1"}, {"executed", "2"}} {
		got := ownAttributes(spans[i])
		require.Equal(t, trace.SpanKindServer, spans[i].SpanKind)
		require.Equal(t, want.outcome, got["outcome"])
		require.Equal(t, want.attempt, got["attempt"])
		require.Equal(t, operation, got["operation.id"])
	}
}

type outerContextKey struct{}

// eventErrorType returns the error.type of the last event of span.
func eventErrorType(span tracetest.SpanStub) string {
	for _, kv := range span.Events[len(span.Events)-1].Attributes {
		if kv.Key == "error.type" {
			return kv.Value.AsString()
		}
	}
	return ""
}

// Each span event has the time of the fact: the claim, the return of the handler, the end of the request.
func TestTimesOfSpanEvents(t *testing.T) {
	t.Parallel()
	var entered, left time.Time
	s := newService(t, wrapOtelhttpOutside, func(w http.ResponseWriter, r *http.Request) {
		entered = time.Now()
		charge(w, r)
		left = time.Now()
	}, idempotency.Options{})
	before := time.Now()
	require.Equal(t, 201, s.send(t, key, "4200"))
	events := s.awaitSpans(t, 1)[0].Events
	after := time.Now()
	claimed, handled, settled := events[0].Time, events[1].Time, events[2].Time
	for _, order := range [][2]time.Time{
		{before, claimed}, {claimed, entered}, {left, handled}, {handled, settled}, {settled, after},
	} {
		require.False(t, order[1].Before(order[0]), "%v, then %v", order[0], order[1])
	}
	e := s.events.all()[0]
	require.WithinDuration(t, e.Began.Add(e.Claim), claimed, 0)
	require.WithinDuration(t, settled.Add(-e.Completion), handled, 0)
	require.WithinDuration(t, e.Began.Add(e.Total), settled, 0)
}

// With otelhttp inside the middleware, only the request that runs the handler has a span of otelhttp. Observe makes
// additional spans for the outcomes.
func TestSpansWithOtelhttpInside(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapOtelhttpInside, charge, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "9900"))
	failWith(&s.store.beginErr, errDown)
	require.Equal(t, 503, s.send(t, key, "4200"))

	spans, observed := s.awaitSpans(t, 5), s.events.all()
	executed, handler, replay, reused, unavailable := spans[0], spans[1], spans[2], spans[3], spans[4]
	operation := observed[0].Operation.String()
	require.Equal(t, trace.SpanKindServer, handler.SpanKind)
	require.Equal(t, map[string]string{"operation.id": operation, "attempt": "1"}, ownAttributes(handler))

	for i, own := range []tracetest.SpanStub{executed, replay, reused, unavailable} {
		require.Equal(t, "idempotency "+string(observed[i].Outcome), own.Name)
		require.Equal(t, string(observed[i].Outcome), ownAttributes(own)["outcome"])
		require.False(t, own.Parent.IsValid())
		require.WithinDuration(t, observed[i].Began, own.StartTime, 0)
		require.WithinDuration(t, observed[i].Began.Add(observed[i].Total), own.EndTime, 0)
	}
	require.Equal(t, operation, ownAttributes(reused)["operation.id"])
	require.Equal(t, []string{spanID(handler)}, linkedSpanIDs(executed))
	require.Equal(t, []string{spanID(handler)}, linkedSpanIDs(replay))
	require.Empty(t, reused.Links)
	require.Equal(t, codes.Unset, replay.Status.Code)
	require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "store-unavailable"}, unavailable.Status)
}

// If the span of the request has ended before the outcome, the outcome is on a child span. So is the outcome of an answer
// that is stored in the background.
func TestSpanThatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan bool)
		limitToOneSecond := func(s *service, payments http.Handler) http.Handler {
			return s.addOtelhttp(http.TimeoutHandler(s.guard.Handler(s.telemetry.Handler(payments)), time.Second, ""))
		}
		s := newService(t, limitToOneSecond, func(w http.ResponseWriter, r *http.Request) {
			<-finish
			charge(w, r)
		}, idempotency.Options{StoreTimeout: 10 * time.Millisecond})
		failWith(&s.store.completeErr, errDown)
		require.Equal(t, 503, s.send(t, key, "4200"))
		request := s.awaitSpans(t, 1)[0]
		close(finish)
		require.Eventually(t, func() bool { return len(s.events.all()) == 1 }, 10*time.Second, time.Millisecond)
		s.store.completeErr.Store(nil)
		require.NoError(t, s.guard.Shutdown(t.Context()))

		for i, outcome := range []string{"unrecorded", "recorded"} {
			span := s.spanExporter.GetSpans()[1+i]
			require.Equal(t, "idempotency "+outcome, span.Name)
			require.Equal(t, spanID(request), span.Parent.TraceID().String()+" "+span.Parent.SpanID().String())
			require.Empty(t, span.Links, "the parent is the execution")
		}
		late, e := s.spanExporter.GetSpans()[2], s.events.all()[1]
		require.Equal(t, []string{"outcome"}, eventNames(late))
		require.WithinDuration(t, late.EndTime.Add(-e.Completion), late.StartTime, 0)
	})
}

// If the span of a request is not sampled, Observe makes no span and no note.
func TestRequestThatIsNotSampled(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapOtelhttpOutside, charge, idempotency.Options{}, sdktrace.WithSampler(sdktrace.AlwaysSample()))
	s.tracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithSyncer(s.spanExporter))
	s.server.Config.Handler = wrapOtelhttpOutside(s, http.HandlerFunc(charge)) // a span that Observe starts would be sampled
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Empty(t, s.events.all()[0].Note)
	require.Empty(t, s.spanExporter.GetSpans())
}

// A replay links the span in the note of the execution, unless the handler has set another note.
func TestNotes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		handlerNote string
		wantLinks   int
	}{
		"no note of the handler": {"", 1},
		"note of the handler":    {"payment 4711", 0},
		"another traceparent":    {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", 1},
		"zeros":                  {"00-00000000000000000000000000000000-0000000000000000-01", 0},
		"almost a traceparent":   {"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01-more", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, wrapOtelhttpOutside, func(w http.ResponseWriter, r *http.Request) {
				if row.handlerNote != "" {
					require.NoError(t, idempotency.Annotate(r.Context(), row.handlerNote))
				}
				charge(w, r)
			}, idempotency.Options{})
			require.Equal(t, 201, s.send(t, key, "4200"))
			require.Equal(t, 201, s.send(t, key, "4200"))
			require.Len(t, s.awaitSpans(t, 2)[1].Links, row.wantLinks)
			if row.handlerNote != "" {
				require.Equal(t, row.handlerNote, s.events.all()[1].Note, "the handler's note replaces the note of this library")
			}
		})
	}
}

// The spans of a Runner's work are the spans that the service starts, because there is no otelhttp.
func TestRunner(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{})
	runner, err := idempotency.NewRunner(newFaultyStore(), idempotency.RunnerOptions{Observer: telemetry.Observe})
	require.NoError(t, err)
	tracer := s.tracerProvider.Tracer("test")
	do := func() {
		ctx, span := tracer.Start(t.Context(), "message")
		defer span.End()
		_, _, err := runner.Do(ctx, idempotency.Key{ID: key}, nil, func(ctx context.Context) (idempotency.Response, error) {
			defer telemetry.Start(ctx)()
			require.Equal(t, map[string]int64{"": 1}, s.collectCounts(t, "idempotency.operations.active"))
			return idempotency.Response{}, nil
		})
		require.NoError(t, err)
	}
	do()
	do()
	spans := s.spanExporter.GetSpans()
	require.Equal(t, "replayed", ownAttributes(spans[1])["outcome"])
	require.Equal(t, []string{spanID(spans[0])}, linkedSpanIDs(spans[1]))
}

// The span of an event has the attributes in the documentation, and no others.
func TestAttributesOfSpans(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{})
	operation := uuid.New()
	telemetry.Observe(t.Context(), idempotency.Event{
		Outcome: idempotency.OutcomeInProgress, Operation: operation, Attempt: 2, Began: time.Now(), Waited: time.Second,
		LeaseLeft: 1500 * time.Millisecond, FromCache: true, Omitted: true, Stored: 3,
	})
	span := s.spanExporter.GetSpans()[0]
	require.Equal(t, map[string]string{
		"outcome": "in-progress", "replayed": "false", "operation.id": operation.String(), "attempt": "2", "from_cache": "true",
		"omitted": "true", "stored.size": "3", "lease.remaining": "1.5",
	}, ownAttributes(span))
	require.Equal(t, []string{"waiting", "outcome"}, eventNames(span))
	require.Equal(t, trace.SpanKindInternal, span.SpanKind)
	require.Contains(t, span.Events[1].Attributes, attribute.String("idempotency.outcome", "in-progress"))
}
