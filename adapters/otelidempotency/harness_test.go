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

// The user and the key of every request. Neither must be seen in what is told.
const (
	user = "alice@example.com"
	key  = "order-4711"
)

// sdk is an OpenTelemetry SDK that keeps what it is told in memory.
type sdk struct {
	reader *metric.ManualReader
	spans  *tracetest.InMemoryExporter
	meters *metric.MeterProvider
	tracer *trace.TracerProvider
}

func newSDK(t testing.TB, opts ...trace.TracerProviderOption) *sdk {
	t.Helper()
	s := &sdk{reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	s.meters = metric.NewMeterProvider(metric.WithReader(s.reader))
	s.tracer = trace.NewTracerProvider(append(opts, trace.WithSyncer(s.spans))...)
	return s
}

func (s *sdk) telemetry(t testing.TB, opts otelidempotency.Options) *otelidempotency.Telemetry {
	t.Helper()
	opts.MeterProvider, opts.TracerProvider = s.meters, s.tracer
	telemetry, err := otelidempotency.New(opts)
	require.NoError(t, err)
	return telemetry
}

func (s *sdk) metrics(t testing.TB) (all []metricdata.Metrics) {
	t.Helper()
	var collected metricdata.ResourceMetrics
	require.NoError(t, s.reader.Collect(context.Background(), &collected))
	for _, scope := range collected.ScopeMetrics {
		if strings.Contains(scope.Scope.Name, "idempotency") {
			all = append(all, scope.Metrics...)
		}
	}
	return all
}

// counts returns the series of a counter that are not zero, by their attributes.
func (s *sdk) counts(t testing.TB, name string) map[string]int64 {
	t.Helper()
	counts := map[string]int64{}
	for _, m := range s.metrics(t) {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == name {
			for _, point := range sum.DataPoints {
				if point.Value != 0 {
					counts[written(point.Attributes)] = point.Value
				}
			}
		}
	}
	return counts
}

// observations returns how many values the series of a histogram have, by their attributes.
func (s *sdk) observations(t testing.TB, name string) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, m := range s.metrics(t) {
		if m.Name != name {
			continue
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				counts[written(point.Attributes)] = point.Count
			}
		case metricdata.Histogram[int64]:
			for _, point := range data.DataPoints {
				counts[written(point.Attributes)] = point.Count
			}
		}
	}
	return counts
}

// written shortens the attributes: "executed", or "replayed idempotency.from_cache=true".
func written(set attribute.Set) string {
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

// faultyStore is a store in memory that can be made to fail.
type faultyStore struct {
	idempotency.Store
	begin, complete, extend atomic.Pointer[error]
	held                    chan bool // has a value when a request has found that another one holds its key
}

func newStore() *faultyStore {
	return &faultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), held: make(chan bool, 1)}
}

func failWith(at *atomic.Pointer[error], err error) { at.Store(&err) }

func failure(at *atomic.Pointer[error]) error {
	if err := at.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *faultyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := failure(&s.begin); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = &faultyClaim{claim.(idempotency.Checkpointer), s}
	} else if record.LeaseLeft > 0 {
		select {
		case s.held <- true:
		default:
		}
	}
	return record, claim, err
}

type faultyClaim struct {
	idempotency.Checkpointer
	store *faultyStore
}

func (c *faultyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if err := failure(&c.store.complete); err != nil {
		return err
	}
	return c.Checkpointer.Complete(ctx, resp, ttl)
}

func (c *faultyClaim) Extend(ctx context.Context, lease time.Duration) error {
	if err := failure(&c.store.extend); err != nil {
		return err
	}
	return c.Checkpointer.Extend(ctx, lease)
}

// events keeps what an Observer is told, beside telemetry.
type events struct {
	mu   sync.Mutex
	told []idempotency.Event
}

func (e *events) and(next idempotency.Observer) idempotency.Observer {
	return func(ctx context.Context, event idempotency.Event) {
		next(ctx, event)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.told = append(e.told, event)
	}
}

func (e *events) all() []idempotency.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]idempotency.Event(nil), e.told...)
}

// service is a guarded handler on a real server.
type service struct {
	*sdk
	store     *faultyStore
	idem      *idempotency.Middleware
	telemetry *otelidempotency.Telemetry
	events    events
	server    *httptest.Server
}

// stack builds what a server serves of the guarded handler.
type stack func(s *service, payments http.Handler) http.Handler

// plain has no otelhttp.
func plain(s *service, payments http.Handler) http.Handler {
	return s.idem.Handler(s.telemetry.Handler(payments))
}

func newService(
	t *testing.T, build stack, payments http.HandlerFunc, opts idempotency.Options, traces ...trace.TracerProviderOption,
) *service {
	t.Helper()
	s := &service{sdk: newSDK(t, traces...), store: newStore()}
	s.telemetry = s.sdk.telemetry(t, otelidempotency.Options{})
	opts.Observer, opts.Logger = s.events.and(s.telemetry.Observe), slog.New(slog.DiscardHandler)
	var err error
	s.idem, err = idempotency.New(s.store, func(*http.Request) (string, error) { return user, nil }, opts)
	require.NoError(t, err)
	s.server = &httptest.Server{Listener: servertest.Listen(t), Config: &http.Server{Handler: build(s, payments)}}
	s.server.Start()
	s.server.Client().Transport.(*http.Transport).DialContext = servertest.Dial
	t.Cleanup(func() {
		s.server.Close()
		require.NoError(t, s.idem.Shutdown(context.Background()))
	})
	return s
}

// send returns the status of the answer to a request with the key, unless it is empty.
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

func charge(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "charged")
}
