package death_test

import (
	"fmt"
	"slices"

	"github.com/idempotency-go/idempotency/proof/guarantees/death"
)

// promise is the required outcome of an operation whose server has died.
type promise struct {
	effectCount int
	isUnknown   bool // clients get the answer that the outcome is unknown
}

// promiseAfter returns the promise for an operation whose first attempt has died at point, and whose later attempts have not died.
func promiseAfter(config death.Config, point death.Point) promise {
	switch {
	case config.Rows:
		return promise{effectCount: 1}
	case slices.Contains(beforeEffect, point) && config.Refuse:
		return promise{effectCount: 0, isUnknown: true} // the price of at most once
	case slices.Contains(afterEffect, point) && config.Refuse:
		return promise{effectCount: 1, isUnknown: true}
	case slices.Contains(afterEffect, point):
		return promise{effectCount: 2} // an effect without a step is repeated
	}
	return promise{effectCount: 1}
}

var (
	beforeEffect = []death.Point{death.Claimed, death.BeforeEffect, death.RenewingBefore}
	afterEffect  = []death.Point{death.AfterEffect, death.RenewedAfter, death.Completing}
)

// findFaults returns the broken promises of the key. effects has the attempt of each effect in the ledger. point is the point
// at which the first attempt has died; point is empty if another attempt has died, or if an attempt has outlived its lease.
func (t *trial) findFaults(config death.Config, point death.Point, effects []int) []string {
	faults := slices.Clone(t.faults)
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(len(t.countByAnswer) > 1, "differing: %d answers", len(t.countByAnswer))
	fault(len(t.countByAnswer) > 0 && len(effects) == 0, "lost: an answer without an effect")
	fault(len(t.countByAnswer) == 0 && t.unknownOutcomes == 0, "no answer")
	fault(t.unknownOutcomes > 0 && !config.Refuse, "nobody knows the outcome")
	if point == "" && !config.Rows {
		fault(config.Refuse && len(effects) > 1, "double: %d effects", len(effects))
		fault(len(slices.Compact(slices.Sorted(slices.Values(effects)))) != len(effects), "double: effects of attempts %v", effects)
		return faults
	}
	want := promiseAfter(config, point)
	fault(len(effects) > want.effectCount, "double: %d effects, not %d", len(effects), want.effectCount)
	fault(len(effects) < want.effectCount, "lost: %d effects, not %d", len(effects), want.effectCount)
	fault(t.unknownOutcomes > 0 != want.isUnknown, "outcome unknown: %v, not %v", t.unknownOutcomes > 0, want.isUnknown)
	fault(t.unknownOutcomes > 0 && len(t.countByAnswer) > 0, "an answer, although nobody knows the outcome")
	return faults
}
