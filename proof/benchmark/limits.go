package benchmark

import (
	"slices"
	"strconv"
	"strings"
)

// Limit bounds the cost of one request.
type Limit struct {
	Subject *Subject
	Scenario
	Of    Quantity
	Bound float64
}

// Quantity is the bounded quantity of a limit, with the unit.
type Quantity string

// The quantities, all of which can be counted exactly.
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
	// A replay from memory allocates the key (64 B, depending on the length of the parts) and the values of the header
	// (80 B). A first execution allocates the arguments of the handler, the stored record, the header map of the handler,
	// the copy of the request, the contexts, and the timer of the lease.
	memoryFirst  = 2<<10 + 128
	memoryReplay = 160

	// Medium and large answers are copied once, into the store.
	copied64KiB = (64 << 10) * 11 / 10
	copied1MiB  = 1<<20 + 1<<16

	// The library encodes an answer for Redis in reused buffers. An answer from Redis stays in one piece.
	copiedNowhere = 1 << 16
)

// Limits is the table of all limits.
var Limits = slices.Concat(
	newLimits(Memory, First, Small, bounds{Allocs: 14, Bytes: memoryFirst}),
	newLimits(Memory, First, Medium, bounds{Allocs: 14, Bytes: copied64KiB}),
	newLimits(Memory, First, Large, bounds{Allocs: 14, Bytes: copied1MiB}),
	newLimits(Memory, First, LargeRequest, bounds{Allocs: 14, Bytes: memoryFirst}),
	newLimits(Memory, Replay, Small, bounds{Allocs: 3, Bytes: memoryReplay}),
	newLimits(Memory, Replay, Medium, bounds{Allocs: 3, Bytes: memoryReplay}),
	newLimits(Memory, Replay, Large, bounds{Allocs: 3, Bytes: memoryReplay}),
	newLimits(Memory, Replay, LargeRequest, bounds{Allocs: 3, Bytes: memoryReplay}),
	newLimits(Memory, NoKey, Small, bounds{Allocs: 0}),
	newLimits(Memory, OtherMethod, Small, bounds{Allocs: 0}),

	newLimits(Redis, First, Small, bounds{RoundTrips: 2, Allocs: 41}),
	newLimits(Redis, First, Medium, bounds{RoundTrips: 2}),
	newLimits(Redis, First, Large, bounds{RoundTrips: 2, Bytes: copiedNowhere}),
	newLimits(Redis, Replay, Small, bounds{RoundTrips: 1, Allocs: 22}),
	newLimits(Redis, Replay, Medium, bounds{RoundTrips: 1}),
	newLimits(Redis, Replay, Large, bounds{RoundTrips: 1, Bytes: copied1MiB}),
	newLimits(Redis, InProgress, Small, bounds{RoundTrips: 2}), // the second round trip reads the rest of the lease
	newLimits(Redis, Reuse, Small, bounds{RoundTrips: 1}),
	newLimits(Redis, Release, Small, bounds{RoundTrips: 2}), // a claim and a release
	newLimits(Redis, Again, Small, bounds{RoundTrips: 3}),   // the second round trip takes the released record over

	newLimits(Postgres, First, Small, bounds{RoundTrips: 2, WAL: 1060, Allocs: 68}),
	newLimits(Postgres, Replay, Small, bounds{RoundTrips: 1, WAL: 0, Allocs: 46}),
	newLimits(Postgres, InProgress, Small, bounds{RoundTrips: 1, WAL: 0}),
	newLimits(Postgres, Reuse, Small, bounds{RoundTrips: 1}),
	newLimits(Postgres, Release, Small, bounds{RoundTrips: 2}),
	newLimits(PostgresRows, First, Small, bounds{RoundTrips: 5, Allocs: 214}),
	newLimits(PostgresRows, Replay, Small, bounds{RoundTrips: 1, WAL: 0, Allocs: 46}),
	newLimits(PostgresUnique, First, Small, bounds{RoundTrips: 5}),
	newLimits(PostgresByHand, First, Small, bounds{RoundTrips: 5}),

	newLimits(DynamoDB, First, Small, bounds{RoundTrips: 2, Allocs: 870}),
	newLimits(DynamoDB, Replay, Small, bounds{RoundTrips: 1, Allocs: 550}),
	newLimits(DynamoDB, InProgress, Small, bounds{RoundTrips: 1}),
	newLimits(DynamoDB, Reuse, Small, bounds{RoundTrips: 1}),
	newLimits(DynamoDB, Release, Small, bounds{RoundTrips: 2}),
	newLimits(DynamoDB, Again, Small, bounds{RoundTrips: 3}), // the second round trip takes the released record over
)

type bounds map[Quantity]float64

// newLimits returns the limits on the cost of a request on the path.
func newLimits(s *Subject, path Path, work Work, bounds bounds) []Limit {
	var all []Limit
	for _, of := range []Quantity{RoundTrips, Allocs, Bytes, WAL} {
		if bound, ok := bounds[of]; ok {
			all = append(all, Limit{s, Scenario{Path: path, Work: work, Workers: 1}, of, bound})
		}
	}
	return all
}
