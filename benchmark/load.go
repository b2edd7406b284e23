package benchmark

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Load is a stream of requests that arrive at a fixed rate, whether or not the server keeps up. A request that has to
// wait for others is late, and its latency is counted from when it was due: queueing is seen.
type Load struct {
	Work     Work
	Rate     int // requests a second
	Duration time.Duration
}

// Every replayEvery-th request repeats an earlier key.
const replayEvery = 5

// Latency is what clients see under a load.
type Latency struct {
	P50, P99, P999, Max time.Duration
}

// Compare puts the load on all subjects in turns, over HTTP on loopback: a disturbance meets more than one of them.
func (l Load) Compare(b *Backends, subjects []Subject, turns int) ([]Latency, error) {
	times := make([][]time.Duration, len(subjects))
	for turn := range turns {
		for i := range subjects {
			i = (i + turn) % len(subjects)
			more, err := l.run(b, subjects[i])
			if err != nil {
				return nil, fmt.Errorf("%s under load: %w", subjects[i].Name, err)
			}
			times[i] = append(times[i], more...)
		}
	}
	all := make([]Latency, len(subjects))
	for i := range all {
		all[i] = latency(slices.Sorted(slices.Values(times[i])))
	}
	return all, nil
}

func (l Load) run(b *Backends, subject Subject) ([]time.Duration, error) {
	app := NewApp(l.Work)
	target, err := subject.Open(b, app)
	if err != nil {
		return nil, err
	}
	defer target.close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer target.Serve(listener)()
	g := &generator{load: l, keys: l.keys()}
	defer g.close()
	if err := g.dial(listener.Addr().String()); err != nil {
		return nil, err
	}
	if err := g.run(); err != nil {
		return nil, err
	}
	executions := len(slices.Compact(slices.Sorted(slices.Values(g.keys))))
	if subject.Role == Bare {
		executions = len(g.keys)
	}
	if got := app.executions.Load(); got != int64(executions) {
		return nil, fmt.Errorf("%d executions, not %d", got, executions)
	}
	return g.latencies, nil
}

// keys returns the keys of the requests in the order in which they are due.
func (l Load) keys() []string {
	keys := NewKeys(l.Rate * int(l.Duration/time.Second))
	const settled = 500 * time.Millisecond // by then, as a rule, the answer to the first request is stored
	before := max(1, int(settled.Seconds()*float64(l.Rate)))
	for i := before; i < len(keys); i += replayEvery {
		keys[i] = keys[i-before]
	}
	return keys
}

// generator sends the requests of a load.
type generator struct {
	load      Load
	keys      []string
	workers   []*wire
	latencies []time.Duration
}

func (g *generator) dial(addr string) error {
	for range connections {
		w, err := dialWire(addr, Call{First, g.load.Work})
		if err != nil {
			return err
		}
		g.workers = append(g.workers, w)
	}
	return nil
}

func (g *generator) close() {
	for _, w := range g.workers {
		w.Close()
	}
}

func (g *generator) run() error {
	g.latencies = make([]time.Duration, len(g.keys))
	interval := time.Second / time.Duration(g.load.Rate)
	due := make(chan int, len(g.keys))
	started := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, len(g.workers))
	for worker, w := range g.workers {
		wg.Go(func() {
			for i := range due {
				if err := g.send(w, i, started.Add(time.Duration(i)*interval)); err != nil {
					errs[worker] = err
					return
				}
			}
		})
	}
	pace(len(g.keys), started, interval, due)
	close(due)
	wg.Wait()
	return errors.Join(errs...)
}

func (g *generator) send(w *wire, i int, due time.Time) error {
	if err := w.Do(g.keys[i]); err != nil {
		return err
	}
	g.latencies[i] = time.Since(due)
	if status, _ := w.Answer(); status != http.StatusCreated && status != http.StatusConflict { // still in progress
		return fmt.Errorf("status %d under load", status)
	}
	return nil
}

// latency returns what clients saw, from times in order.
func latency(sorted []time.Duration) Latency {
	return Latency{quantile(sorted, .50), quantile(sorted, .99), quantile(sorted, .999), quantile(sorted, 1)}
}

func quantile(sorted []time.Duration, p float64) time.Duration {
	return sorted[int(p*float64(len(sorted)-1))]
}
