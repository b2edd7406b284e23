// Package shop is a service with metrics and traces. Package otelhttp wraps the guarded handler. Prometheus reads the metrics
// at /metrics.
package shop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// Shop is a running service.
type Shop struct {
	Addr    string
	Observe idempotency.Observer // records metrics and traces

	middleware    *idempotency.Middleware
	httpServer    *http.Server
	meterProvider *metric.MeterProvider
}

// Open starts a service that guards POST /payments with the given store and options, and sends traces to the provider
// traces. Open replaces the Observer and Logger of opts.
func Open(
	store idempotency.Store, payments http.Handler, traces trace.TracerProvider, opts idempotency.Options,
) (*Shop, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return nil, err
	}
	meters := metric.NewMeterProvider(metric.WithReader(reader))
	telemetry, err := otelidempotency.New(otelidempotency.Options{MeterProvider: meters, TracerProvider: traces})
	if err != nil {
		return nil, err
	}
	opts.Observer, opts.Logger = telemetry.Observe, slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(store, demo.User, opts)
	if err != nil {
		return nil, err
	}
	guarded := demo.Authenticate(idem.Handler(telemetry.Handler(payments)))

	mux := http.NewServeMux()
	mux.Handle("POST /payments", otelhttp.NewHandler(guarded, "payments",
		otelhttp.WithTracerProvider(traces), otelhttp.WithMeterProvider(meters)))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		DisableCompression:  true, // Prometheus runs on the same machine
		MaxRequestsInFlight: 1,    // because slow requests go on after Prometheus has given up, and would pile up on a busy machine
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Shop{
		Addr: listener.Addr().String(), Observe: telemetry.Observe,
		middleware: idem, httpServer: &http.Server{Handler: mux}, meterProvider: meters,
	}
	go func() { _ = s.httpServer.Serve(listener) }()
	return s, nil
}

// Close stops the service. Close retries to store the unrecorded answers until ctx ends.
func (s *Shop) Close(ctx context.Context) error {
	return errors.Join(
		s.httpServer.Shutdown(context.WithoutCancel(ctx)), s.middleware.Shutdown(ctx), s.meterProvider.Shutdown(context.Background()))
}
