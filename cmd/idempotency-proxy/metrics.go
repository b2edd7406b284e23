package main

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idempotency-go/idempotency"
)

// proxyMetrics has the metrics of the proxy. Labels are free of users and keys.
type proxyMetrics struct {
	registry         *prometheus.Registry
	requestSeconds   *prometheus.HistogramVec
	upstreamSeconds  prometheus.Histogram
	upstreamFailures *prometheus.CounterVec
	requestsRunning  prometheus.Gauge
}

func newMetrics() *proxyMetrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	auto := promauto.With(registry)
	buckets := prometheus.ExponentialBuckets(0.001, 2.5, 13) // a millisecond to a minute
	return &proxyMetrics{
		registry: registry,
		requestSeconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "idempotency_proxy_request_seconds",
			Help:    "Guarded requests by outcome: the time from the first question to the store to the answer.",
			Buckets: buckets,
		}, []string{"outcome"}),
		upstreamSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "idempotency_proxy_upstream_seconds",
			Help:    "How long the service took for guarded requests.",
			Buckets: buckets,
		}),
		upstreamFailures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "idempotency_proxy_upstream_failures_total",
			Help: "Requests that the service did not answer, by kind: " +
				"unreachable (it has seen nothing), timeout, broken, broken-off (within the body), client-left.",
		}, []string{"kind"}),
		requestsRunning: auto.NewGauge(prometheus.GaugeOpts{
			Name: "idempotency_proxy_requests_running",
			Help: "Requests that are being answered, unguarded ones included.",
		}),
	}
}

// countOutcome counts the outcome of a guarded request.
func (m *proxyMetrics) countOutcome(e idempotency.Event) {
	m.requestSeconds.WithLabelValues(string(e.Outcome)).Observe(e.Total.Seconds())
	if e.Work > 0 {
		m.upstreamSeconds.Observe(e.Work.Seconds())
	}
}

func (m *proxyMetrics) countFailure(kind string) { m.upstreamFailures.WithLabelValues(kind).Inc() }

func (m *proxyMetrics) newMetricsHandler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second})
}
