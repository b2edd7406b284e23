package benchmark

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Cost is what an operation of a batch took on the average.
type Cost struct {
	Elapsed        time.Duration
	Client, Server time.Duration // processor time of this process, and of the servers that it uses
}

// Elapsed returns the time on the clock.
func Elapsed(c Cost) time.Duration { return c.Elapsed }

// Processor returns the processor time of client and server together.
func Processor(c Cost) time.Duration { return c.Client + c.Server }

// ClientSide returns the processor time of this process.
func ClientSide(c Cost) time.Duration { return c.Client }

// Contender is one side of a comparison.
type Contender struct {
	Name  string
	Batch func() (Cost, error) // runs a short batch
}

// Comparison is the costs of all contenders, by round.
type Comparison struct {
	costs [][]Cost // by contender, then by round
}

// Compare runs a batch of each contender, in turns, for that many rounds: whatever else the machine does meets all of
// them alike.
func Compare(rounds int, contenders []Contender) (*Comparison, error) {
	c := &Comparison{make([][]Cost, len(contenders))}
	for round := range rounds {
		for i := range contenders {
			i = (i + round) % len(contenders) // nobody always follows the same neighbour
			cost, err := contenders[i].Batch()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", contenders[i].Name, err)
			}
			c.costs[i] = append(c.costs[i], cost)
		}
	}
	return c, nil
}

// Ratio says how the cost of one contender relates to that of another.
type Ratio struct {
	Median    float64 // of the ratios, each of the two batches of one round
	Low, High float64 // their quartiles
}

// Ratio compares the contender with that index with another.
func (c *Comparison) Ratio(of, to int, by func(Cost) time.Duration) Ratio {
	ratios := make([]float64, len(c.costs[of]))
	for i := range ratios {
		ratios[i] = float64(by(c.costs[of][i])) / float64(by(c.costs[to][i]))
	}
	slices.Sort(ratios)
	n := len(ratios)
	return Ratio{ratios[n/2], ratios[n/4], ratios[n*3/4]}
}

// Median returns the median cost of the contender with that index.
func (c *Comparison) Median(i int, by func(Cost) time.Duration) time.Duration {
	all := make([]time.Duration, len(c.costs[i]))
	for round, cost := range c.costs[i] {
		all[round] = by(cost)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// costOf returns what an operation costs of the n that f does. Without b, there is no server.
func costOf(b *Backends, n int, f func() error) (Cost, error) {
	server, err := b.processorTime()
	if err != nil {
		return Cost{}, err
	}
	client, started := ownProcessorTime(), time.Now()
	err = f()
	elapsed := time.Since(started)
	client = ownProcessorTime() - client // before the servers are asked, which takes some
	server2, err2 := b.processorTime()
	each := func(d time.Duration) time.Duration { return d / time.Duration(n) }
	return Cost{each(elapsed), each(client), each(server2 - server)}, errors.Join(err, err2)
}

// processorTime returns the processor time that the servers have taken so far.
func (b *Backends) processorTime() (sum time.Duration, err error) {
	if b == nil {
		return 0, nil
	}
	for _, s := range b.servers {
		took, err := s.ProcessorTime()
		if err != nil {
			return 0, err
		}
		sum += took
	}
	return sum, nil
}

// ownProcessorTime returns the processor time that this process has taken so far.
func ownProcessorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only if it is called wrongly
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
