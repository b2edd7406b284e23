package main

import (
	"context"
	"fmt"
	"log"
	"regexp"
	"slices"
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
	turns      int // of each load
	profile    int // operations in memory in a profile
}

var (
	full = amount{
		rounds: 40, largest: 5_000_000, live: 1_000_000, rate: 100_000, steady: 15 * time.Second,
		rates: []int{500, 2000}, load: 4 * time.Second, turns: 3, profile: 500_000,
	}
	little = amount{
		rounds: 5, largest: 100_000, live: 100_000, rate: 100_000, steady: 3 * time.Second,
		rates: []int{500}, load: time.Second, turns: 1, profile: 100_000,
	}
)

// results are all that was measured.
type results struct {
	machine     machine
	exact       []exactRow
	comparisons []comparison
	completions []bm.Completion
	profiles    []profile
	memory      []bm.Growth
	redis       []bm.Growth
	postgres    []bm.Growth
	steady      bm.Steady
	loads       []load
	took        time.Duration
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

// section is a part of the measurements.
type section struct {
	name string
	run  func() error
}

// measure runs the sections whose names match.
func measure(ctx context.Context, a amount, only *regexp.Regexp) (*results, error) {
	b, err := bm.OpenBackends(false)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	r := &results{machine: thisMachine(ctx, b)}
	started := time.Now()
	for _, s := range r.sections(ctx, b, a) {
		if !only.MatchString(s.name) {
			continue
		}
		began := time.Now()
		if err := s.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		log.Printf("%5.0f s  %s", time.Since(began).Seconds(), s.name)
	}
	r.took = time.Since(started)
	return r, nil
}

func (r *results) sections(ctx context.Context, b *bm.Backends, a amount) []section {
	sections := []section{
		{"Memory: growth", func() (err error) { r.memory, err = bm.GrowMemory(a.largest); return err }},
		{"Memory: expiry", func() (err error) { r.steady, err = bm.RunSteady(a.live, a.rate, a.steady); return err }},
		{"Exact figures", r.count},
		{"Profiles", func() error { return r.profile(b, a.profile) }},
	}
	for _, m := range bm.Matrices {
		sections = append(sections, section{m.Title, func() error { return r.compare(b, m, a.rounds) }})
	}
	return append(sections,
		section{"Redis: completion", func() error { return r.complete(ctx, b, a.rounds) }},
		section{"Latency under load", func() error { return r.underLoad(b, a) }},
		section{"Redis: growth", func() (err error) { r.redis, err = b.GrowRedis(ctx, a.largest); return err }},
		section{"PostgreSQL: growth", func() (err error) { r.postgres, err = b.GrowPostgres(ctx, a.largest); return err }},
	)
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
		[]bm.Path{bm.First, bm.Replay}, []bm.Work{bm.Small, bm.Medium, bm.Large}},
	{[]bm.Subject{bm.Redis, bm.Postgres, bm.PostgresTx}, []bm.Path{bm.InProgress, bm.Reuse, bm.Release},
		[]bm.Work{bm.Small}},
}

// count has servers of its own: those of the comparisons do not count.
func (r *results) count() error {
	b, err := bm.OpenBackends(true)
	if err != nil {
		return err
	}
	defer b.Close()
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

func (r *results) compare(b *bm.Backends, m bm.Matrix, rounds int) error {
	for _, s := range m.Scenarios {
		began := time.Now()
		c, err := m.Compare(b, s, rounds)
		if err != nil {
			return err
		}
		log.Printf("         %4.1f s  %s", time.Since(began).Seconds(), s)
		r.comparisons = append(r.comparisons, comparison{m, s, c})
	}
	return nil
}

func (r *results) complete(ctx context.Context, b *bm.Backends, rounds int) error {
	for _, work := range []bm.Work{bm.Small, bm.Medium, bm.Large} {
		c, err := b.CompareCompletion(ctx, work, rounds)
		if err != nil {
			return err
		}
		r.completions = append(r.completions, c)
	}
	return nil
}

// loaded are the subjects that are put under load.
var loaded = []bm.Subject{bm.BareHandler, bm.Memory, bm.Redis, bm.RedisPipeline, bm.Postgres, bm.PostgresTx}

func (r *results) underLoad(b *bm.Backends, a amount) error {
	for _, rate := range a.rates {
		latencies, err := bm.Load{Work: bm.Small, Rate: rate, Duration: a.load}.Compare(b, loaded, a.turns)
		if err != nil {
			return err
		}
		for i, l := range latencies {
			r.loads = append(r.loads, load{loaded[i], rate, l})
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
	return slices.IndexFunc(subjects, func(other bm.Subject) bool { return other.Name == s.Name })
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
