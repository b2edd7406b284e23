package benchmark

import (
	"errors"
	"fmt"
)

// Scenario is what a batch does.
type Scenario struct {
	Path    Path
	Work    Work
	Workers int
	Valkey  bool // in place of Redis
	Served  bool // by a server, over HTTP on loopback
}

func (s Scenario) String() string {
	name := fmt.Sprintf("%s, %s", s.Path, s.Work)
	if s.Workers > 1 {
		name += fmt.Sprintf(", %d workers", s.Workers)
	}
	if s.Served {
		name += ", over HTTP"
	}
	return name
}

// Contender returns the subject as a contender whose batches have n requests.
func (s Scenario) Contender(b *Backends, subject *Subject, n int) Contender {
	return Contender{subject.Name, func() (Cost, error) {
		if s.Path == Completion {
			return completions(b, subject, s.Work, n)
		}
		r, err := open(b, subject, s, n)
		var cost Cost
		if err == nil {
			err = r.prepare()
		}
		if err == nil {
			cost, err = costOf(r.backends, n, r.requests)
		}
		if err == nil {
			err = r.check()
		}
		return cost, errors.Join(err, r.close())
	}}
}

// BatchSize is how many requests a batch has, which takes some tens of milliseconds: the kernel brings the processor
// time of other threads up to date every few milliseconds.
func (s Scenario) BatchSize(store Store) int {
	answer := max(1, s.Work.Response/(4<<10))
	switch {
	case s.Served:
		return 1 << 12
	case !s.Path.guarded():
		return 1 << 18
	case store == InDynamoDB:
		return 1 << 10
	case store == InRedis:
		return max(64, min(8192, 1024*s.Workers)/answer)
	case s.Work == LargeRequest: // is hashed
		return 64
	case s.Path == Replay: // copies nothing
		return max(256, 1<<15/answer)
	default:
		return max(64, 1<<14/answer)
	}
}

// Compared are the subjects that run in a scenario on a store. The report shows the others beside the first one.
func (s Scenario) Compared(store Store) []*Subject {
	switch {
	case s.Served:
		return s.servedOn(store)
	case !s.Path.guarded():
		return []*Subject{BareHandler, Memory}
	case s.Path == Completion:
		return []*Subject{BlindSet, Redis}
	case store == InDynamoDB:
		return []*Subject{Redis, Postgres, DynamoDB}
	case store == InRedis:
		return []*Subject{RedisLeast, RawRedis, Redis, RedisPipeline, FiberRedis}
	case s.Path == Replay:
		return []*Subject{MemoryLeast, Memory, Cached, FiberMemory}
	default:
		return []*Subject{MemoryLeast, Memory, FiberMemory}
	}
}

// servedOn are the subjects that run over HTTP: the least, the library, and whoever else this module has.
func (s Scenario) servedOn(store Store) []*Subject {
	switch {
	case !s.Path.guarded():
		return []*Subject{BareHandler, Memory, FiberMemory}
	case store == InRedis:
		return []*Subject{RedisLeast, Redis, FiberRedis}
	case store == InPostgres:
		return []*Subject{PostgresLeast, Postgres}
	case store == RowsInPostgres:
		return []*Subject{PostgresByHand, PostgresRows, PostgresUnique}
	default:
		return []*Subject{MemoryLeast, Memory, FiberMemory}
	}
}
