package otelidempotency

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idempotency-go/idempotency"
)

// The boundaries of the histograms. Those of the store's steps begin where a store in memory ends, and end where
// StoreTimeout does. Those of handlers and of waiting are the ones of http.server.request.duration, and go on to a minute.
var (
	storeBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	workBounds  = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60}
	sizeBounds  = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}
)

type instruments struct {
	requests, recoveries, errors, lost metric.Int64Counter
	resolutions                        metric.Int64Counter
	active                             metric.Int64UpDownCounter
	claim, wait, handler, completion   metric.Float64Histogram
	stored                             metric.Int64Histogram

	labels map[series]*labels // is not changed any more
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	m := maker{meter: meter}
	i := &instruments{
		requests:    m.counter("requests", "{request}", "Requests with a key, by what became of them."),
		recoveries:  m.counter("recoveries", "{answer}", "Unrecorded answers that were settled in the background."),
		errors:      m.counter("errors", "{error}", "Rejected requests, and failures of the store."),
		lost:        m.counter("leases.lost", "{lease}", "Attempts that lost their claim while they ran."),
		resolutions: m.counter("resolutions", "{operation}", "Abandoned operations that an operator or Reconcile has ended."),
		active:      m.upDownCounter("operations.active", "{operation}", "Attempts that run now."),
		claim:       m.duration("claim", "Duration of the first question to the store.", storeBounds),
		wait:        m.duration("wait", "Duration of waiting for another attempt.", workBounds),
		handler:     m.duration("handler", "Duration of the handler.", workBounds),
		completion:  m.duration("completion", "Duration of settling the claim, with repetitions.", storeBounds),
		stored:      m.size("stored.size", "Size of the answers that were stored."),
		labels:      make(map[series]*labels),
	}
	for _, s := range allSeries() {
		i.labels[s] = newLabels(s)
	}
	if err := errors.Join(m.errs...); err != nil {
		return nil, err
	}
	i.begin()
	return i, nil
}

// begin makes the series at zero: else what computes an increase, as Prometheus does, would not see the first event.
func (i *instruments) begin() {
	ctx := context.Background()
	for s, l := range i.labels {
		switch {
		case s.resolves():
			i.resolutions.Add(ctx, 0, l.count...)
		case s.outcome != idempotency.OutcomeRecorded:
			i.requests.Add(ctx, 0, l.count...)
		}
		if slices.Contains(lateOutcomes, s.outcome) {
			i.recoveries.Add(ctx, 0, l.count...)
		}
		for _, errors := range l.errors {
			i.errors.Add(ctx, 0, errors...)
		}
	}
	i.lost.Add(ctx, 0)
	i.active.Add(ctx, 0)
}

func (i *instruments) labelsOf(o *observation) *labels {
	s := seriesOf(&o.Event)
	if l, ok := i.labels[s]; ok {
		return l
	}
	return newLabels(s) // an outcome that is newer than this module
}

// with returns labels that have more attributes.
func (l *labels) with(s series, more []attribute.KeyValue) *labels {
	if len(more) == 0 {
		return l
	}
	return newLabels(s, more...)
}

func (i *instruments) record(ctx context.Context, o *observation, l *labels) {
	if seriesOf(&o.Event).resolves() {
		i.resolutions.Add(ctx, 1, l.count...)
		return
	}
	if kind := ErrorType(o.Event); kind != "" {
		i.errors.Add(ctx, 1, l.errors[kind]...)
	}
	measure(ctx, i.completion, o.Completion, l)
	if o.storesNow() {
		i.stored.Record(ctx, int64(o.Stored), l.measure...)
	}
	if o.late {
		i.recoveries.Add(ctx, 1, l.count...)
		return
	}
	i.requests.Add(ctx, 1, l.count...)
	if o.Outcome == idempotency.OutcomeClaimLost || errors.Is(context.Cause(ctx), idempotency.ErrClaimLost) {
		i.lost.Add(ctx, 1)
	}
	if !o.FromCache || o.Waited > 0 { // else it was the cache that was asked
		measure(ctx, i.claim, o.Claim, l)
	}
	measure(ctx, i.wait, o.Waited, l)
	measure(ctx, i.handler, o.Work, l)
}

// storesNow reports whether an answer was stored, rather than replayed, with its content.
func (o *observation) storesNow() bool {
	switch o.Outcome {
	case idempotency.OutcomeExecuted, idempotency.OutcomeRestored, idempotency.OutcomeRecorded:
		return !o.Omitted
	default:
		return false
	}
}

func measure(ctx context.Context, h metric.Float64Histogram, d time.Duration, l *labels) {
	if d > 0 {
		h.Record(ctx, d.Seconds(), l.measure...)
	}
}

// maker makes instruments, and collects what goes wrong.
type maker struct {
	meter metric.Meter
	errs  []error
}

const prefix = "idempotency."

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) upDownCounter(name, unit, description string) metric.Int64UpDownCounter {
	c, err := m.meter.Int64UpDownCounter(prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.errs = append(m.errs, err)
	return c
}

func (m *maker) duration(step, description string, bounds []float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(prefix+step+".duration", metric.WithUnit("s"),
		metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
	m.errs = append(m.errs, err)
	return h
}

func (m *maker) size(name, description string) metric.Int64Histogram {
	h, err := m.meter.Int64Histogram(prefix+name, metric.WithUnit("By"),
		metric.WithDescription(description), metric.WithExplicitBucketBoundaries(sizeBounds...))
	m.errs = append(m.errs, err)
	return h
}
