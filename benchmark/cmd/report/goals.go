package main

import (
	"fmt"
	"time"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// timeGoals are the most that a request may take, relative to another subject.
var timeGoals = []timeGoal{
	{1.30, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 1}},
	{1.40, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 1}},
	{1.30, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.Replay, Work: bm.Medium, Workers: 1}},
	{1.30, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.Replay, Work: bm.Large, Workers: 1}},
	{1.30, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.First, Work: bm.Medium, Workers: 1}},
	{1.30, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.First, Work: bm.Large, Workers: 1}},
	{1.05, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.First, Work: bm.LargeRequest, Workers: 1}},
	{1.05, bm.Memory, bm.FloorMemory, bm.Scenario{Path: bm.Replay, Work: bm.LargeRequest, Workers: 1}},
	{1.10, bm.Memory, bm.BareHandler, bm.Scenario{Path: bm.NoKey, Work: bm.Small, Workers: 1}},
	{1.10, bm.Memory, bm.BareHandler, bm.Scenario{Path: bm.OtherMethod, Work: bm.Small, Workers: 1}},
}

// rateGoals are the least throughput, relative to another subject.
var rateGoals = []timeGoal{
	{0.80, bm.Redis, bm.RawRedis, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}},
	{0.80, bm.Redis, bm.RawRedis, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}},
	{0.95, bm.Redis, bm.RawScripts, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}},
	{0.95, bm.Redis, bm.RawScripts, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}},
	{1.15, bm.RedisPipeline, bm.RawRedis, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}},
	{1.50, bm.RedisPipeline, bm.RawRedis, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 64}},
	{1.50, bm.RedisPipeline, bm.RawRedis, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}},
	{2.00, bm.RedisPipeline, bm.RawRedis, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 64}},
	{0.90, bm.Postgres, bm.RawPostgres, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}},
	{0.65, bm.Postgres, bm.RawPostgres, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}},
}

type timeGoal struct {
	limit    float64
	of, to   bm.Subject
	scenario bm.Scenario
}

// goal is something to be reached, and what was.
type goal struct {
	what, want, measured string
	met                  bool
}

// goals compares what was measured with what it is to be. The exact figures have gates of their own.
func (r *results) goals() []goal {
	var all []goal
	for _, g := range timeGoals {
		if ratio, ok := r.ratio(g.of, g.to, g.scenario); ok {
			all = append(all, g.goal("<= %s x the time of %s", ratio.Median, ratio.Median <= g.limit))
		}
	}
	for _, g := range rateGoals {
		if ratio, ok := r.ratio(g.of, g.to, g.scenario); ok {
			all = append(all, g.goal(">= %s x the rate of %s", 1/ratio.Median, 1/ratio.Median >= g.limit))
		}
	}
	for _, c := range r.completions {
		if c.Work != bm.Small {
			what := fmt.Sprintf("Redis, completion, %s", c.Work)
			all = append(all, goal{what, "<= 1.1 x the time of a blind SET", number(c.Ratio), c.Ratio <= 1.1},
				atMost(what+", server", 10*time.Microsecond, c.Server))
		}
	}
	const steady = "memory store, records coming and expiring, "
	all = append(all, atMost(steady+"p99.9", 25*time.Microsecond, r.steady.P999),
		atMost(steady+"worst", 10*time.Millisecond, r.steady.Max))
	beyond := r.memory[len(r.memory)-1].Stored - r.memory[len(r.memory)-1].Content
	return append(all, goal{"memory store, a record beyond its content", "<= 150 B", number(beyond) + " B", beyond <= 150})
}

func (g timeGoal) goal(want string, value float64, met bool) goal {
	return goal{g.of.Name + ", " + g.scenario.String(), fmt.Sprintf(want, number(g.limit), g.to.Name), number(value), met}
}

func atMost(what string, limit, measured time.Duration) goal {
	return goal{what, "<= " + duration(limit), duration(measured), measured <= limit}
}
