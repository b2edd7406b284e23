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

// jumps of the clock of a store: by less than a lease, by more, by more than records are kept; and backwards.
var jumps = []time.Duration{400 * time.Second, 1500 * time.Second, 9000 * time.Second, -1000 * time.Second, -100_000 * time.Second}

// gaps is how often a clock may jump while a row runs: before each of its steps but the first.
const gaps = 5

// TestClockOfTheStoreJumps lets the clock of a real server jump between the steps of two or three requests with one key,
// by every distance at up to two of the places. The store must do what it would have done if time had passed.
func TestClockOfTheStoreJumps(t *testing.T) {
	t.Parallel()
	each(t, kinds, func(t *testing.T, k kind) {
		c := newClock(t)
		s := k.start(t, c.env()...)
		requireShift(t, c, s)
		store := s.store(t)
		rows, tally := 0, map[string]int{}
		for _, sequence := range sequences(effort.Of(2)) {
			batch := newBatch(t, k, store, fmt.Sprint(sequence))
			for step := range steps {
				clockAt := sum(sequence[:step])
				c.set(clockAt)
				batch.take(step, clockAt)
			}
			batch.end()
			for _, r := range batch {
				r.judge(t, sequence)
				r.count(tally)
			}
			rows += len(batch)
		}
		effort.Count(t, "rows", rows)
		for outcome, n := range tally {
			effort.Count(t, outcome, n)
		}
	})
}

// requireShift fails unless the server follows the clock.
func requireShift(t *testing.T, c *clock, s server) {
	t.Helper()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		c.set(ahead)
		require.WithinDuration(t, time.Now().Add(ahead), s.now(t), time.Minute)
	}
}

// sequences returns all sequences of jumps with up to most that are not zero.
func sequences(most int) (all [][]time.Duration) {
	all = [][]time.Duration{make([]time.Duration, gaps)}
	from := 0
	for range most {
		to := len(all)
		for _, shorter := range all[from:to] {
			last := slices.IndexFunc(shorter, func(d time.Duration) bool { return d != 0 })
			if last < 0 {
				last = gaps
			}
			for place := range last { // before those that are there
				for _, jump := range jumps {
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

func sum(sequence []time.Duration) (total time.Duration) {
	for _, d := range sequence {
		total += d
	}
	return total
}

// rise returns by how much the clock gets ahead of what it has shown before.
func rise(sequence []time.Duration) (most time.Duration) {
	var lowest, now time.Duration
	for _, d := range sequence {
		now += d
		lowest = min(lowest, now)
		most = max(most, now-lowest)
	}
	return most
}

// batch is rows that run at the same time.
type batch []*row

// take takes a step of each row while the clock is so much ahead.
func (b batch) take(step int, ahead time.Duration) {
	var running sync.WaitGroup
	for _, r := range b {
		running.Go(func() {
			r.model.now = ahead
			steps[step](r)
		})
	}
	running.Wait()
}

func (b batch) end() {
	for _, r := range b {
		r.end()
	}
}

// judge compares what the requests were told with the model, and with what holds whatever the model says.
func (r *row) judge(t *testing.T, sequence []time.Duration) {
	t.Helper()
	story := fmt.Sprintf("clock %v, %s\nmodel: %s\nstore: %s", sequence, r.name(),
		strings.Join(r.expected, "; "), strings.Join(r.told, "; "))
	require.Equal(t, r.expected, r.told, story)
	if rise(sequence) >= ttl {
		return // a record may have expired while its owner was alive
	}
	executed := 0
	for _, told := range r.told {
		if strings.HasPrefix(told, "executes") {
			executed++
		}
	}
	require.LessOrEqual(t, executed, 1, "two answers of one operation: "+story)
	if r.refuse && r.ending != fails {
		require.NotContains(t, strings.Join(r.told, "; "), "attempt 2", "Refuse: "+story)
	}
}

// count adds what the requests of the row were told.
func (r *row) count(tally map[string]int) {
	attempts := 0
	for _, told := range r.told {
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
