package servers_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// loss says which answers a fault may cost, by when clients asked for them and saw them. The zero value: none.
//
//	... kept ... | from ... to | ...... | new ...
//	 none lost     all lost      some     none lost
type loss struct {
	since    time.Time // nothing is lost that was seen before it
	from, to time.Time // all is lost that was asked for after from and seen before to; zero: nothing has to be
	until    time.Time // nothing is lost that was asked for after it
	copied   bool      // nothing is lost that was known to be on all replicas
}

// concerns reports whether a sale was under way in the time of the fault.
func (l loss) concerns(s *sale) bool { return s.seen.After(l.since) && s.began.Before(l.until) }

// may reports whether the answer of a sale may be lost.
func (l loss) may(s *sale) bool { return l.concerns(s) && !(l.copied && s.firm()) }

// firm reports whether the answer was stored in time, and seen only then. A replay does not wait for replicas.
func (s *sale) firm() bool { return !s.unrecorded && !s.replayed }

// must reports whether the answer of a sale is lost for certain.
func (l loss) must(s *sale) bool { return s.began.After(l.from) && s.seen.Before(l.to) }

// counts is what an audit has found.
type counts struct {
	keys    int      // that an answer was seen of
	twice   int      // keys with more than one effect
	lost    int      // answers that were seen, and whose key was new again
	loose   int      // of these, answers that the replicas were not known to have
	differ  int      // answers that were not lost, and were other ones later
	certain int      // answers that had to be lost
	broken  []string // promises
}

func (c *counts) add(more counts) {
	c.keys += more.keys
	c.twice += more.twice
	c.lost += more.lost
	c.loose += more.loose
	c.differ += more.differ
	c.certain += more.certain
	c.broken = append(c.broken, more.broken...)
}

// report tells the counts, and fails if a promise is broken.
func (c *counts) report(t *testing.T) {
	t.Helper()
	assert.Empty(t, c.broken)
	effort.Count(t, "keys", c.keys)
	effort.Count(t, "keys with two effects", c.twice)
	effort.Count(t, "answers lost", c.lost)
	effort.Count(t, "answers lost that were not firm", c.loose)
	effort.Count(t, "answers that had to be lost", c.certain)
	effort.Count(t, "answers that differ", c.differ)
}

// audit has all clients ask each server for their answers, and looks whether more or less is lost than what the fault costs.
// Where effects are undone together with their records, no key has two. Whatever is lost, each key is charged once.
func (s *shop) audit(t *testing.T, cost loss, undone bool) (found counts) {
	t.Helper()
	var asking sync.WaitGroup
	slots := make(chan struct{}, 16)
	for key, sale := range s.sales {
		slots <- struct{}{}
		asking.Go(func() {
			s.inspect(key, sale)
			<-slots
		})
	}
	asking.Wait()
	effects := s.ledger.effects(t)
	s.mu.Lock() // a handler that was overtaken may still begin
	defer s.mu.Unlock()
	for key, sale := range s.sales {
		sale.effects = effects[key]
		found.add(sale.counts(cost))
		if problem := sale.problem(cost, undone); problem != "" {
			found.broken = append(found.broken, fmt.Sprintf("%s: key %s: %s", problem, key, sale))
		}
	}
	if !cost.to.IsZero() && found.certain == 0 {
		found.broken = append(found.broken, "no answer was given that is certain to be lost: the fault shows nothing")
	}
	require.NoError(t, s.provider.Explain(slices.Collect(maps.Keys(s.sales))...))
	s.sales = map[string]*sale{}
	return found
}

func (s *shop) inspect(key string, sale *sale) {
	receipts := make(map[string]bool)
	for _, server := range s.servers {
		receipt, _ := s.pay(key, []*httptest.Server{server})
		receipts[receipt] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sale.lost = !receipts[sale.receipt] && sale.runs > 1
	sale.differ = !receipts[sale.receipt] && !sale.lost || len(receipts) > 1
}

func (s *sale) counts(cost loss) (c counts) {
	c.keys = 1
	for condition, count := range map[*int]bool{
		&c.twice: s.effects > 1, &c.lost: s.lost, &c.loose: s.lost && !s.firm(), &c.differ: s.differ,
		&c.certain: cost.must(s),
	} {
		if count {
			*condition = 1
		}
	}
	return c
}

// problem says which promise is broken.
func (s *sale) problem(cost loss, undone bool) string {
	switch {
	case s.differ:
		return "its answers differ"
	case s.effects == 0:
		return "it has an answer, and no effect"
	case undone && s.effects > 1:
		return "it has two effects, of which the first should have been undone"
	case !cost.may(s) && s.lost:
		return "its answer is lost"
	case !cost.concerns(s) && s.effects > 1:
		return "it has two effects"
	case cost.must(s) && !s.lost:
		return "its answer is not lost: the fault did not happen"
	}
	return ""
}

func (s *sale) String() string {
	return fmt.Sprintf("asked %s, seen %s later, executed %d times, %d effects, lost %t",
		s.began.Format("15:04:05.000"), s.seen.Sub(s.began), s.runs, s.effects, s.lost)
}
