package benchmark

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Cost is the cost of a batch.
type Cost struct {
	PerSecond float64
	Processor time.Duration   // of this process and the server of the store, for each request
	Latencies []time.Duration // of each request
}

// Comparison has the costs of each subject, in the order of the subjects and of the rounds.
type Comparison [][]Cost

// Compare runs, in each round, a batch of n requests for each subject, one subject after the other.
func Compare(b *Backends, s Scenario, subjects []*Subject, rounds, n int) (Comparison, error) {
	c := make(Comparison, len(subjects))
	for round := range rounds {
		for i := range subjects {
			i = (i + round) % len(subjects) // rotates the order, because the neighbours of a batch should change
			cost, err := s.measureBatch(b, subjects[i], n)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", subjects[i].Name, s, err)
			}
			c[i] = append(c[i], cost)
		}
	}
	return c, nil
}

// Ratio divides the processor time of subject of by the processor time of subject to, and returns the median of all
// rounds.
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

// Latency returns a quantile of the latencies of a subject, for example the median for share 0.5.
func (c Comparison) Latency(subject int, share float64) time.Duration {
	var all []time.Duration
	for _, cost := range c[subject] {
		all = append(all, cost.Latencies...)
	}
	slices.Sort(all)
	return all[int(share*float64(len(all)-1))]
}

// measureCost sends the requests, and measures the cost.
func (r *run) measureCost() (Cost, error) {
	server, err := r.readServerTime()
	if err != nil {
		return Cost{}, err
	}
	client, started := readProcessorTime(), time.Now()
	err = r.sendRequests()
	elapsed := time.Since(started)
	client = readProcessorTime() - client // before readServerTime, because readServerTime takes processor time
	serverAfter, err2 := r.readServerTime()
	return Cost{
		PerSecond: float64(r.requestCount) / elapsed.Seconds(),
		Processor: (client + serverAfter - server) / time.Duration(r.requestCount),
		Latencies: r.latencies[:r.requestCount],
	}, errors.Join(err, err2)
}

// readServerTime returns the processor time of the server of the store so far.
func (r *run) readServerTime() (time.Duration, error) {
	store := r.store
	if store == RowsInPostgres {
		store = InPostgres
	}
	if r.backends == nil || r.backends.serversByStore[store] == nil {
		return 0, nil
	}
	return r.backends.serversByStore[store].ProcessorTime()
}

// readProcessorTime returns the processor time of this process so far.
func readProcessorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for wrong arguments
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
