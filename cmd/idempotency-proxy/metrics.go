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

// metrics counts what becomes of requests. No user and no key is a label.
type metrics struct {
	registry *prometheus.Registry
	outcomes *prometheus.HistogramVec
	work     prometheus.Histogram
	failures *prometheus.CounterVec
	running  prometheus.Gauge
}

func newMetrics() *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	auto := promauto.With(registry)
	buckets := prometheus.ExponentialBuckets(0.001, 2.5, 13) // a millisecond to a minute
	return &metrics{
		registry: registry,
		outcomes: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "idempotency_proxy_request_seconds",
			Help:    "Guarded requests by outcome: the time from the first question to the store to the answer.",
			Buckets: buckets,
		}, []string{"outcome"}),
		work: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "idempotency_proxy_upstream_seconds",
			Help:    "How long the service took for guarded requests.",
			Buckets: buckets,
		}),
		failures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "idempotency_proxy_upstream_failures_total",
			Help: "Requests that the service did not answer, by kind: " +
				"unreachable (it has seen nothing), timeout, broken, broken-off (within the body), client-left.",
		}, []string{"kind"}),
		running: auto.NewGauge(prometheus.GaugeOpts{
			Name: "idempotency_proxy_requests_running",
			Help: "Requests that are being answered, unguarded ones included.",
		}),
	}
}

// observe counts what became of a request.
func (m *metrics) observe(e idempotency.Event) {
	m.outcomes.WithLabelValues(string(e.Outcome)).Observe(e.Total.Seconds())
	if e.Work > 0 {
		m.work.Observe(e.Work.Seconds())
	}
}

func (m *metrics) failed(kind string) { m.failures.WithLabelValues(kind).Inc() }

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 10 * time.Second})
}
