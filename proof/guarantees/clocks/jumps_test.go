//go:build linux

package clocks_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// clockJumps are jumps of the clock of a store: forwards by less than a lease, by more than a lease, and by more than the TTL, and
// backwards.
var clockJumps = []time.Duration{
	400 * time.Second, 1500 * time.Second, 9000 * time.Second, -1000 * time.Second, -100_000 * time.Second,
}

// gapCount is the number of places where the clock may jump in a scenario: before each step after the first.
const gapCount = 5

// TestClockOfTheStoreJumps makes the clock of a real server jump between the steps of two or three requests with one key, by each
// of clockJumps at up to two places. The store must act as if the time had passed.
func TestClockOfTheStoreJumps(t *testing.T) {
	t.Parallel()
	runForEachKind(t, allKinds, func(t *testing.T, k kind) {
		c := newClock(t)
		s := k.startServer(t, c.buildEnv()...)
		requireShift(t, c, s)
		store := s.newStore(t)
		scenarios, tally := 0, map[string]int{}
		for _, sequence := range listSequences(effort.Of(2)) {
			batch := newBatch(t, k, store, fmt.Sprint(sequence))
			for step := range scenarioSteps {
				clockAt := sumJumps(sequence[:step])
				c.setWallClock(clockAt)
				batch.takeStep(step, clockAt)
			}
			batch.endRequests()
			for _, r := range batch {
				r.checkOutcomes(t, sequence)
				r.countOutcomes(tally)
			}
			scenarios += len(batch)
		}
		effort.Count(t, "rows", scenarios)
		for outcome, n := range tally {
			effort.Count(t, outcome, n)
		}
	})
}

// requireShift fails unless the server follows the clock.
func requireShift(t *testing.T, c *clock, s server) {
	t.Helper()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		c.setWallClock(ahead)
		require.WithinDuration(t, time.Now().Add(ahead), s.readClock(t), time.Minute)
	}
}

// listSequences returns all sequences of jumps in which at most most places are not zero.
func listSequences(most int) (all [][]time.Duration) {
	all = [][]time.Duration{make([]time.Duration, gapCount)}
	from := 0
	for range most {
		to := len(all)
		for _, shorter := range all[from:to] {
			last := slices.IndexFunc(shorter, func(d time.Duration) bool { return d != 0 })
			if last < 0 {
				last = gapCount
			}
			for place := range last { // the places before the first jump of shorter
				for _, jump := range clockJumps {
					longer := slices.Clone(shorter)
					longer[place] = jump
					all = append(all, longer)
				}
			}
		}
		from = to
	}
	return all
}

func sumJumps(sequence []time.Duration) (total time.Duration) {
	for _, d := range sequence {
		total += d
	}
	return total
}

// maxRise returns the largest difference between a time that the clock shows and an earlier reading.
func maxRise(sequence []time.Duration) (most time.Duration) {
	var lowest, now time.Duration
	for _, d := range sequence {
		now += d
		lowest = min(lowest, now)
		most = max(most, now-lowest)
	}
	return most
}

// batch is a list of scenarios that run at the same time.
type batch []*scenario

// takeStep takes the step with index step in all scenarios at the same time. ahead is the shift of the clock.
func (b batch) takeStep(step int, ahead time.Duration) {
	var running sync.WaitGroup
	for _, r := range b {
		running.Go(func() {
			r.model.now = ahead
			scenarioSteps[step](r)
		})
	}
	running.Wait()
}

func (b batch) endRequests() {
	for _, r := range b {
		r.endRequests()
	}
}

// checkOutcomes compares the outcomes of the requests with the model, and with promises that hold independently of the model.
func (r *scenario) checkOutcomes(t *testing.T, sequence []time.Duration) {
	t.Helper()
	story := fmt.Sprintf("clock %v, %s\nmodel: %s\nstore: %s", sequence, r.describeScenario(),
		strings.Join(r.modelOutcomes, "; "), strings.Join(r.storeOutcomes, "; "))
	require.Equal(t, r.modelOutcomes, r.storeOutcomes, story)
	if maxRise(sequence) >= ttl {
		return // a record may have expired while its owner was alive
	}
	executed := 0
	for _, told := range r.storeOutcomes {
		if strings.HasPrefix(told, "executes") {
			executed++
		}
	}
	require.LessOrEqual(t, executed, 1, "two answers of one operation: "+story)
	if r.refusesAbandoned && r.firstEnding != fails {
		require.NotContains(t, strings.Join(r.storeOutcomes, "; "), "attempt 2", "Refuse: "+story)
	}
}

// countOutcomes adds the outcomes of the requests to tally.
func (r *scenario) countOutcomes(tally map[string]int) {
	attempts := 0
	for _, told := range r.storeOutcomes {
		switch {
		case strings.HasPrefix(told, "attempt"):
			attempts++
		case told == "lost":
			tally["completions and releases refused"]++
		case strings.HasPrefix(told, "replays"):
			tally["replays"]++
		}
	}
	if attempts > 1 {
		tally["rows with a second attempt"]++
	}
}
