package main

import (
	"context"
	"fmt"
	"log"
	"time"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// amount is how much is measured.
type amount struct {
	rounds     int
	largest    int // records, to which stores grow
	live, rate int // of the steady store
	steady     time.Duration
	rates      []int // of the loads
	load       time.Duration
}

var (
	full = amount{
		rounds: 40, largest: 5_000_000, live: 1_000_000, rate: 100_000, steady: 15 * time.Second,
		rates: []int{500, 2000}, load: 10 * time.Second,
	}
	little = amount{
		rounds: 5, largest: 100_000, live: 100_000, rate: 100_000, steady: 3 * time.Second,
		rates: []int{500}, load: 2 * time.Second,
	}
)

// results are all that was measured.
type results struct {
	machine     machine
	exact       []exactRow
	comparisons []comparison
	completions []bm.Completion
	memory      []bm.Growth
	redis       []bm.Growth
	postgres    []bm.Growth
	steady      bm.Steady
	loads       []load
}

type exactRow struct {
	subject bm.Subject
	path    bm.Path
	work    bm.Work
	bm.Exact
}

type comparison struct {
	matrix   bm.Matrix
	scenario bm.Scenario
	*bm.Comparison
}

type load struct {
	subject bm.Subject
	rate    int
	bm.Latency
}

// measure runs everything. What has to have the process for itself comes first.
func measure(ctx context.Context, a amount) (*results, error) {
	r := &results{}
	for _, step := range []struct {
		name string
		run  func(context.Context, amount) error
	}{
		{"memory store: growth", r.growMemory},
		{"exact figures", r.count},
		{"servers", r.measureServers},
	} {
		log.Print(step.name)
		if err := step.run(ctx, a); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return r, nil
}

func (r *results) growMemory(_ context.Context, a amount) (err error) {
	if r.memory, err = bm.GrowMemory(a.largest); err != nil {
		return err
	}
	r.steady, err = bm.RunSteady(a.live, a.rate, a.steady)
	return err
}

// counted are the subjects and works whose exact figures are reported.
var counted = []struct {
	subjects []bm.Subject
	paths    []bm.Path
	works    []bm.Work
}{
	{[]bm.Subject{bm.FloorMemory, bm.Memory, bm.Fiber2, bm.Fiber3}, []bm.Path{bm.First, bm.Replay},
		[]bm.Work{bm.Small, bm.Medium, bm.Large, bm.LargeRequest}},
	{[]bm.Subject{bm.Memory, bm.Fiber2, bm.Fiber3}, []bm.Path{bm.NoKey, bm.OtherMethod}, []bm.Work{bm.Small}},
	{[]bm.Subject{bm.RawRedis, bm.RawScripts, bm.Redis, bm.Fiber2Redis, bm.Fiber3Redis,
		bm.RawPostgres, bm.Postgres, bm.PostgresTx},
		[]bm.Path{bm.First, bm.Replay}, []bm.Work{bm.Small}},
	{[]bm.Subject{bm.Redis, bm.Fiber3Redis, bm.Postgres, bm.PostgresTx}, []bm.Path{bm.First, bm.Replay},
		[]bm.Work{bm.Large}},
	{[]bm.Subject{bm.Redis, bm.Postgres, bm.PostgresTx}, []bm.Path{bm.InProgress, bm.Reuse, bm.Release},
		[]bm.Work{bm.Small}},
}

func (r *results) count(ctx context.Context, _ amount) error {
	b, err := bm.OpenBackends(true)
	if err != nil {
		return err
	}
	defer b.Close()
	r.machine = thisMachine(ctx, b)
	for _, group := range counted {
		for _, subject := range group.subjects {
			for _, path := range group.paths {
				for _, work := range group.works {
					exact, err := bm.Measure(b, subject, path, work)
					if err != nil {
						return err
					}
					r.exact = append(r.exact, exactRow{subject, path, work, exact})
				}
			}
		}
	}
	return nil
}

func (r *results) measureServers(ctx context.Context, a amount) error {
	b, err := bm.OpenBackends(false)
	if err != nil {
		return err
	}
	defer b.Close()
	for _, m := range bm.Matrices {
		for _, s := range m.Scenarios {
			log.Printf("%s: %s", m.Title, s)
			c, err := m.Compare(b, s, a.rounds)
			if err != nil {
				return err
			}
			r.comparisons = append(r.comparisons, comparison{m, s, c})
		}
	}
	for _, work := range []bm.Work{bm.Small, bm.Medium, bm.Large} {
		c, err := b.CompareCompletion(ctx, work, a.rounds)
		if err != nil {
			return err
		}
		r.completions = append(r.completions, c)
	}
	if err := r.underLoad(b, a); err != nil {
		return err
	}
	log.Print("Redis and PostgreSQL: growth")
	if r.redis, err = b.GrowRedis(ctx, a.largest); err != nil {
		return err
	}
	r.postgres, err = b.GrowPostgres(ctx, a.largest)
	return err
}

// loaded are the subjects that are put under load.
var loaded = []bm.Subject{bm.BareHandler, bm.Memory, bm.Redis, bm.RedisPipeline, bm.Postgres, bm.PostgresTx}

func (r *results) underLoad(b *bm.Backends, a amount) error {
	for _, rate := range a.rates {
		for _, subject := range loaded {
			log.Printf("%d requests a second: %s", rate, subject.Name)
			l, err := bm.Load{Work: bm.Small, Rate: rate, Duration: a.load}.Run(b, subject)
			if err != nil {
				return err
			}
			r.loads = append(r.loads, load{subject, rate, l})
		}
	}
	return nil
}

// ratio returns the comparison of two subjects in a scenario, as time.
func (r *results) ratio(of, to bm.Subject, s bm.Scenario) (bm.Ratio, bool) {
	for _, c := range r.comparisons {
		s.Batch = c.scenario.Batch
		i, j := index(c.matrix.Subjects, of), index(c.matrix.Subjects, to)
		if c.scenario == s && i >= 0 && j >= 0 {
			return c.Ratio(i, j), true
		}
	}
	return bm.Ratio{}, false
}

func index(subjects []bm.Subject, s bm.Subject) int {
	for i := range subjects {
		if subjects[i].Name == s.Name {
			return i
		}
	}
	return -1
}

// exactly returns the exact figures of a subject.
func (r *results) exactly(s bm.Subject, path bm.Path, work bm.Work) (bm.Exact, bool) {
	for _, row := range r.exact {
		if row.subject.Name == s.Name && row.path == path && row.work == work {
			return row.Exact, true
		}
	}
	return bm.Exact{}, false
}
