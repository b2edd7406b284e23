package otelidempotency_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The user and the key of every request. Metrics and traces must contain neither.
const (
	user = "alice@example.com"
	key  = "order-4711"
)

// sdk is an OpenTelemetry SDK that keeps metrics and spans in memory.
type sdk struct {
	metricReader   *metric.ManualReader
	spanExporter   *tracetest.InMemoryExporter
	meterProvider  *metric.MeterProvider
	tracerProvider *trace.TracerProvider
}

func newSDK(t testing.TB, opts ...trace.TracerProviderOption) *sdk {
	t.Helper()
	s := &sdk{metricReader: metric.NewManualReader(), spanExporter: tracetest.NewInMemoryExporter()}
	s.meterProvider = metric.NewMeterProvider(metric.WithReader(s.metricReader))
	s.tracerProvider = trace.NewTracerProvider(append(opts, trace.WithSyncer(s.spanExporter))...)
	return s
}

// newTelemetry returns a Telemetry that reports to s.
func (s *sdk) newTelemetry(t testing.TB, opts otelidempotency.Options) *otelidempotency.Telemetry {
	t.Helper()
	opts.MeterProvider, opts.TracerProvider = s.meterProvider, s.tracerProvider
	telemetry, err := otelidempotency.New(opts)
	require.NoError(t, err)
	return telemetry
}

// collectMetrics returns the metrics of this library.
func (s *sdk) collectMetrics(t testing.TB) (all []metricdata.Metrics) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, s.metricReader.Collect(context.Background(), &collected))
	for _, scope := range collected.ScopeMetrics {
		if strings.Contains(scope.Scope.Name, "idempotency") {
			all = append(all, scope.Metrics...)
		}
	}
	return all
}

// collectCounts returns the values of a counter by attributes, without the series that are zero.
func (s *sdk) collectCounts(t testing.TB, name string) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for _, m := range s.collectMetrics(t) {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
			for _, point := range sum.DataPoints {
				if point.Value != 0 {
					counts[formatAttributes(point.Attributes)] = point.Value
				}
			}
		}
	}
	return counts
}

// collectObservations returns the numbers of values in a histogram by attributes.
func (s *sdk) collectObservations(t testing.TB, name string) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, m := range s.collectMetrics(t) {
		if m.Name != name {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				counts[formatAttributes(point.Attributes)] = point.Count
			}
		case metricdata.Histogram[int64]:
			for _, point := range data.DataPoints {
				counts[formatAttributes(point.Attributes)] = point.Count
			}
		}
	}
	return counts
}

// formatAttributes returns attributes in a short form: "executed", or "replayed idempotency.from_cache=true".
func formatAttributes(set attribute.Set) string {
	var words []string
	for _, kv := range set.ToSlice() {
		if kv.Key == "idempotency.outcome" {
			words = append([]string{kv.Value.AsString()}, words...)
		} else {
			words = append(words, string(kv.Key)+"="+kv.Value.String())
		}
	}
	return strings.Join(words, " ")
}

// faultyStore is a memory store whose calls fail with the errors in its fields.
type faultyStore struct {
	idempotency.Store
	beginErr, completeErr, extendErr atomic.Pointer[error]
	heldKeyFound                     chan bool // receives a value when a request has found its key held by another request
}

func newFaultyStore() *faultyStore {
	return &faultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), heldKeyFound: make(chan bool, 1)}
}

// failWith sets the error of a call, which is one of the fields of faultyStore.
func failWith(at *atomic.Pointer[error], err error) { at.Store(&err) }

// loadError returns the error that failWith has set, and otherwise nil.
func loadError(at *atomic.Pointer[error]) error {
	if err := at.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *faultyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := loadError(&s.beginErr); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = &faultyClaim{claim.(idempotency.Checkpointer), s}
	} else if record.LeaseLeft > 0 {
		select {
		case s.heldKeyFound <- true:
		default:
		}
	}
	return record, claim, err
}

// faultyClaim is a claim of a faultyStore.
type faultyClaim struct {
	idempotency.Checkpointer
	store *faultyStore
}

func (c *faultyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if err := loadError(&c.store.completeErr); err != nil {
		return err
	}
	return c.Checkpointer.Complete(ctx, resp, ttl)
}

func (c *faultyClaim) Extend(ctx context.Context, lease time.Duration) error {
	if err := loadError(&c.store.extendErr); err != nil {
		return err
	}
	return c.Checkpointer.Extend(ctx, lease)
}

// events keeps the events that telemetry observes.
type events struct {
	mu       sync.Mutex
	observed []idempotency.Event
}

// recordAnd returns an observer that calls next, and keeps the event.
func (e *events) recordAnd(next idempotency.Observer) idempotency.Observer {
	return func(ctx context.Context, event idempotency.Event) {
		next(ctx, event)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.observed = append(e.observed, event)
	}
}

func (e *events) all() []idempotency.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]idempotency.Event(nil), e.observed...)
}

// service is a guarded handler on a real server.
type service struct {
	*sdk
	store     *faultyStore
	guard     *idempotency.Middleware
	telemetry *otelidempotency.Telemetry
	events    events
	server    *httptest.Server
}

// stack wraps the handler of the payments in the middleware of the server.
type stack func(s *service, payments http.Handler) http.Handler

// wrapWithoutOtelhttp is the stack without otelhttp.
func wrapWithoutOtelhttp(s *service, payments http.Handler) http.Handler {
	return s.guard.Handler(s.telemetry.Handler(payments))
}

// newService starts a server with the handler in the given stack, and stops the server at the end of the test.
func newService(
	t *testing.T, build stack, payments http.HandlerFunc, opts idempotency.Options, traces ...trace.TracerProviderOption,
) *service {
	t.Helper()
	s := &service{sdk: newSDK(t, traces...), store: newFaultyStore()}
	s.telemetry = s.newTelemetry(t, otelidempotency.Options{})
	opts.Observer, opts.Logger = s.events.recordAnd(s.telemetry.Observe), slog.New(slog.DiscardHandler)
	var err error
	s.guard, err = idempotency.New(s.store, func(*http.Request) (string, error) { return user, nil }, opts)
	require.NoError(t, err)
	s.server = &httptest.Server{Listener: servertest.Listen(t), Config: &http.Server{Handler: build(s, payments)}}
	s.server.Start()
	s.server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	t.Cleanup(func() {
		s.server.Close()
		require.NoError(t, s.guard.Shutdown(context.Background()))
	})
	return s
}

// send sends a request, and returns the status of the answer. If key is empty, the request has no key.
func (s *service) send(t *testing.T, key, body string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.server.URL+"/payments", strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := s.server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}

var errDown = errors.New("the store is down, and quotes " + user + " and " + key)

// charge is a handler that answers 201.
func charge(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "charged")
}
