package benchmark

import (
	"slices"
	"strconv"
	"strings"
)

// Limit is what the library is to keep.
type Limit struct {
	Subject *Subject
	Scenario
	Of     Quantity
	Bound  float64
	Beside *Subject // what a ratio compares with
}

// Quantity is what a limit limits, with its unit.
type Quantity string

// What can be counted: a test fails above a limit.
const (
	Allocs     Quantity = "allocs"
	Bytes      Quantity = "B allocated"
	RoundTrips Quantity = "round trips"
	WAL        Quantity = "B of WAL"
)

// What cannot, and is only reported. Throughput is to be at least what its limit says, all others at most.
const (
	Time          Quantity = "x the time"
	ProcessorTime Quantity = "x the processor time"
	ClientTime    Quantity = "x the processor time of the client's side"
	Throughput    Quantity = "x the throughput"
	Overhead      Quantity = "B a record beyond its content"
)

// In returns an exact quantity in e.
func (q Quantity) In(e Exact) float64 {
	switch q {
	case Allocs:
		return float64(e.Allocs)
	case Bytes:
		return float64(e.Bytes)
	case RoundTrips:
		return e.RoundTrips
	default:
		return e.WAL
	}
}

// Exact reports whether the limit is on something that can be counted.
func (l Limit) Exact() bool { return slices.Contains([]Quantity{Allocs, Bytes, RoundTrips, WAL}, l.Of) }

// Met reports whether the value keeps the limit.
func (l Limit) Met(value float64) bool {
	if l.Of == Throughput {
		return value >= l.Bound
	}
	return value <= l.Bound
}

func (l Limit) String() string {
	bound, unit := strconv.FormatFloat(l.Bound, 'f', -1, 64), " "+string(l.Of)
	if l.Beside != nil {
		unit += " of " + l.Beside.Name
	}
	switch {
	case l.Of == Throughput:
		return "at least " + bound + unit
	case l.Bound == 0:
		return "no " + strings.TrimPrefix(string(l.Of), "B of ")
	default:
		return "at most " + bound + unit
	}
}

// Kept is the memory store that holds a million records.
const Kept Path = "1,000,000 records"

const (
	// A replay from memory allocates its key (64 B, by the length of its parts) and the values of the header (80 B). A first
	// execution allocates what the handler gets, what is stored, the header map of the handler, the copy of its request,
	// its contexts, and the timer of its lease.
	memoryFirst  = 2<<10 + 128
	memoryReplay = 160

	// An answer of a size that matters is copied once, into the store.
	copied64KiB = (64 << 10) * 11 / 10
	copied1MiB  = 1<<20 + 1<<16

	// On its way to Redis an answer is put together in buffers that are used again. Read from there, it is kept in one
	// piece.
	copiedNowhere = 1 << 16
)

