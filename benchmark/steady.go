package benchmark

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Steady is a store in memory from which as many records expire as come in, and beside it the same loop with a ring of
// as many pieces of memory in its place: what that one sees is due to the machine and to the loop itself.
type Steady struct {
	Live, Rate     int // records, and records a second
	Store, Control Paced
}

// recordSize is about what a record takes.
const recordSize = 728

// Paced is what a loop has seen that keeps a rate.
type Paced struct {
	Latency
	P9999   time.Duration
	Worst   Stall
	Kept    float64 // part of the operations that were due: a backlog after a stall is dropped
	GCShare float64 // of one processor
}

// RunSteady keeps that many records alive at that rate, and measures claim and completion of each for the time. The
// process does nothing else.
func RunSteady(live, rate int, measured time.Duration) (Steady, error) {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40})
	ttl := time.Second * time.Duration(live) / time.Duration(rate)
	var first, last string
	s := Steady{Live: live, Rate: rate}
	var err error
	s.Store, err = paced(rate, ttl+ttl/5, measured, func(id string) error {
		if first == "" {
			first = id
		}
		last = id
		return executeFor(ctx, store, id, ttl)
	})
	if err != nil {
		return s, err
	}
	if err := replay(ctx, store, last); err != nil {
		return s, err
	}
	if err := executeFor(ctx, store, first, ttl); err != nil {
		return s, fmt.Errorf("benchmark: after its TTL: %w", err)
	}
	ring := make([][]byte, live)
	n := 0
	s.Control, err = paced(rate, ttl+ttl/5, measured, func(id string) error {
		entry(id)
		ring[n%live] = make([]byte, recordSize)
		n++
		return nil
	})
	return s, err
}

// paced calls step at a rate, and measures it after the time to warm up.
func paced(rate int, warm, measured time.Duration, step func(id string) error) (Paced, error) {
	runtime.GC() // a heap that was large before would put the next collection off
	if _, _, err := atRate(rate, warm, step); err != nil {
		return Paced{}, err
	}
	gc := gcSeconds()
	times, worst, err := atRate(rate, measured, step)
	if err != nil {
		return Paced{}, err
	}
	return Paced{
		Latency: latency(times),
		P9999:   quantile(times, .9999),
		Worst:   worst,
		Kept:    float64(len(times)) / (measured.Seconds() * float64(rate)),
		GCShare: (gcSeconds() - gc) / measured.Seconds(),
	}, nil
}

// atRate calls step at a rate, and returns how long each call took, in order of that. It spins in between: no timer is
// as exact.
func atRate(rate int, d time.Duration, step func(id string) error) ([]time.Duration, Stall, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	interval := time.Second / time.Duration(rate)
	times := make([]time.Duration, 0, d/interval+1)
	var watch stopwatch
	var ids []string
	due := time.Now()
	for end := due.Add(d); due.Before(end); {
		now := time.Now()
		if now.Before(due) {
			continue
		}
		const backlog = time.Millisecond
		if due = due.Add(interval); now.Sub(due) > backlog {
			due = now
		}
		if len(ids) == 0 {
			ids = NewKeys(256)
		}
		watch.start()
		err := step(ids[0])
		times = append(times, watch.stop())
		if err != nil {
			return nil, Stall{}, err
		}
		ids = ids[1:]
	}
	slices.Sort(times)
	return times, watch.worst, nil
}
