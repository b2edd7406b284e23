package otelidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
)

func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	active := make(chan map[string]int64, 1)
	var s *service
	s = newService(t, wrapWithoutOtelhttp, func(w http.ResponseWriter, r *http.Request) {
		select {
		case active <- s.collectCounts(t, "idempotency.operations.active"):
		default:
		}
		charge(w, r)
	}, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "9900"))
	require.Equal(t, 400, s.send(t, "no key", "4200"))
	require.Equal(t, 201, s.send(t, "", "4200"), "without a key")
	failWith(&s.store.beginErr, errDown)
	require.Equal(t, 503, s.send(t, key, "4200"))

	require.Equal(t, map[string]int64{"executed": 1, "replayed": 2, "key-reused": 1, "rejected": 1, "store-unavailable": 1},
		s.collectCounts(t, "idempotency.requests"))
	require.Equal(t, map[string]int64{"rejected error.type=key_invalid": 1, "store-unavailable error.type=_OTHER": 1},
		s.collectCounts(t, "idempotency.errors"))
	require.Equal(t, map[string]int64{"": 1}, <-active, "while the handler runs")
	require.Empty(t, s.collectCounts(t, "idempotency.operations.active"))
	require.Empty(t, s.collectCounts(t, "idempotency.leases.lost"))
	require.Empty(t, s.collectCounts(t, "idempotency.recoveries"))
	require.Equal(t, map[string]uint64{"executed": 1, "replayed": 2, "key-reused": 1, "store-unavailable": 1},
		s.collectObservations(t, "idempotency.claim.duration"))
	for _, name := range []string{"handler.duration", "completion.duration", "stored.size"} {
		require.Equal(t, map[string]uint64{"executed": 1}, s.collectObservations(t, "idempotency."+name), name)
	}
	require.Empty(t, s.collectObservations(t, "idempotency.wait.duration"))
}

// An answer that is stored in the background counts once as a request, and once as a recovery.
func TestMetricsOfAnAnswerThatIsStoredLater(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapWithoutOtelhttp, charge, idempotency.Options{StoreTimeout: 10 * time.Millisecond})
	failWith(&s.store.completeErr, errDown)
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, map[string]int64{"unrecorded": 1}, s.collectCounts(t, "idempotency.requests"))
	require.Empty(t, s.collectCounts(t, "idempotency.recoveries"))
	s.store.completeErr.Store(nil)
	require.NoError(t, s.guard.Shutdown(t.Context()))

	require.Equal(t, map[string]int64{"unrecorded": 1}, s.collectCounts(t, "idempotency.requests"))
	require.Equal(t, map[string]int64{"recorded": 1}, s.collectCounts(t, "idempotency.recoveries"))
	require.Equal(t, map[string]int64{"unrecorded error.type=_OTHER": 1}, s.collectCounts(t, "idempotency.errors"))
	for name, want := range map[string]map[string]uint64{
		"claim.duration":      {"unrecorded": 1},
		"handler.duration":    {"unrecorded": 1},
		"completion.duration": {"unrecorded": 1, "recorded": 1},
		"stored.size":         {"recorded": 1},
	} {
		require.Equal(t, want, s.collectObservations(t, "idempotency."+name), name)
	}
}