// Limits are all limits.
var Limits = slices.Concat(
	// Where the user pays: processor time of client, server and store together.
	[]Limit{
		served(Memory, First, 1.10, MemoryLeast),
		served(Memory, Replay, 1.00, MemoryLeast),
		served(Memory, NoKey, 1.02, BareHandler),
		served(Redis, First, 1.05, RedisLeast),
		served(Redis, Replay, 0.95, RedisLeast),
		served(Postgres, First, 1.05, PostgresLeast),
		served(PostgresRows, First, 2.00, PostgresByHand),
	},

	// Exact, for a request.
	exact(Memory, First, Small, bounds{Allocs: 14, Bytes: memoryFirst}),
	exact(Memory, First, Medium, bounds{Allocs: 14, Bytes: copied64KiB}),
	exact(Memory, First, Large, bounds{Allocs: 14, Bytes: copied1MiB}),
	exact(Memory, First, LargeRequest, bounds{Allocs: 14, Bytes: memoryFirst}),
	exact(Memory, Replay, Small, bounds{Allocs: 3, Bytes: memoryReplay}),
	exact(Memory, Replay, Medium, bounds{Allocs: 3, Bytes: memoryReplay}),
	exact(Memory, Replay, Large, bounds{Allocs: 3, Bytes: memoryReplay}),
	exact(Memory, Replay, LargeRequest, bounds{Allocs: 3, Bytes: memoryReplay}),
	exact(Memory, NoKey, Small, bounds{Allocs: 0}),
	exact(Memory, OtherMethod, Small, bounds{Allocs: 0}),

	exact(Redis, First, Small, bounds{RoundTrips: 2, Allocs: 41}),
	exact(Redis, First, Medium, bounds{RoundTrips: 2}),
	exact(Redis, First, Large, bounds{RoundTrips: 2, Bytes: copiedNowhere}),
	exact(Redis, Replay, Small, bounds{RoundTrips: 1, Allocs: 22}),
	exact(Redis, Replay, Medium, bounds{RoundTrips: 1}),
	exact(Redis, Replay, Large, bounds{RoundTrips: 1, Bytes: copied1MiB}),
	exact(Redis, InProgress, Small, bounds{RoundTrips: 2}), // the second one tells what is left of the lease
	exact(Redis, Reuse, Small, bounds{RoundTrips: 1}),
	exact(Redis, Release, Small, bounds{RoundTrips: 2}), // one to claim, one to release
	exact(Redis, Again, Small, bounds{RoundTrips: 3}),   // the second one takes the released record over

	exact(Postgres, First, Small, bounds{RoundTrips: 2, WAL: 1060, Allocs: 68}),
	exact(Postgres, Replay, Small, bounds{RoundTrips: 1, WAL: 0, Allocs: 46}),
	exact(Postgres, InProgress, Small, bounds{RoundTrips: 1, WAL: 0}),
	exact(Postgres, Reuse, Small, bounds{RoundTrips: 1}),
	exact(Postgres, Release, Small, bounds{RoundTrips: 2}),
	exact(PostgresRows, First, Small, bounds{RoundTrips: 5, Allocs: 214}),
	exact(PostgresRows, Replay, Small, bounds{RoundTrips: 1, WAL: 0, Allocs: 46}),
	exact(PostgresUnique, First, Small, bounds{RoundTrips: 5}),
	exact(PostgresByHand, First, Small, bounds{RoundTrips: 5}),

	exact(DynamoDB, First, Small, bounds{RoundTrips: 2, Allocs: 870}),
	exact(DynamoDB, Replay, Small, bounds{RoundTrips: 1, Allocs: 550}),
	exact(DynamoDB, InProgress, Small, bounds{RoundTrips: 1}),
	exact(DynamoDB, Reuse, Small, bounds{RoundTrips: 1}),
	exact(DynamoDB, Release, Small, bounds{RoundTrips: 2}),
	exact(DynamoDB, Again, Small, bounds{RoundTrips: 3}), // the second one takes the released record over

	// Where to look for causes: without HTTP.
	[]Limit{
		{Memory, Scenario{Path: First, Work: Small, Workers: 1}, Time, 3.00, MemoryLeast},
		{Memory, Scenario{Path: First, Work: Medium, Workers: 1}, Time, 1.30, MemoryLeast},
		{Memory, Scenario{Path: First, Work: Large, Workers: 1}, Time, 1.30, MemoryLeast},
		{Memory, Scenario{Path: First, Work: LargeRequest, Workers: 1}, Time, 1.05, MemoryLeast},
		{Memory, Scenario{Path: Replay, Work: Small, Workers: 1}, Time, 1.30, MemoryLeast},
		{Memory, Scenario{Path: Replay, Work: Medium, Workers: 1}, Time, 1.30, MemoryLeast},
		{Memory, Scenario{Path: Replay, Work: Large, Workers: 1}, Time, 1.30, MemoryLeast},
		{Memory, Scenario{Path: Replay, Work: LargeRequest, Workers: 1}, Time, 1.05, MemoryLeast},
		{Cached, Scenario{Path: Replay, Work: Small, Workers: 1}, Time, 1.10, Memory},
		{Memory, Scenario{Path: NoKey, Work: Small, Workers: 1}, Time, 1.10, BareHandler},
		{Memory, Scenario{Path: OtherMethod, Work: Small, Workers: 1}, Time, 1.10, BareHandler},
		{Memory, Scenario{Path: Kept}, Overhead, 200, nil},

		{Redis, Scenario{Path: First, Work: Small, Workers: 1}, Throughput, 1, FiberRedis},
		{Redis, Scenario{Path: First, Work: Small, Workers: 16}, ProcessorTime, 1.08, RedisLeast},
		{Redis, Scenario{Path: First, Work: Small, Workers: 16}, Throughput, 1, FiberRedis},
		{Redis, Scenario{Path: First, Work: Small, Workers: 16, Valkey: true}, ProcessorTime, 1.05, RedisLeast},
		{Redis, Scenario{Path: Replay, Work: Small, Workers: 1}, Throughput, 1, FiberRedis},
		{Redis, Scenario{Path: Replay, Work: Small, Workers: 16}, ProcessorTime, 1.10, RedisLeast},
		{Redis, Scenario{Path: Replay, Work: Small, Workers: 16}, Throughput, 1, FiberRedis},
		{Redis, Scenario{Path: Replay, Work: Medium, Workers: 16}, ProcessorTime, 1.15, RedisLeast},
		{Redis, Scenario{Path: Replay, Work: Large, Workers: 16}, ProcessorTime, 1.15, RedisLeast},
		{RedisPipeline, Scenario{Path: First, Work: Small, Workers: 64}, ProcessorTime, 0.80, Redis}, // as its documentation says
		{Redis, Scenario{Path: Completion, Work: Large, Workers: 1, Valkey: true}, ProcessorTime, 1.15, BlindSet},

		{DynamoDB, Scenario{Path: First, Work: Small, Workers: 16}, ClientTime, 10, Redis}, // signs, and speaks JSON over HTTP
		{DynamoDB, Scenario{Path: Replay, Work: Small, Workers: 16}, ClientTime, 10, Redis},
	},
)

// served is a limit on the processor time of a small request over HTTP, while sixteen are under way.
func served(s *Subject, path Path, bound float64, beside *Subject) Limit {
	return Limit{s, Scenario{Path: path, Work: Small, Workers: 16, Served: true}, ProcessorTime, bound, beside}
}

type bounds map[Quantity]float64

// exact returns limits on what a request on the path costs.
func exact(s *Subject, path Path, work Work, bounds bounds) []Limit {
	var all []Limit
	for _, of := range []Quantity{RoundTrips, Allocs, Bytes, WAL} {
		if bound, ok := bounds[of]; ok {
			all = append(all, Limit{s, Scenario{Path: path, Work: work, Workers: 1}, of, bound, nil})
		}
	}
	return all
}
