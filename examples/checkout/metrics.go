package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/idempotency-go/idempotency/adapters/otelidempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// newTelemetry returns what counts the outcomes of requests, and what shows the counts to Prometheus. They begin with
// the process. If it is killed, those that nobody has scraped are gone.
func newTelemetry() (*otelidempotency.Telemetry, http.Handler) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	demo.Check(err)
	telemetry, err := otelidempotency.New(otelidempotency.Options{
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(reader)),
		TracerProvider: noop.NewTracerProvider(), // no spans
	})
	demo.Check(err)
	return telemetry, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
