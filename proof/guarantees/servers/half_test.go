package servers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// A master dies while a slot moves, and half of the records have moved. Redis 7 does not tell replicas of the move. So if the
// source dies, the records that had moved are hidden, and their operations run again; the target refuses every request. If
// the target dies, requests for records that are not at the source get 503. That lasts until the new masters are told of the
// move again. Valkey 8 tells replicas. When the move has ended, every other answer is there.
func TestRedisSlotIsHalfMoved(t *testing.T) {
	t.Parallel()
	for dies, n := range map[string]int{"source": 0, "target": 1} {
		if little() && dies == "target" {
			continue
		}
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, failover{fault: "killed while a slot moves"}).(*cluster)
			s := newShop(t, brief, &memory{}, c.stores(t, 1)...)
			s.open(50, func() {})
			m := c.moving(t)
			m.begin(t)
			for range 5 {
				require.Equal(t, 10, m.some(t, 10))
			}
			old, promoted := c.pair(t, n)
			old.Crash()
			till(t, newClient(t, promoted), "replication", "role:master")
			require.NoError(t, old.Restart())

			again, refused := s.survey()
			told := strings.Contains(newClient(t, promoted).Info(t.Context(), "server").Val(), "valkey_version")
			require.Equal(t, !told && dies == "source", again > 0, "%d operations run again", again)
			require.Equal(t, !told && dies == "target", refused > 0, "%d requests are refused", refused)
			target := newClient(t, c.master(t, 1))
			require.Eventually(t, func() bool { // it takes the slot for that of the dead source
				return (target.Set(t.Context(), names[1], "", 0).Err() == nil) == (told || dies == "target")
			}, patience, 100*time.Millisecond)

			m = c.moving(t)
			for _, node := range []*redis.Client{m.from, m.to} {
				m.set(t, node, "NODE", m.from)
			}
			m.begin(t)
			still, refused := s.survey()
			require.Equal(t, again, still, "operations that have run again")
			require.Zero(t, refused)
			m.carry(t)
			m.end(t, newClient(t, c.master(t, 2)))
			c.agree(t, m)
			found := s.audit(t, loss{until: time.Now()}, false)
			require.Equal(t, again, found.lost)
			effort.Count(t, "slots half moved", 1)
			found.report(t)
		})
	}
}

// survey asks for some answers, once each, and again until the client knows the new masters. It returns how many operations
// have run again so far, and how many requests were refused in the end.
func (s *shop) survey() (again, refused int) {
	var keys []string
	for key := range s.sales {
		if len(keys) < 40 {
			keys = append(keys, key)
		}
	}
	var found time.Time // an answer
	require.Eventually(s.t, func() bool {
		refused = 0
		for _, key := range keys {
			switch _, replayed, err := s.ask(s.servers[0], key); {
			case err != nil:
				refused++
			case replayed && found.IsZero():
				found = time.Now()
			}
		}
		return !found.IsZero() && (refused == 0 || time.Since(found) > 5*time.Second)
	}, patience, 100*time.Millisecond)
	for key := range s.sales {
		s.about(key, func(sale *sale) { again += min(1, sale.runs-1) })
	}
	return again, refused
}
