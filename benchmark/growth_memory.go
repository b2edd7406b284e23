package benchmark

import (
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
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
	for done := 0; done < n; {
		keys := NewKeys(min(100_000, n-done))
		for _, id := range keys {
			started := time.Now()
			if err := execute(ctx, store, id); err != nil {
				return g, err
			}
			g.Worst = max(g.Worst, time.Since(started))
		}
		done += len(keys)
	}
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
	const batches, each = 21, 1000
	var firsts, replays []time.Duration
	for range batches {
		keys := NewKeys(each)
		started := time.Now()
		for _, id := range keys {
			if err := execute(ctx, store, id); err != nil {
				return 0, 0, err
			}
		}
		firsts = append(firsts, time.Since(started)/each)
		started = time.Now()
		for _, id := range keys {
			if err := replay(ctx, store, id); err != nil {
				return 0, 0, err
			}
		}
		replays = append(replays, time.Since(started)/each)
	}
	slices.Sort(firsts)
	slices.Sort(replays)
	return firsts[batches/2], replays[batches/2], nil
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

// Steady is a store in memory from which as many records expire as come in.
type Steady struct {
	Live int // records
	Rate int // a second
	Latency
	P9999   time.Duration
	GCShare float64 // of one processor
}

// RunSteady keeps that many records alive at that rate, and measures the claim and completion of each for the time.
// The process does nothing else, and a backlog after a stall is dropped: what is seen is the store.
func RunSteady(live, rate int, measured time.Duration) (Steady, error) {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40})
	ttl := time.Second * time.Duration(live) / time.Duration(rate)
	warm := ttl + ttl/5
	p := &pacer{interval: time.Second / time.Duration(rate), due: time.Now()}
	times := make([]time.Duration, 0, int(measured.Seconds()*float64(rate)))
	began := time.Now()
	gc := gcSeconds()
	var ids []string
	for {
		if len(ids) == 0 {
			ids = NewKeys(rate / 10)
		}
		p.wait()
		key, attempt, resp := entry(ids[0])
		ids = ids[1:]
		attempt.Lease, attempt.TTL = min(ttl, lease), ttl
		started := time.Now()
		if err := settle(ctx, store, key, attempt, resp, ttl); err != nil {
			return Steady{}, err
		}
		took := time.Since(started)
		switch elapsed := started.Sub(began); {
		case elapsed < warm:
			gc = gcSeconds()
		case elapsed < warm+measured && len(times) < cap(times):
			times = append(times, took)
		default:
			return steady(live, rate, times, (gcSeconds()-gc)/(elapsed-warm).Seconds()), nil
		}
	}
}

func settle(ctx context.Context, store idempotency.Store, key idempotency.Key, attempt idempotency.Attempt,
	resp idempotency.Response, ttl time.Duration) error {
	_, claim, err := store.Begin(ctx, key, attempt)
	if err != nil {
		return err
	}
	return claim.Complete(ctx, resp, ttl)
}

func steady(live, rate int, times []time.Duration, gc float64) Steady {
	slices.Sort(times)
	at := func(p float64) time.Duration { return times[int(p*float64(len(times)-1))] }
	return Steady{
		Live: live, Rate: rate, Latency: Latency{at(.5), at(.99), at(.999), at(1)}, P9999: at(.9999), GCShare: gc,
	}
}

// pacer keeps a rate.
type pacer struct {
	interval time.Duration
	due      time.Time
}

// wait returns when the next operation is due. It does not sleep: no timer is as exact as that.
func (p *pacer) wait() {
	for time.Now().Before(p.due) {
	}
	p.due = p.due.Add(p.interval)
	const backlog = time.Millisecond
	if now := time.Now(); now.Sub(p.due) > backlog {
		p.due = now
	}
}
