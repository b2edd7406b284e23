package benchmark

import (
	"slices"
	"strconv"
	"strings"
)

// Limit bounds what one request may cost.
type Limit struct {
	Subject *Subject
	Scenario
	Of    Quantity
	Bound float64
}

// Quantity is what a limit bounds, with its unit.
type Quantity string

// The quantities. Each of them can be counted exactly.
const (
	Allocs     Quantity = "allocs"
	Bytes      Quantity = "B allocated"
	RoundTrips Quantity = "round trips"
	WAL        Quantity = "B of WAL"
)

// In returns the quantity in e.
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

// Met reports whether value keeps the limit.
func (l Limit) Met(value float64) bool { return value <= l.Bound }

func (l Limit) String() string {
	if l.Bound == 0 {
		return "no " + strings.TrimPrefix(string(l.Of), "B of ")
	}
	return "at most " + strconv.FormatFloat(l.Bound, 'f', -1, 64) + " " + string(l.Of)
}

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

// Limits is the table of all limits.
var Limits = slices.Concat(
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
)

type bounds map[Quantity]float64

// exact returns limits on what a request on the path costs.
func exact(s *Subject, path Path, work Work, bounds bounds) []Limit {
	var all []Limit
	for _, of := range []Quantity{RoundTrips, Allocs, Bytes, WAL} {
		if bound, ok := bounds[of]; ok {
			all = append(all, Limit{s, Scenario{Path: path, Work: work, Workers: 1}, of, bound})
		}
	}
	return all
}
