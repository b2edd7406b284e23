package benchmark

import (
	"context"
	"slices"
)

// Matrix is a group of scenarios for the same subjects.
type Matrix struct {
	Title     string
	Note      string
	Rate      bool      // ratios are of throughput (more is better) rather than of time (less is better)
	Subjects  []Subject // the first one is what the others are compared with
	Scenarios []Scenario
}

// Matrices are all comparisons.
var Matrices = []Matrix{
	{
		Title: "In process, memory: sizes",
		Note: "Time relative to the floor, one worker. Fiber does not hash the request, so a large one costs it " +
			"nothing.",
		Subjects:  []Subject{FloorMemory, BareHandler, Memory, Fiber2, Fiber3},
		Scenarios: scenarios([]Path{First, Replay}, []Work{Small, Medium, Large, LargeRequest}, []int{1}, false),
	},
	{
		Title: "In process, memory: workers",
		Note: "Time relative to the floor. Duplicates: every worker sends every key, all at once; those that come " +
			"while the first is being served are refused by the floor and this library, and wait in fiber.",
		Subjects: []Subject{FloorMemory, Memory, Fiber2, Fiber3},
		Scenarios: append(scenarios([]Path{First, Replay}, []Work{Small}, []int{16, 64}, false),
			scenarios([]Path{Duplicates}, []Work{Small}, []int{16, 64}, false)...),
	},
	{
		Title:     "In process, not guarded",
		Note:      "Time relative to the bare handler.",
		Subjects:  []Subject{BareHandler, Memory, Fiber2, Fiber3},
		Scenarios: scenarios([]Path{NoKey, OtherMethod}, []Work{Small}, []int{1}, false),
	},
	{
		Title: "Over HTTP, memory",
		Note: "Time relative to the bare handler, on loopback: client and server share the processors. Fiber has a " +
			"server of its own, which is faster than that of net/http. It hashes no request, nor does the " +
			"bare handler.",
		Subjects: []Subject{BareHandler, FloorMemory, Memory, Fiber2, Fiber3},
		Scenarios: slices.Concat(scenarios([]Path{First, Replay}, []Work{Small}, []int{1, 16, 64}, true),
			scenarios([]Path{Duplicates}, []Work{Small}, []int{16, 64}, true),
			scenarios([]Path{First, Replay}, []Work{Medium, Large, LargeRequest}, []int{16}, true)),
	},
	{
		Title:    "In process, Redis",
		Note:     "Throughput relative to raw commands, which hash no request; nor does fiber.",
		Rate:     true,
		Subjects: []Subject{RawRedis, RawScripts, Redis, RedisPipeline, Fiber2Redis, Fiber3Redis},
		Scenarios: append(scenarios([]Path{First, Replay}, []Work{Small}, []int{1, 16, 64}, false),
			scenarios([]Path{First, Replay}, []Work{Medium, Large, LargeRequest}, []int{16}, false)...),
	},
	{
		Title:    "In process, PostgreSQL",
		Note:     "Throughput relative to raw statements, which hash no request. Every commit reaches the disk.",
		Rate:     true,
		Subjects: []Subject{RawPostgres, Postgres, PostgresTx},
		Scenarios: append(scenarios([]Path{First, Replay}, []Work{Small}, []int{1, 16, 64}, false),
			scenarios([]Path{First, Replay}, []Work{Medium, Large, LargeRequest}, []int{16}, false)...),
	},
	{
		Title: "Over HTTP, Redis and PostgreSQL",
		Note: "Throughput relative to the bare handler. Of duplicates, all but one are refused by this library, and wait " +
			"in fiber, which knows only those of its own process.",
		Rate:     true,
		Subjects: []Subject{BareHandler, Redis, RedisPipeline, Fiber2Redis, Fiber3Redis, Postgres, PostgresTx},
		Scenarios: append(scenarios([]Path{First, Replay}, []Work{Small}, []int{1, 16, 64}, true),
			scenarios([]Path{Duplicates}, []Work{Small}, []int{16, 64}, true)...),
	},
}

// scenarios returns all combinations.
func scenarios(paths []Path, works []Work, workers []int, wire bool) []Scenario {
	var all []Scenario
	for _, path := range paths {
		for _, work := range works {
			for _, n := range workers {
				all = append(all, Scenario{Path: path, Work: work, Workers: n, Wire: wire})
			}
		}
	}
	return all
}

// batch is how many requests make a batch of a millisecond or more, which all subjects of a comparison share.
func (s Scenario) batch(subjects []Subject) int {
	n := s.calls()
	if s.Wire {
		n = min(n, 320, s.transfers())
	}
	for _, subject := range subjects {
		switch subject.Store {
		case InRedis:
			n = min(n, 256*min(s.Workers, 3), s.transfers())
		case InPostgres:
			n = min(n, 48*min(s.Workers, 8), s.transfers())
		}
	}
	return max(n, s.Workers)
}

// calls is how many requests a batch has if nothing leaves the process.
func (s Scenario) calls() int {
	switch {
	case !s.Path.guarded():
		return 32768
	case s.Work == LargeRequest: // is hashed
		return 32
	case s.Path == Replay: // copies nothing
		return max(256, 8192/s.Work.weight())
	default:
		return max(32, 4096/s.Work.weight())
	}
}

// transfers is the most requests in a batch if their bodies leave the process.
func (s Scenario) transfers() int { return max(32, 1024/s.Work.weight()) }

// Compare compares all subjects in one scenario.
func (m Matrix) Compare(b *Backends, s Scenario, rounds int) (*Comparison, error) {
	if err := b.Reset(context.Background()); err != nil {
		return nil, err
	}
	s.Batch = s.batch(m.Subjects)
	var contenders []Contender
	for _, subject := range m.Subjects {
		contenders = append(contenders, s.Contender(b, subject))
	}
	return Compare(rounds, contenders)
}