// The store reports the loss of a claim at the completion, while the handler runs, or in the background.
func TestMetricsOfLostLeases(t *testing.T) {
	t.Parallel()
	t.Run("at the completion", func(t *testing.T) {
		t.Parallel()
		s := newService(t, wrapWithoutOtelhttp, charge, idempotency.Options{})
		failWith(&s.store.completeErr, idempotency.ErrClaimLost)
		require.Equal(t, 409, s.send(t, key, "4200"))
		require.Equal(t, map[string]int64{"claim-lost": 1}, s.collectCounts(t, "idempotency.requests"))
		require.Equal(t, map[string]int64{"": 1}, s.collectCounts(t, "idempotency.leases.lost"))
		require.Empty(t, s.collectCounts(t, "idempotency.recoveries"))
	})
	t.Run("while the handler runs, although its answer is stored", func(t *testing.T) {
		t.Parallel()
		s := newService(t, wrapWithoutOtelhttp, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			charge(w, r)
		}, idempotency.Options{Lease: 100 * time.Millisecond})
		failWith(&s.store.extendErr, errDown)
		require.Equal(t, 201, s.send(t, key, "4200"))
		require.Equal(t, map[string]int64{"executed": 1}, s.collectCounts(t, "idempotency.requests"))
		require.Equal(t, map[string]int64{"": 1}, s.collectCounts(t, "idempotency.leases.lost"))
	})
	t.Run("in the background", func(t *testing.T) {
		t.Parallel()
		s := newService(t, wrapWithoutOtelhttp, charge, idempotency.Options{StoreTimeout: 10 * time.Millisecond})
		failWith(&s.store.completeErr, errDown)
		require.Equal(t, 201, s.send(t, key, "4200"))
		failWith(&s.store.completeErr, idempotency.ErrClaimLost)
		require.NoError(t, s.guard.Shutdown(t.Context()))
		require.Equal(t, map[string]int64{"unrecorded": 1}, s.collectCounts(t, "idempotency.requests"))
		require.Equal(t, map[string]int64{"claim-lost": 1}, s.collectCounts(t, "idempotency.recoveries"))
	})
	t.Run("restored in the background", func(t *testing.T) {
		t.Parallel()
		s := newService(t, wrapWithoutOtelhttp, charge, idempotency.Options{StoreTimeout: 10 * time.Millisecond})
		failWith(&s.store.completeErr, errDown)
		require.Equal(t, 201, s.send(t, key, "4200"))
		failWith(&s.store.completeErr, idempotency.ErrRestored)
		require.NoError(t, s.guard.Shutdown(t.Context()))
		require.Equal(t, map[string]int64{"restored": 1}, s.collectCounts(t, "idempotency.recoveries"))
	})
}

// The wait of a request for another attempt is in the histogram of waits.
func TestMetricsOfARequestThatWaits(t *testing.T) {
	t.Parallel()
	running, finish := make(chan bool), make(chan bool)
	s := newService(t, wrapWithoutOtelhttp, func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-finish
		charge(w, r)
	}, idempotency.Options{Wait: time.Minute})
	first, waiting := make(chan int), make(chan int)
	go func() { first <- s.send(t, key, "4200") }()
	<-running
	go func() { waiting <- s.send(t, key, "4200") }()
	<-s.store.heldKeyFound // the second request has found the key held by the first
	close(finish)
	require.Equal(t, 201, <-first)
	require.Equal(t, 201, <-waiting)
	require.Equal(t, map[string]int64{"executed": 1, "replayed": 1}, s.collectCounts(t, "idempotency.requests"))
	require.Equal(t, map[string]uint64{"replayed": 1}, s.collectObservations(t, "idempotency.wait.duration"))
}

// An answer from the cache is no claim of the store, so the histogram of claims does not count the answer.
func TestMetricsOfACache(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{})
	e := idempotency.Event{Outcome: idempotency.OutcomeReplayed, Claim: time.Microsecond, FromCache: true}
	telemetry.Observe(t.Context(), e)
	require.Equal(t, map[string]int64{"replayed idempotency.from_cache=true": 1}, s.collectCounts(t, "idempotency.requests"))
	require.Empty(t, s.collectObservations(t, "idempotency.claim.duration"))
	e.Waited = time.Second // the store was called before the cache answered
	telemetry.Observe(t.Context(), e)
	require.Equal(t, map[string]uint64{"replayed": 1}, s.collectObservations(t, "idempotency.claim.duration"))
}

