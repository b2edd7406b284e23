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

// loss says which answers a fault may cost, by the instants at which a client asked for an answer and saw the answer. With the
// zero value, no answer may be lost.
//
//	affectedAfter ... lostAfter ... lostBefore ... affectedBefore
//	               some         all           some
//
// All answers before affectedAfter and after affectedBefore are kept.
type loss struct {
	affectedAfter         time.Time // no answer that was seen before affectedAfter is lost
	lostAfter, lostBefore time.Time // every answer between is lost; lostBefore is zero: no answer is certain to be lost
	affectedBefore        time.Time // no answer that was asked for after affectedBefore is lost
	keepsReplicated       bool      // no answer that was known to be on all replicas is lost
}

// concernsSale reports whether the fault happened during the sale.
func (l loss) concernsSale(s *sale) bool {
	return s.answerSeen.After(l.affectedAfter) && s.firstAsked.Before(l.affectedBefore)
}

// mayLose reports whether the answer of a sale may be lost.
func (l loss) mayLose(s *sale) bool {
	return l.concernsSale(s) && !(l.keepsReplicated && s.isDurable())
}

// isDurable reports whether the answer was stored in time before the client saw the answer. A replay does not wait for replicas, so
// a replayed answer may not be durable.
func (s *sale) isDurable() bool { return !s.wasUnrecorded && !s.wasReplayed }

// mustLose reports whether the answer of a sale is certain to be lost.
func (l loss) mustLose(s *sale) bool {
	return s.firstAsked.After(l.lostAfter) && s.answerSeen.Before(l.lostBefore)
}

// auditCounts is the result of an audit.
type auditCounts struct {
	keyCount         int // keys whose answer a client has seen
	repeatedKeys     int // keys with more than one effect
	lostAnswers      int // seen answers whose key was new again
	lostUndurable    int // lost answers that were not durable
	differentAnswers int // answers that changed although they were not lost
	certainlyLost    int // answers that had to be lost
	brokenPromises   []string
}

func (c *auditCounts) addCounts(more auditCounts) {
	c.keyCount += more.keyCount
	c.repeatedKeys += more.repeatedKeys
	c.lostAnswers += more.lostAnswers
	c.lostUndurable += more.lostUndurable
	c.differentAnswers += more.differentAnswers
	c.certainlyLost += more.certainlyLost
	c.brokenPromises = append(c.brokenPromises, more.brokenPromises...)
}

// reportCounts reports the counts, and fails the test if a promise is broken.
func (c *auditCounts) reportCounts(t *testing.T) {
	t.Helper()
	assert.Empty(t, c.brokenPromises)
	effort.Count(t, "keys", c.keyCount)
	effort.Count(t, "keys with two effects", c.repeatedKeys)
	effort.Count(t, "answers lost", c.lostAnswers)
	effort.Count(t, "answers lost that were not firm", c.lostUndurable)
	effort.Count(t, "answers that had to be lost", c.certainlyLost)
	effort.Count(t, "answers that differ", c.differentAnswers)
}

// auditSales asks each server for every answer again, and checks that neither more nor less is lost than cost says. undone says
// that a lost record also undoes its effect, so that no key may have two effects. In any case each key must be charged once.
func (s *shop) auditSales(t *testing.T, cost loss, undone bool) (found auditCounts) {
	t.Helper()
	var asking sync.WaitGroup
	slots := make(chan struct{}, 16)
	for key, sale := range s.sales {
		slots <- struct{}{}
		asking.Go(func() {
			s.inspectSale(key, sale)
			<-slots
		})
	}
	asking.Wait()
	effects := s.ledger.countEffects(t)
	s.mu.Lock() // because the handler of an overtaken attempt may still begin
	defer s.mu.Unlock()
	for key, sale := range s.sales {
		sale.effectCount = effects[key]
		found.addCounts(sale.countSale(cost))
		if problem := sale.findProblem(cost, undone); problem != "" {
			found.brokenPromises = append(found.brokenPromises, fmt.Sprintf("%s: key %s: %s", problem, key, sale))
		}
	}
	if !cost.lostBefore.IsZero() && found.certainlyLost == 0 {
		found.brokenPromises = append(found.brokenPromises, "no answer was given that is certain to be lost: the fault shows nothing")
	}
	require.NoError(t, s.provider.Explain(slices.Collect(maps.Keys(s.sales))...))
	s.sales = map[string]*sale{}
	return found
}

func (s *shop) inspectSale(key string, sale *sale) {
	receipts := make(map[string]bool)
	for _, server := range s.servers {
		receipt, _ := s.payUntilAnswered(key, []*httptest.Server{server})
		receipts[receipt] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sale.wasLost = !receipts[sale.receipt] && sale.handlerRuns > 1
	sale.hasDiffered = !receipts[sale.receipt] && !sale.wasLost || len(receipts) > 1
}

func (s *sale) countSale(cost loss) (c auditCounts) {
	c.keyCount = 1
	for condition, count := range map[*int]bool{
		&c.repeatedKeys: s.effectCount > 1, &c.lostAnswers: s.wasLost, &c.lostUndurable: s.wasLost && !s.isDurable(),
		&c.differentAnswers: s.hasDiffered,
		&c.certainlyLost:    cost.mustLose(s),
	} {
		if count {
			*condition = 1
		}
	}
	return c
}

// findProblem returns the broken promise, or an empty string.
func (s *sale) findProblem(cost loss, undone bool) string {
	switch {
	case s.hasDiffered:
		return "its answers differ"
	case s.effectCount == 0:
		return "it has an answer, and no effect"
	case undone && s.effectCount > 1:
		return "it has two effects, of which the first should have been undone"
	case !cost.mayLose(s) && s.wasLost:
		return "its answer is lost"
	case !cost.concernsSale(s) && s.effectCount > 1:
		return "it has two effects"
	case cost.mustLose(s) && !s.wasLost:
		return "its answer is not lost: the fault did not happen"
	}
	return ""
}

func (s *sale) String() string {
	return fmt.Sprintf("asked %s, seen %s later, executed %d times, %d effects, lost %t",
		s.firstAsked.Format("15:04:05.000"), s.answerSeen.Sub(s.firstAsked), s.handlerRuns, s.effectCount, s.wasLost)
}
