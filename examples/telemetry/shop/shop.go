// Package shop is a service with metrics and traces. Its guarded handler is inside of otelhttp, and its metrics are at
// /metrics, for Prometheus.
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
	Observe idempotency.Observer // makes the metrics and traces
	idem    *idempotency.Middleware
	server  *http.Server
	meters  *metric.MeterProvider
}

// Open starts a service that guards POST /payments. Its traces go to the provider. The Observer of opts is the shop's.
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
		DisableCompression:  true, // Prometheus is near
		MaxRequestsInFlight: 1,    // a slow one that Prometheus gives up goes on: on a busy machine there would be ever more
	}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Shop{Addr: listener.Addr().String(), Observe: telemetry.Observe, idem: idem, server: &http.Server{Handler: mux}, meters: meters}
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

// Close stops the service. When ctx ends, answers that the store has not taken are given up.
func (s *Shop) Close(ctx context.Context) error {
	return errors.Join(s.server.Shutdown(context.WithoutCancel(ctx)), s.idem.Shutdown(ctx), s.meters.Shutdown(context.Background()))
}