// With the verdict Tombstone, the execution has the attribute omitted, and no stored size.
func TestMetricsOfAnAnswerThatIsNotKept(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapWithoutOtelhttp, func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone)
		charge(w, r)
	}, idempotency.Options{})
	require.Equal(t, 201, s.send(t, key, "4200"))
	require.Equal(t, 409, s.send(t, key, "4200"))
	require.Equal(t, map[string]int64{"executed idempotency.omitted=true": 1, "not-replayable": 1},
		s.collectCounts(t, "idempotency.requests"))
	require.Empty(t, s.collectObservations(t, "idempotency.stored.size"))
}

// New makes every series of the counters with the value zero, because Prometheus misses the first event of a series that
// begins at one.
func TestSeriesBeginAtZero(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../observer.go")
	require.NoError(t, err)
	var want []string
	for _, match := range regexp.MustCompile(`Outcome\w+ +Outcome = "([a-z-]+)"`).FindAllSubmatch(source, -1) {
		want = append(want, string(match[1]))
	}
	require.Greater(t, len(want), 15)
	s := newSDK(t)
	s.newTelemetry(t, otelidempotency.Options{})
	madeSeries := map[string][]string{}
	for _, m := range s.collectMetrics(t) {
		for _, point := range m.Data.(metricdata.Sum[int64]).DataPoints {
			require.Zero(t, point.Value)
			madeSeries[m.Name] = append(madeSeries[m.Name], formatAttributes(point.Attributes))
		}
	}
	for _, outcome := range want {
		switch outcome {
		case "recorded": // the outcome of a recovery only
		case "happened", "not-happened":
			assert.Contains(t, madeSeries["idempotency.resolutions"], outcome)
		default:
			assert.Contains(t, madeSeries["idempotency.requests"], outcome)
		}
	}
	assert.ElementsMatch(t, []string{
		"recorded", "recorded idempotency.omitted=true", "restored", "restored idempotency.omitted=true", "claim-lost",
	}, madeSeries["idempotency.recoveries"])
	assert.Contains(t, madeSeries["idempotency.errors"], "rejected error.type=key_missing")
	assert.Contains(t, madeSeries["idempotency.errors"], "unrecorded error.type=timeout")
	assert.Len(t, madeSeries["idempotency.leases.lost"], 1)
	assert.Len(t, madeSeries["idempotency.operations.active"], 1)
}

// The documentation names every metric, with its kind and unit.
func TestDocumentationNamesEveryMetric(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	s := newSDK(t)
	e := executed
	e.Waited = time.Second
	s.newTelemetry(t, otelidempotency.Options{}).Observe(t.Context(), e)
	metrics := s.collectMetrics(t)
	require.Len(t, metrics, 11)
	for _, m := range metrics {
		kind := "histogram"
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			kind = map[bool]string{true: "counter", false: "updowncounter"}[sum.IsMonotonic]
		}
		require.Regexp(t, regexp.QuoteMeta(m.Name)+` +`+kind+` +`+regexp.QuoteMeta(m.Unit)+` +\w`, string(source))
	}
}

func TestErrorType(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for want, err := range map[string]error{
		"record_invalid": fmt.Errorf("%w: %w", idempotency.ErrUnavailable, idempotency.ErrRecordInvalid),
		"store_full":     idempotency.ErrStoreFull,
		"store_busy":     fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, context.DeadlineExceeded),
		"timeout":        fmt.Errorf("%w: %w", idempotency.ErrUnavailable, context.DeadlineExceeded),
		"connection":     fmt.Errorf("%w: %w", idempotency.ErrUnavailable, refused),
		"_OTHER":         errDown,
	} {
		e := idempotency.Event{Outcome: idempotency.OutcomeUnavailable, Err: err}
		assert.Equal(t, want, otelidempotency.ErrorType(e))
		e.Outcome = idempotency.OutcomeReleased // the error is of the handler, and not of the store
		assert.Empty(t, otelidempotency.ErrorType(e))
	}
	slowName := &net.DNSError{IsTimeout: true} // is neither context.DeadlineExceeded nor os.ErrDeadlineExceeded
	assert.Equal(t, "timeout", otelidempotency.ErrorType(idempotency.Event{Outcome: idempotency.OutcomeUnrecorded, Err: slowName}))
	for want, err := range map[string]error{
		"key_invalid":  fmt.Errorf("%w: too long", idempotency.ErrKeyInvalid),
		"user_unknown": fmt.Errorf("%w: %w", idempotency.ErrUserUnknown, context.DeadlineExceeded),
		"_OTHER":       context.DeadlineExceeded, // no rejection has this cause
	} {
		assert.Equal(t, want, otelidempotency.ErrorType(idempotency.Event{Outcome: idempotency.OutcomeRejected, Err: err}))
	}
}

