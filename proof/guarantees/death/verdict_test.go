package death_test

import (
	"fmt"
	"slices"

	"github.com/idempotency-go/idempotency/proof/guarantees/death"
)

// promise is what is to become of an operation whose server has died.
type promise struct {
	effects int
	unknown bool // clients are told that nobody knows the outcome
}

// promised returns what holds after the first attempt has died at a point, and no later one has.
func promised(config death.Config, point death.Point) promise {
	switch {
	case config.Rows:
		return promise{effects: 1}
	case slices.Contains(beforeEffect, point) && config.Refuse:
		return promise{effects: 0, unknown: true} // the price of at most once
	case slices.Contains(afterEffect, point) && config.Refuse:
		return promise{effects: 1, unknown: true}
	case slices.Contains(afterEffect, point):
		return promise{effects: 2} // unless the effect is a row
	}
	return promise{effects: 1}
}

var (
	beforeEffect = []death.Point{death.Claimed, death.BeforeEffect, death.RenewingBefore}
	afterEffect  = []death.Point{death.AfterEffect, death.RenewedAfter, death.Completing}
)

// judge returns what has become of a key that must not. The effects are those of the ledger, by attempt. The point is where
// the first attempt has died, if none of the others has, and none has outlived its lease; else it is empty.
func (t *trial) judge(config death.Config, point death.Point, effects []int) []string {
	faults := slices.Clone(t.faults)
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(len(t.answers) > 1, "differing: %d answers", len(t.answers))
	fault(len(t.answers) > 0 && len(effects) == 0, "lost: an answer without an effect")
	fault(len(t.answers) == 0 && t.unknown == 0, "no answer")
	fault(t.unknown > 0 && !config.Refuse, "nobody knows the outcome")
	if point == "" && !config.Rows {
		fault(config.Refuse && len(effects) > 1, "double: %d effects", len(effects))
		fault(len(slices.Compact(slices.Sorted(slices.Values(effects)))) != len(effects), "double: effects of attempts %v", effects)
		return faults
	}
	want := promised(config, point)
	fault(len(effects) > want.effects, "double: %d effects, not %d", len(effects), want.effects)
	fault(len(effects) < want.effects, "lost: %d effects, not %d", len(effects), want.effects)
	fault(t.unknown > 0 != want.unknown, "outcome unknown: %v, not %v", t.unknown > 0, want.unknown)
	fault(t.unknown > 0 && len(t.answers) > 0, "an answer, although nobody knows the outcome")
	return faults
}
