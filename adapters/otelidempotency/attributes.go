package otelidempotency

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idempotency-go/idempotency"
)

// The keys of the attributes of metrics and spans.
const (
	outcomeKey        = attribute.Key("idempotency.outcome")
	replayedKey       = attribute.Key("idempotency.replayed")
	operationKey      = attribute.Key("idempotency.operation.id")
	attemptKey        = attribute.Key("idempotency.attempt")
	fromCacheKey      = attribute.Key("idempotency.from_cache")
	omittedKey        = attribute.Key("idempotency.omitted")
	storedKey         = attribute.Key("idempotency.stored.size")
	leaseRemainingKey = attribute.Key("idempotency.lease.remaining")
	stepNameKey       = attribute.Key("idempotency.step.name")
	stepFoundKey      = attribute.Key("idempotency.step.found")
	errorTypeKey      = attribute.Key("error.type")
)

// allOutcomes has every outcome of package idempotency, so that every series can begin at zero.
var allOutcomes = []idempotency.Outcome{
	idempotency.OutcomeExecuted, idempotency.OutcomeReplayed, idempotency.OutcomeReleased, idempotency.OutcomeAbandoned,
	idempotency.OutcomeInProgress, idempotency.OutcomeKeyReused, idempotency.OutcomeNotReplayable,
	idempotency.OutcomeReplayRefused, idempotency.OutcomeClientLeft, idempotency.OutcomeQuotaExceeded,
	idempotency.OutcomeUnknown, idempotency.OutcomeRejected, idempotency.OutcomeUnavailable,
	idempotency.OutcomeUnprotected, idempotency.OutcomeUnrecorded, idempotency.OutcomeRecorded,
	idempotency.OutcomeRestored, idempotency.OutcomeClaimLost,
	idempotency.OutcomeHappened, idempotency.OutcomeNotHappened,
}

// lateOutcomes are the outcomes that may follow OutcomeUnrecorded, when the answer is settled in the background.
var lateOutcomes = []idempotency.Outcome{
	idempotency.OutcomeRecorded, idempotency.OutcomeRestored, idempotency.OutcomeClaimLost,
}

// seriesKey identifies a series of the counter of requests.
type seriesKey struct {
	outcome                idempotency.Outcome
	isFromCache, isOmitted bool
}

func seriesKeyOf(e *idempotency.Event) seriesKey {
	s := seriesKey{outcome: e.Outcome}
	switch e.Outcome {
	case idempotency.OutcomeReplayed:
		s.isFromCache = e.FromCache
	case idempotency.OutcomeExecuted, idempotency.OutcomeRestored, idempotency.OutcomeRecorded:
		s.isOmitted = e.Omitted
	}
	return s
}

// isResolution reports whether the event is the resolution of an abandoned operation instead of the outcome of a request.
func (s seriesKey) isResolution() bool {
	return s.outcome == idempotency.OutcomeHappened || s.outcome == idempotency.OutcomeNotHappened
}

// listSeries returns the keys of all possible series.
func listSeries() (keys []seriesKey) {
	for _, outcome := range allOutcomes {
		keys = append(keys, seriesKey{outcome: outcome})
	}
	return append(keys,
		seriesKey{outcome: idempotency.OutcomeReplayed, isFromCache: true},
		seriesKey{outcome: idempotency.OutcomeExecuted, isOmitted: true},
		seriesKey{outcome: idempotency.OutcomeRestored, isOmitted: true},
		seriesKey{outcome: idempotency.OutcomeRecorded, isOmitted: true},
	)
}

// seriesLabels has the attributes of measurements as options. The options are made in advance for each series, because their
// creation allocates.
type seriesLabels struct {
	counterOptions   []metric.AddOption            // outcome, from_cache and omitted
	histogramOptions []metric.RecordOption         // outcome
	errorOptions     map[string][]metric.AddOption // outcome and error.type
}

func newSeriesLabels(s seriesKey, attributes ...attribute.KeyValue) *seriesLabels {
	outcome := append([]attribute.KeyValue{outcomeKey.String(string(s.outcome))}, attributes...)
	counted := slices.Clone(outcome)
	if s.isFromCache {
		counted = append(counted, fromCacheKey.Bool(true))
	}
	if s.isOmitted {
		counted = append(counted, omittedKey.Bool(true))
	}
	l := &seriesLabels{
		counterOptions:   newAddOptions(counted),
		histogramOptions: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(outcome...))},
		errorOptions:     make(map[string][]metric.AddOption),
	}
	for _, errorType := range typesByOutcome[s.outcome] {
		l.errorOptions[errorType] = newAddOptions(append(slices.Clone(outcome), errorTypeKey.String(errorType)))
	}
	return l
}

func newAddOptions(attributes []attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
}
