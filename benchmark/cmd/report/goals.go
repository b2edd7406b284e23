package main

import (
	"fmt"
	"strings"
	"time"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// goal is what is to be reached on a path.
type goal struct {
	path   string
	limits []limit
	unmet  string // what there is to say if it is not met, and where the profile is
}

// limit is the most that something may be, or the least.
type limit struct {
	bound   float64
	atLeast bool
	unit    string
	measure func(*results) (measured float64, ok bool)
}

// What is to be said of goals that are not met.
const (
	beyondFloor = "the rest is scope, lease, expiry and the difference of the header, which the floor has not: "
	beyondCall  = "the middleware is one call and the look-up of two fields, beside " +
		"[a handler](#in-process-not-guarded) that takes as little"
	beyondGet = "the token is compared in a script, which takes the server longer than a GET or SET: " +
		"[the same commands alone](#in-process-redis), "
	beyondSet = "the record has a checksum and a head, and a script finds the caches cold behind so large a SET: " +
		"[all sizes](#completion-in-redis)"
	beyondRow = "what each part takes is told by [pgxstore](../../pgxstore/README.md#what-it-costs); "
)

// goals are all goals. A request has 256 B and an answer 200 B where nothing else is said.
var goals = []goal{
	{"memory, replay", inMemory(1.30, bm.Replay, bm.Small), beyondFloor + profileOf(bm.Memory, bm.Replay)},
	{"memory, first", inMemory(1.40, bm.First, bm.Small), beyondFloor + profileOf(bm.Memory, bm.First)},
	{"memory, replay of 64 KiB", inMemory(1.30, bm.Replay, bm.Medium), beyondFloor + profileOf(bm.Memory, bm.Replay)},
	{"memory, replay of 1 MiB", inMemory(1.30, bm.Replay, bm.Large), beyondFloor + profileOf(bm.Memory, bm.Replay)},
	{"memory, first, answer of 64 KiB", inMemory(1.30, bm.First, bm.Medium),
		beyondFloor + profileOf(bm.Memory, bm.First)},
	{"memory, first, answer of 1 MiB", inMemory(1.30, bm.First, bm.Large),
		beyondFloor + profileOf(bm.Memory, bm.First)},
	{"memory, first, request of 1 MiB", inMemory(1.05, bm.First, bm.LargeRequest),
		beyondFloor + profileOf(bm.Memory, bm.First)},
	{"memory, replay, request of 1 MiB", inMemory(1.05, bm.Replay, bm.LargeRequest),
		beyondFloor + profileOf(bm.Memory, bm.Replay)},
	{"no key", notGuarded(bm.NoKey), beyondCall},
	{"method not guarded", notGuarded(bm.OtherMethod), beyondCall},
	{"Redis, first", []limit{
		gated(bm.RoundTrips, bm.Redis, bm.First, bm.Small),
		gated(bm.Allocs, bm.Redis, bm.First, bm.Small),
	}, "[allocations](allocations.md#redis)"},
	{"Redis, replay", []limit{
		gated(bm.RoundTrips, bm.Redis, bm.Replay, bm.Small),
		gated(bm.Allocs, bm.Redis, bm.Replay, bm.Small),
	}, "[allocations](allocations.md#redis)"},
	{"Redis, in progress", []limit{gated(bm.RoundTrips, bm.Redis, bm.InProgress, bm.Small)}, ""},
	{"Redis, reuse of a key", []limit{gated(bm.RoundTrips, bm.Redis, bm.Reuse, bm.Small)}, ""},
	{"Redis, claim and release", []limit{gated(bm.RoundTrips, bm.Redis, bm.Release, bm.Small)}, ""},
	{"Redis, first, 16 workers", []limit{
		faster(0.80, bm.Redis, bm.RawRedis, bm.First, 16), faster(0.95, bm.Redis, bm.RawScripts, bm.First, 16),
	}, beyondGet + profileOf(bm.Redis, bm.First)},
	{"Redis, replay, 16 workers", []limit{
		faster(0.80, bm.Redis, bm.RawRedis, bm.Replay, 16), faster(0.95, bm.Redis, bm.RawScripts, bm.Replay, 16),
	}, beyondGet + profileOf(bm.Redis, bm.Replay)},
	{"Redis, pipelining client, first", []limit{
		faster(1.15, bm.RedisPipeline, bm.RawRedis, bm.First, 16),
		faster(1.50, bm.RedisPipeline, bm.RawRedis, bm.First, 64),
	}, beyondGet + profileOf(bm.RedisPipeline, bm.First)},
	{"Redis, pipelining client, replay", []limit{
		faster(1.50, bm.RedisPipeline, bm.RawRedis, bm.Replay, 16),
		faster(2.00, bm.RedisPipeline, bm.RawRedis, bm.Replay, 64),
	}, beyondGet + profileOf(bm.RedisPipeline, bm.Replay)},
	{"Redis, completion of 64 KiB", completion(bm.Medium), beyondSet},
	{"Redis, completion of 1 MiB", completion(bm.Large), beyondSet},
	{"PostgreSQL, first", []limit{
		gated(bm.RoundTrips, bm.Postgres, bm.First, bm.Small),
		faster(0.90, bm.Postgres, bm.RawPostgres, bm.First, 16),
	}, beyondRow + profileOf(bm.Postgres, bm.First)},
	{"PostgreSQL, replay", []limit{
		gated(bm.RoundTrips, bm.Postgres, bm.Replay, bm.Small),
		gated(bm.WAL, bm.Postgres, bm.Replay, bm.Small),
		faster(0.65, bm.Postgres, bm.RawPostgres, bm.Replay, 16),
	}, beyondRow + profileOf(bm.Postgres, bm.Replay)},
	{"memory, 1,000,000 live, 100,000 a second, expiring", []limit{
		steadily(25, " us at p99.9", time.Microsecond, func(p bm.Paced) time.Duration { return p.P999 }),
		steadily(10, " ms stall of its own", time.Millisecond, func(p bm.Paced) time.Duration { return p.Worst.Processor }),
	}, "so does [a ring of as much memory](#memory-store) in place of the store"},
	{"memory, a record", []limit{{bound: 150, unit: " B beyond its bytes", measure: beyondBytes}},
		"[what a record is made of](allocations.md#a-record-in-memory)"},
}

// profileOf is the link to a profile.
func profileOf(s bm.Subject, path bm.Path) string {
	title := strings.ToLower(profile{subject: s, path: path}.title())
	return "[profile](profiles.md#" + strings.NewReplacer(" ", "-", ",", "").Replace(title) + ")"
}

// slower limits the time in memory relative to another subject, faster the rate on a server.
func slower(bound float64, to bm.Subject, path bm.Path, work bm.Work) limit {
	return limit{bound: bound, unit: " x " + to.Name, measure: func(r *results) (float64, bool) {
		ratio, ok := r.ratio(bm.Memory, to, bm.Scenario{Path: path, Work: work, Workers: 1})
		return ratio.Median, ok
	}}
}

func faster(bound float64, of, to bm.Subject, path bm.Path, workers int) limit {
	unit := fmt.Sprintf(" x %s (%d workers)", to.Name, workers)
	return limit{bound: bound, atLeast: true, unit: unit, measure: func(r *results) (float64, bool) {
		ratio, ok := r.ratio(of, to, bm.Scenario{Path: path, Work: bm.Small, Workers: workers})
		return 1 / ratio.Median, ok
	}}
}

// gated limits an exact figure as its gate does.
func gated(of bm.Quantity, s bm.Subject, path bm.Path, work bm.Work) limit {
	bound := bm.GateOf(of, s, path, work).Limit
	return limit{bound: bound, unit: " " + string(of), measure: func(r *results) (float64, bool) {
		exact, ok := r.exactly(s, path, work)
		return of.Of(exact), ok
	}}
}

// inMemory limits the time in memory relative to the floor, and what is allocated.
func inMemory(bound float64, path bm.Path, work bm.Work) []limit {
	return []limit{
		slower(bound, bm.FloorMemory, path, work),
		gated(bm.Allocs, bm.Memory, path, work),
		gated(bm.Bytes, bm.Memory, path, work),
	}
}

func notGuarded(path bm.Path) []limit {
	return []limit{slower(1.10, bm.BareHandler, path, bm.Small), gated(bm.Allocs, bm.Memory, path, bm.Small)}
}

func completion(work bm.Work) []limit {
	find := func(r *results, value func(bm.Completion) float64) (float64, bool) {
		for _, c := range r.completions {
			if c.Work == work {
				return value(c), true
			}
		}
		return 0, false
	}
	return []limit{
		{bound: 1.1, unit: " x a blind SET", measure: func(r *results) (float64, bool) {
			return find(r, func(c bm.Completion) float64 { return c.Ratio })
		}},
		{bound: 10, unit: " us of the server", measure: func(r *results) (float64, bool) {
			return find(r, func(c bm.Completion) float64 { return float64(c.Server) / float64(time.Microsecond) })
		}},
	}
}

func steadily(bound float64, unit string, one time.Duration, value func(bm.Paced) time.Duration) limit {
	return limit{bound: bound, unit: unit, measure: func(r *results) (float64, bool) {
		return float64(value(r.steady.Store)) / float64(one), r.steady.Live > 0
	}}
}

func beyondBytes(r *results) (float64, bool) {
	if len(r.memory) == 0 {
		return 0, false
	}
	last := r.memory[len(r.memory)-1]
	return last.Stored - last.Content, true
}

// row returns what was measured beside what was to be reached, unless nothing was measured.
func (g goal) row(r *results) (row []string, ok bool) {
	var wanted, measured []string
	met := true
	for _, l := range g.limits {
		value, ok := l.measure(r)
		if !ok {
			return nil, false
		}
		wanted = append(wanted, l.String())
		measured = append(measured, l.show(value))
		met = met && l.met(value)
	}
	verdict := "yes"
	if !met {
		verdict = strings.TrimSuffix("**no**: "+g.unmet, ": ")
	}
	return []string{g.path, strings.Join(wanted, "; "), strings.Join(measured, "; "), verdict}, true
}

func (l limit) String() string {
	switch {
	case l.atLeast:
		return "at least " + number(l.bound) + l.unit
	case l.bound == 0:
		return "0" + l.unit
	default:
		return "at most " + number(l.bound) + l.unit
	}
}

func (l limit) met(value float64) bool {
	if l.atLeast {
		return value >= l.bound
	}
	return value <= l.bound
}

// show returns the value, in bold if it does not meet the limit.
func (l limit) show(value float64) string {
	if l.met(value) {
		return number(value)
	}
	return "**" + number(value) + "**"
}
