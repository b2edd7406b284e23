package benchmark

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

// Gate is a limit that the library must not exceed.
type Gate struct {
	Subject Subject
	Path    Path
	Work    Work
	Of      Quantity
	Limit   float64 // a test fails above it
	Target  float64 // what the limit is to become
}

// Gates are all limits. One that is above its target leaves a small margin over what was measured.
var Gates = []Gate{
	{Memory, First, Small, Allocs, 6, 6},
	{Memory, First, Small, Bytes, 1150, 1024},
	{Memory, First, Medium, Allocs, 6, 6},
	{Memory, First, Medium, Bytes, 1.10 * (64 << 10), 1.10 * (64 << 10)},
	{Memory, First, Large, Allocs, 6, 6},
	{Memory, First, Large, Bytes, 1.10 * (1 << 20), 1.10 * (1 << 20)},
	{Memory, First, LargeRequest, Allocs, 6, 6},
	{Memory, First, LargeRequest, Bytes, 1150, 1024},
	{Memory, Replay, Small, Allocs, 2, 2},
	{Memory, Replay, Small, Bytes, 128, 128},
	{Memory, Replay, Medium, Allocs, 2, 2},
	{Memory, Replay, Medium, Bytes, 128, 128},
	{Memory, Replay, Large, Allocs, 2, 2},
	{Memory, Replay, Large, Bytes, 128, 128},
	{Memory, NoKey, Small, Allocs, 0, 0},
	{Memory, OtherMethod, Small, Allocs, 0, 0},

	{Redis, First, Small, RoundTrips, 2, 2},
	{Redis, First, Medium, RoundTrips, 2, 2},
	{Redis, Replay, Small, RoundTrips, 1, 1},
	{Redis, InProgress, Small, RoundTrips, 1, 1},
	{Redis, Reuse, Small, RoundTrips, 1, 1},
	{Redis, Release, Small, RoundTrips, 2, 2}, // one to claim, one to release
	{Redis, First, Small, Allocs, 30, 30},
	{Redis, Replay, Small, Allocs, 18, 18},

	{Postgres, First, Small, RoundTrips, 2, 2},
	{Postgres, Replay, Small, RoundTrips, 1, 1},
	{Postgres, InProgress, Small, RoundTrips, 1, 1},
	{Postgres, Reuse, Small, RoundTrips, 1, 1},
	{Postgres, Release, Small, RoundTrips, 2, 2},
	{Postgres, First, Small, WAL, 1060, 1060},
	{Postgres, Replay, Small, WAL, 0, 0},
	{Postgres, InProgress, Small, WAL, 0, 0},
	{Postgres, First, Small, Allocs, 60, 60},
	{Postgres, Replay, Small, Allocs, 38, 38},
	{PostgresTx, First, Small, RoundTrips, 2, 2},
	{PostgresTx, Replay, Small, RoundTrips, 2, 2},
	{PostgresTx, Replay, Small, WAL, 0, 0},
	{PostgresTx, First, Small, Allocs, 130, 130},
	{PostgresTx, Replay, Small, Allocs, 96, 96},
}
