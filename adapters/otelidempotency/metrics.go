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

// The bucket boundaries of the histograms. storeBounds reach from the time that a store in memory takes to the default of
// StoreTimeout. workBounds are the boundaries of http.server.request.duration in the semantic conventions, extended to a minute.
var (
	storeBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	workBounds  = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60}
	sizeBounds  = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}
)

type instruments struct {
	requestCounter, recoveryCounter, errorCounter, lostLeaseCounter  metric.Int64Counter
	resolutionCounter                                                metric.Int64Counter
	activeOperations                                                 metric.Int64UpDownCounter
	claimDuration, waitDuration, handlerDuration, completionDuration metric.Float64Histogram
	storedSize                                                       metric.Int64Histogram

	labelsBySeries map[seriesKey]*seriesLabels // read-only after newInstruments
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	m := instrumentMaker{meter: meter}
	i := &instruments{
		requestCounter:     m.newCounter("requests", "{request}", "Requests with a key, by what became of them."),
		recoveryCounter:    m.newCounter("recoveries", "{answer}", "Unrecorded answers that were settled in the background."),
		errorCounter:       m.newCounter("errors", "{error}", "Rejected requests, and failures of the store."),
		lostLeaseCounter:   m.newCounter("leases.lost", "{lease}", "Attempts that lost their claim while they ran."),
		resolutionCounter:  m.newCounter("resolutions", "{operation}", "Abandoned operations that an operator or Reconcile has ended."),
		activeOperations:   m.newUpDownCounter("operations.active", "{operation}", "Attempts that run now."),
		claimDuration:      m.newDurationHistogram("claim", "Duration of the first question to the store.", storeBounds),
		waitDuration:       m.newDurationHistogram("wait", "Duration of waiting for another attempt.", workBounds),
		handlerDuration:    m.newDurationHistogram("handler", "Duration of the handler.", workBounds),
		completionDuration: m.newDurationHistogram("completion", "Duration of settling the claim, with repetitions.", storeBounds),
		storedSize:         m.newSizeHistogram("stored.size", "Size of the answers that were stored."),
		labelsBySeries:     make(map[seriesKey]*seriesLabels),
	}
	for _, s := range listSeries() {
		i.labelsBySeries[s] = newSeriesLabels(s)
	}
	if err := errors.Join(m.makeErrors...); err != nil {
		return nil, err
	}
	i.initSeries()
	return i, nil
}

// initSeries makes all series with the value zero. Without a zero before the first event, the function increase of Prometheus would
// miss the first event.
func (i *instruments) initSeries() {
	ctx := context.Background()
	for s, l := range i.labelsBySeries {
		switch {
		case s.isResolution():
			i.resolutionCounter.Add(ctx, 0, l.counterOptions...)
		case s.outcome != idempotency.OutcomeRecorded:
			i.requestCounter.Add(ctx, 0, l.counterOptions...)
		}
		if slices.Contains(lateOutcomes, s.outcome) {
			i.recoveryCounter.Add(ctx, 0, l.counterOptions...)
		}
		for _, options := range l.errorOptions {
			i.errorCounter.Add(ctx, 0, options...)
		}
	}
	i.lostLeaseCounter.Add(ctx, 0)
	i.activeOperations.Add(ctx, 0)
}

func (i *instruments) labelsFor(o *observation) *seriesLabels {
	s := seriesKeyOf(&o.Event)
	if l, ok := i.labelsBySeries[s]; ok {
		return l
	}
	return newSeriesLabels(s) // an outcome by a newer version of package idempotency
}

// withAttributes returns the labels of s with additional attributes.
func (l *seriesLabels) withAttributes(s seriesKey, attributes []attribute.KeyValue) *seriesLabels {
	if len(attributes) == 0 {
		return l
	}
	return newSeriesLabels(s, attributes...)
}

func (i *instruments) recordEvent(ctx context.Context, o *observation, l *seriesLabels) {
	if seriesKeyOf(&o.Event).isResolution() {
		i.resolutionCounter.Add(ctx, 1, l.counterOptions...)
		return
	}
	if errorType := ErrorType(o.Event); errorType != "" {
		i.errorCounter.Add(ctx, 1, l.errorOptions[errorType]...)
	}
	recordDuration(ctx, i.completionDuration, o.Completion, l)
	if o.hasStoredContent() {
		i.storedSize.Record(ctx, int64(o.Stored), l.histogramOptions...)
	}
	if o.isLate {
		i.recoveryCounter.Add(ctx, 1, l.counterOptions...)
		return
	}
	i.requestCounter.Add(ctx, 1, l.counterOptions...)
	if o.Outcome == idempotency.OutcomeClaimLost || errors.Is(context.Cause(ctx), idempotency.ErrClaimLost) {
		i.lostLeaseCounter.Add(ctx, 1)
	}
	if !o.FromCache || o.Waited > 0 { // only the store counts, and a cache has answered without the store
		recordDuration(ctx, i.claimDuration, o.Claim, l)
	}
	recordDuration(ctx, i.waitDuration, o.Waited, l)
	recordDuration(ctx, i.handlerDuration, o.Work, l)
}

// hasStoredContent reports whether the event has stored an answer with its content. Replays return false.
func (o *observation) hasStoredContent() bool {
	switch o.Outcome {
	case idempotency.OutcomeExecuted, idempotency.OutcomeRestored, idempotency.OutcomeRecorded:
		return !o.Omitted
	default:
		return false
	}
}

func recordDuration(ctx context.Context, h metric.Float64Histogram, d time.Duration, l *seriesLabels) {
	if d > 0 {
		h.Record(ctx, d.Seconds(), l.histogramOptions...)
	}
}

// instrumentMaker makes instruments and collects their errors.
type instrumentMaker struct {
	meter      metric.Meter
	makeErrors []error
}

const namePrefix = "idempotency."

func (m *instrumentMaker) newCounter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(namePrefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.makeErrors = append(m.makeErrors, err)
	return c
}

func (m *instrumentMaker) newUpDownCounter(name, unit, description string) metric.Int64UpDownCounter {
	c, err := m.meter.Int64UpDownCounter(namePrefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	m.makeErrors = append(m.makeErrors, err)
	return c
}

func (m *instrumentMaker) newDurationHistogram(step, description string, bounds []float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(namePrefix+step+".duration", metric.WithUnit("s"),
		metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
	m.makeErrors = append(m.makeErrors, err)
	return h
}

func (m *instrumentMaker) newSizeHistogram(name, description string) metric.Int64Histogram {
	h, err := m.meter.Int64Histogram(namePrefix+name, metric.WithUnit("By"),
		metric.WithDescription(description), metric.WithExplicitBucketBoundaries(sizeBounds...))
	m.makeErrors = append(m.makeErrors, err)
	return h
}