func TestOptionAttributes(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	telemetry := s.newTelemetry(t, otelidempotency.Options{
		Attributes: func(_ context.Context, e idempotency.Event) []attribute.KeyValue {
			return []attribute.KeyValue{attribute.String("http.route", e.Key.Endpoint)}
		},
	})
	telemetry.Observe(t.Context(), idempotency.Event{
		Outcome: idempotency.OutcomeUnavailable, Key: idempotency.Key{Endpoint: "POST /payments"}, Err: errDown, Claim: time.Second,
	})
	const want = "store-unavailable http.route=POST /payments"
	require.Equal(t, map[string]int64{want: 1}, s.collectCounts(t, "idempotency.requests"))
	require.Equal(t, map[string]uint64{want: 1}, s.collectObservations(t, "idempotency.claim.duration"))
	require.Equal(t, map[string]int64{"store-unavailable error.type=_OTHER http.route=POST /payments": 1},
		s.collectCounts(t, "idempotency.errors"))
}

// An unknown outcome, for example of a newer version of the library, is counted too.
func TestOutcomeThatIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newSDK(t)
	s.newTelemetry(t, otelidempotency.Options{}).Observe(t.Context(), idempotency.Event{Outcome: "new", Operation: uuid.New()})
	require.Equal(t, map[string]int64{"new": 1}, s.collectCounts(t, "idempotency.requests"))
}

// refusingProvider is a MeterProvider that refuses histograms.
type refusingProvider struct{ noop.MeterProvider }

func (refusingProvider) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

func (refusingMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errors.New("no " + name)
}

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := otelidempotency.New(otelidempotency.Options{MeterProvider: refusingProvider{}})
	for _, name := range []string{"claim", "wait", "handler", "completion"} {
		require.ErrorContains(t, err, "no idempotency."+name+".duration")
	}
}

// Without an SDK, Telemetry works with the global providers, and reports nothing.
func TestGlobalProviders(t *testing.T) {
	t.Parallel()
	telemetry, err := otelidempotency.New(otelidempotency.Options{})
	require.NoError(t, err)
	telemetry.Observe(t.Context(), idempotency.Event{Outcome: idempotency.OutcomeReplayed})
	telemetry.Start(t.Context())()
}

// Operations that an operator has resolved are in a metric of their own, and not among the requests.
func TestMetricsOfResolutions(t *testing.T) {
	t.Parallel()
	s := newService(t, wrapWithoutOtelhttp, charge, idempotency.Options{})
	for _, outcome := range []idempotency.Outcome{
		idempotency.OutcomeHappened, idempotency.OutcomeNotHappened, idempotency.OutcomeNotHappened,
	} {
		s.telemetry.Observe(t.Context(), idempotency.Event{Outcome: outcome, Note: "alice: asked the bank"})
	}
	require.Equal(t, map[string]int64{"happened": 1, "not-happened": 2}, s.collectCounts(t, "idempotency.resolutions"))
	require.Empty(t, s.collectCounts(t, "idempotency.requests"))
	require.Empty(t, s.collectCounts(t, "idempotency.errors"))
}
