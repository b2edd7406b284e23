package benchmark

import "fmt"

// Quantity is something exact that a gate limits.
type Quantity string

// The quantities.
const (
	Allocs     Quantity = "allocs/op"
	Bytes      Quantity = "B/op"
	Commands   Quantity = "commands/op"
	RoundTrips Quantity = "round trips/op"
	WAL        Quantity = "WAL B/op"
)

// Of returns the quantity in e.
func (q Quantity) Of(e Exact) float64 {
	switch q {
	case Allocs:
		return float64(e.Allocs)
	case Bytes:
		return float64(e.Bytes)
	case Commands:
		return e.Commands
	case RoundTrips:
		return e.RoundTrips
	default:
		return e.WAL
	}
}

// Gate is a limit that the library must not exceed: a test fails above it, and the report calls it a goal.
type Gate struct {
	Subject Subject
	Path    Path
	Work    Work
	Of      Quantity
	Limit   float64
}

// Limits in memory, for every size of request and answer.
const (
	memoryFirst  = 12 // allocations
	memoryReplay = 3

	// A replay allocates the name of its endpoint (24 B) and the values of the header (80 B). A first execution allocates
	// the exchange (1,408 B), what is stored, the header map of the handler, the copy of its request and its contexts. Its
	// limit leaves an exchange room for the next size that Go allocates, 128 B more.
	memoryFirstBytes  = 3 << 10
	memoryReplayBytes = 128

	// An answer of a size that matters is copied once, into the store.
	copiedOnce = 1.10
)

// Gates are all limits.
var Gates = []Gate{
	{Memory, First, Small, Allocs, memoryFirst},
	{Memory, First, Small, Bytes, memoryFirstBytes},
	{Memory, First, Medium, Allocs, memoryFirst},
	{Memory, First, Medium, Bytes, copiedOnce * (64 << 10)},
	{Memory, First, Large, Allocs, memoryFirst},
	{Memory, First, Large, Bytes, copiedOnce * (1 << 20)},
	{Memory, First, LargeRequest, Allocs, memoryFirst},
	{Memory, First, LargeRequest, Bytes, memoryFirstBytes},
	{Memory, Replay, Small, Allocs, memoryReplay},
	{Memory, Replay, Small, Bytes, memoryReplayBytes},
	{Memory, Replay, Medium, Allocs, memoryReplay},
	{Memory, Replay, Medium, Bytes, memoryReplayBytes},
	{Memory, Replay, Large, Allocs, memoryReplay},
	{Memory, Replay, Large, Bytes, memoryReplayBytes},
	{Memory, Replay, LargeRequest, Allocs, memoryReplay},
	{Memory, Replay, LargeRequest, Bytes, memoryReplayBytes},
	{Memory, NoKey, Small, Allocs, 0},
	{Memory, OtherMethod, Small, Allocs, 0},

	{Redis, First, Small, RoundTrips, 2},
	{Redis, First, Medium, RoundTrips, 2},
	{Redis, Replay, Small, RoundTrips, 1},
	{Redis, InProgress, Small, RoundTrips, 1},
	{Redis, Reuse, Small, RoundTrips, 1},
	{Redis, Release, Small, RoundTrips, 2}, // one to claim, one to release
	{Redis, First, Small, Allocs, 40},
	{Redis, Replay, Small, Allocs, 22},

	{Postgres, First, Small, RoundTrips, 2},
	{Postgres, Replay, Small, RoundTrips, 1},
	{Postgres, InProgress, Small, RoundTrips, 1},
	{Postgres, Reuse, Small, RoundTrips, 1},
	{Postgres, Release, Small, RoundTrips, 2},
	{Postgres, First, Small, WAL, 1060},
	{Postgres, Replay, Small, WAL, 0},
	{Postgres, InProgress, Small, WAL, 0},
	{Postgres, First, Small, Allocs, 66},
	{Postgres, Replay, Small, Allocs, 46},
	{PostgresTx, First, Small, RoundTrips, 2},
	{PostgresTx, Replay, Small, RoundTrips, 2},
	{PostgresTx, Replay, Small, WAL, 0},
	{PostgresTx, First, Small, Allocs, 134},
	{PostgresTx, Replay, Small, Allocs, 96},
}

// GateOf returns the gate of a quantity. It panics if there is none.
func GateOf(of Quantity, s Subject, path Path, work Work) Gate {
	for _, g := range Gates {
		if g.Of == of && g.Subject.Name == s.Name && g.Path == path && g.Work == work {
			return g
		}
	}
	panic(fmt.Sprintf("benchmark: no gate for %s of %s, %s, %s", of, s.Name, path, work))
}
