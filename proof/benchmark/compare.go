package benchmark

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Cost is what a batch cost.
type Cost struct {
	PerSecond float64
	Processor time.Duration   // of this process and of the server of the store, for one request
	Latencies []time.Duration // of each request
}

// Comparison has the costs of each subject, in the order of the subjects and of the rounds.
type Comparison [][]Cost

// Compare runs a batch of n requests of each subject, in turns, in each round.
func Compare(b *Backends, s Scenario, subjects []*Subject, rounds, n int) (Comparison, error) {
	c := make(Comparison, len(subjects))
	for round := range rounds {
		for i := range subjects {
			i = (i + round) % len(subjects) // the neighbours of a batch change
			cost, err := s.batch(b, subjects[i], n)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", subjects[i].Name, s, err)
			}
			c[i] = append(c[i], cost)
		}
	}
	return c, nil
}

// Ratio returns the median, over all rounds, of the processor time of one subject divided by that of another.
func (c Comparison) Ratio(of, to int) float64 {
	ratios := make([]float64, len(c[of]))
	for i := range ratios {
		ratios[i] = float64(c[of][i].Processor) / float64(c[to][i].Processor)
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// PerSecond returns the median of the throughputs of a subject.
func (c Comparison) PerSecond(subject int) float64 {
	var all []float64
	for _, cost := range c[subject] {
		all = append(all, cost.PerSecond)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Latency returns the time that a share of all requests of a subject did not exceed: Latency(i, 0.5) is the median.
func (c Comparison) Latency(subject int, share float64) time.Duration {
	var all []time.Duration
	for _, cost := range c[subject] {
		all = append(all, cost.Latencies...)
	}
	slices.Sort(all)
	return all[int(share*float64(len(all)-1))]
}

// cost sends the requests, and measures what they cost.
func (r *run) cost() (Cost, error) {
	server, err := r.serverTime()
	if err != nil {
		return Cost{}, err
	}
	client, started := processorTime(), time.Now()
	err = r.requests()
	elapsed := time.Since(started)
	client = processorTime() - client // before serverTime, which takes some
	serverAfter, err2 := r.serverTime()
	return Cost{
		PerSecond: float64(r.n) / elapsed.Seconds(),
		Processor: (client + serverAfter - server) / time.Duration(r.n),
		Latencies: r.latency[:r.n],
	}, errors.Join(err, err2)
}

// serverTime returns the processor time that the server of the store has taken so far.
func (r *run) serverTime() (time.Duration, error) {
	store := r.store
	if store == RowsInPostgres {
		store = InPostgres
	}
	if r.backends == nil || r.backends.servers[store] == nil {
		return 0, nil
	}
	return r.backends.servers[store].ProcessorTime()
}

// processorTime returns the processor time that this process has taken so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only if it is called wrongly
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
