package servers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// A master dies while a slot moves, after half of the records have moved.
//
//   - Redis 7 does not tell replicas of the move. If the source dies, the moved records are hidden and their operations run again,
//     and the target refuses every request. If the target dies, requests for records that are not at the source get 503. Both
//     last until an operator tells the new masters of the move again.
//   - Valkey 8 tells replicas.
//
// When the move has ended, every answer is there except the answers of operations that have run again.
func TestRedisSlotIsHalfMoved(t *testing.T) {
	t.Parallel()
	for dies, n := range map[string]int{"source": 0, "target": 1} {
		if isReduced() && dies == "target" {
			continue
		}
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, failover{fault: "killed while a slot moves"}).(*cluster)
			s := newShop(t, briefOptions, &memoryLedger{}, c.openStores(t, 1)...)
			s.payDuring(50, func() {})
			m := c.planMove(t)
			m.beginMove(t)
			for range 5 {
				require.Equal(t, 10, m.moveKeys(t, 10))
			}
			old, promoted := c.awaitPair(t, n)
			old.Crash()
			awaitInfo(t, newClient(t, promoted), "replication", "role:master")
			require.NoError(t, old.Restart())

			again, refused := s.surveyAnswers()
			told := strings.Contains(newClient(t, promoted).Info(t.Context(), "server").Val(), "valkey_version")
			require.Equal(t, !told && dies == "source", again > 0, "%d operations run again", again)
			require.Equal(t, !told && dies == "target", refused > 0, "%d requests are refused", refused)
			target := newClient(t, c.findMaster(t, 1))
			require.Eventually(t, func() bool { // because the target may regard the slot as that of the dead source
				return (target.Set(t.Context(), masterKeys[1], "", 0).Err() == nil) == (told || dies == "target")
			}, patience, 100*time.Millisecond)

			m = c.planMove(t)
			for _, node := range []*redis.Client{m.source, m.target} {
				m.setSlot(t, node, "NODE", m.source)
			}
			m.beginMove(t)
			still, refused := s.surveyAnswers()
			require.Equal(t, again, still, "operations that have run again")
			require.Zero(t, refused)
			m.moveAllKeys(t)
			m.endMove(t, newClient(t, c.findMaster(t, 2)))
			c.awaitAgreement(t, m)
			found := s.auditSales(t, loss{affectedBefore: time.Now()}, false)
			require.Equal(t, again, found.lostAnswers)
			effort.Count(t, "slots half moved", 1)
			found.reportCounts(t)
		})
	}
}

// surveyAnswers asks for some answers, and repeats the requests until the client knows the new masters. again is the number of
// operations that have run again so far. refused is the number of refused requests in the last repetition.
func (s *shop) surveyAnswers() (again, refused int) {
	var keys []string
	for key := range s.sales {
		if len(keys) < 40 {
			keys = append(keys, key)
		}
	}
	var found time.Time // time of the first replay
	require.Eventually(s.test, func() bool {
		refused = 0
		for _, key := range keys {
			switch _, replayed, err := s.sendPayment(s.servers[0], key); {
			case err != nil:
				refused++
			case replayed && found.IsZero():
				found = time.Now()
			}
		}
		return !found.IsZero() && (refused == 0 || time.Since(found) > 5*time.Second)
	}, patience, 100*time.Millisecond)
	for key := range s.sales {
		s.updateSale(key, func(sale *sale) { again += min(1, sale.handlerRuns-1) })
	}
	return again, refused
}
