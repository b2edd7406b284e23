package otelidempotency

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idempotency-go/idempotency"
)

// The attributes of metrics and spans.
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

// outcomes are all of them.
var outcomes = []idempotency.Outcome{
	idempotency.OutcomeExecuted, idempotency.OutcomeReplayed, idempotency.OutcomeReleased, idempotency.OutcomeAbandoned,
	idempotency.OutcomeInProgress, idempotency.OutcomeKeyReused, idempotency.OutcomeNotReplayable,
	idempotency.OutcomeReplayRefused, idempotency.OutcomeClientLeft, idempotency.OutcomeQuotaExceeded,
	idempotency.OutcomeUnknown, idempotency.OutcomeRejected, idempotency.OutcomeUnavailable,
	idempotency.OutcomeUnprotected, idempotency.OutcomeUnrecorded, idempotency.OutcomeRecorded,
	idempotency.OutcomeRestored, idempotency.OutcomeClaimLost,
	idempotency.OutcomeHappened, idempotency.OutcomeNotHappened,
}

// lateOutcomes may follow unrecorded.
var lateOutcomes = []idempotency.Outcome{
	idempotency.OutcomeRecorded, idempotency.OutcomeRestored, idempotency.OutcomeClaimLost,
}

// series is what tells the series of a counter of requests apart.
type series struct {
	outcome            idempotency.Outcome
	fromCache, omitted bool
}

func seriesOf(e *idempotency.Event) series {
	s := series{outcome: e.Outcome}
	switch e.Outcome {
	case idempotency.OutcomeReplayed:
		s.fromCache = e.FromCache
	case idempotency.OutcomeExecuted, idempotency.OutcomeRestored, idempotency.OutcomeRecorded:
		s.omitted = e.Omitted
	}
	return s
}

// resolves reports whether an abandoned operation was ended, which is not the outcome of a request.
func (s series) resolves() bool {
	return s.outcome == idempotency.OutcomeHappened || s.outcome == idempotency.OutcomeNotHappened
}

// allSeries lists the series that there may be.
func allSeries() (all []series) {
	for _, outcome := range outcomes {
		all = append(all, series{outcome: outcome})
	}
	return append(all,
		series{outcome: idempotency.OutcomeReplayed, fromCache: true},
		series{outcome: idempotency.OutcomeExecuted, omitted: true},
		series{outcome: idempotency.OutcomeRestored, omitted: true},
		series{outcome: idempotency.OutcomeRecorded, omitted: true},
	)
}

// labels are the attributes of the measurements of an event. They are made once for each series.
type labels struct {
	count   []metric.AddOption            // by outcome, from_cache and omitted
	measure []metric.RecordOption         // by outcome
	errors  map[string][]metric.AddOption // by outcome and error.type
}

func newLabels(s series, more ...attribute.KeyValue) *labels {
	outcome := append([]attribute.KeyValue{outcomeKey.String(string(s.outcome))}, more...)
	count := slices.Clone(outcome)
	if s.fromCache {
		count = append(count, fromCacheKey.Bool(true))
	}
	if s.omitted {
		count = append(count, omittedKey.Bool(true))
	}
	l := &labels{
		count:   addOptions(count),
		measure: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(outcome...))},
		errors:  make(map[string][]metric.AddOption),
	}
	for _, kind := range typesOf[s.outcome] {
		l.errors[kind] = addOptions(append(slices.Clone(outcome), errorTypeKey.String(kind)))
	}
	return l
}

func addOptions(attributes []attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}
}
