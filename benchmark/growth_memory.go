package benchmark

import (
	"context"
	"errors"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/idempotency-go/idempotency"
)

// GrowMemory lets the store in memory grow to that many records, and says what it costs on the way.
func GrowMemory(most int) ([]Growth, error) {
	var all []Growth
	for _, n := range sizes(most) {
		g, err := growMemory(n)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

func growMemory(n int) (Growth, error) {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40})
	before := heap()
	g := Growth{Records: n}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var watch stopwatch
	for done := 0; done < n; {
		keys := NewKeys(min(100_000, n-done))
		for _, id := range keys {
			watch.start()
			if err := execute(ctx, store, id); err != nil {
				return g, err
			}
			watch.stop()
		}
		done += len(keys)
	}
	g.Worst = watch.worst
	g.Stored = float64(heap()-before) / float64(n)
	g.Content = contentSize(NewKeys(1)[0])
	g.Collect, g.GCSeconds = collect()
	var err error
	if g.First, g.Replay, err = cost(ctx, store); err != nil {
		return g, err
	}
	runtime.KeepAlive(store)
	return g, nil
}

// cost returns what one more record takes, and to find it: the medians of a few batches, since the clock is too slow
// for one.
func cost(ctx context.Context, store idempotency.Store) (first, again time.Duration, err error) {
	const batches, size = 21, 1000
	var firsts, replays durations
	for range batches {
		keys := NewKeys(size)
		first, err1 := each(keys, func(id string) error { return execute(ctx, store, id) })
		again, err2 := each(keys, func(id string) error { return replay(ctx, store, id) })
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, err
		}
		firsts, replays = append(firsts, first), append(replays, again)
	}
	return firsts.median(), replays.median(), nil
}

// heap returns the size of what is alive.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// collect returns how long a garbage collection takes, and how much processor time.
func collect() (time.Duration, float64) {
	cpu, started := gcSeconds(), time.Now()
	runtime.GC()
	return time.Since(started), gcSeconds() - cpu
}

// gcSeconds returns the processor time that garbage collection has taken so far.
func gcSeconds() float64 {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(samples)
	return samples[0].Value.Float64()
}
