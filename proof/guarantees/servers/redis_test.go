package servers_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func newClient(t *testing.T, server *servertest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// twoStores returns a store for each of two servers of a shop. Each store has a client of its own.
func twoStores(open func() redis.Cmdable) []idempotency.Store {
	return []idempotency.Store{
		idempotency.NewRedisStore(open(), idempotency.RedisOptions{}),
		idempotency.NewRedisStore(open(), idempotency.RedisOptions{}),
	}
}

// awaitInfo waits until a section of INFO contains told.
func awaitInfo(t *testing.T, client *redis.Client, section, told string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains(client.Info(t.Context(), section).Val(), told)
	}, patience, time.Millisecond)
}

// A Redis that is killed and started again forgets the answers that its settings allow, no more and no fewer. The same holds for
// FLUSHALL.
func TestRedisIsKilled(t *testing.T) {
	t.Parallel()
	type fault func(t *testing.T, s *shop, server *servertest.Server, client *redis.Client) loss
	restart := func(t *testing.T, server *servertest.Server) (done time.Time) {
		require.NoError(t, server.Restart())
		return time.Now()
	}
	// Redis writes to its log before the answer, except with everysec while Redis waits for the disk. Then an answered write may only
	// be in the buffer of Redis, so the fault waits for an empty buffer.
	written := func(t *testing.T, s *shop, server *servertest.Server, client *redis.Client) loss {
		since := time.Now()
		awaitInfo(t, client, "persistence", "aof_buffer_length:0\r\n")
		s.awaitAnswers(20)
		return loss{affectedAfter: since, affectedBefore: restart(t, server)}
	}
	for name, row := range map[string]struct {
		serverArgs []string
		options    idempotency.Options
		causeFault fault
		faultCount int // zero: 10
	}{
		"always": {serverArgs: []string{"--appendonly", "yes", "--appendfsync", "always"}, options: patientOptions,
			causeFault: func(t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client) loss {
				restart(t, server)
				return loss{}
			}},
		"everysec": {
			serverArgs: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
			options:    briefOptions, causeFault: written,
		},
		"no fsync": {serverArgs: []string{"--appendonly", "yes", "--appendfsync", "no"}, options: patientOptions,
			causeFault: func(t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client) loss {
				restart(t, server)
				return loss{}
			}},
		"snapshots": {options: briefOptions, faultCount: 3, causeFault: func(
			t *testing.T, s *shop, server *servertest.Server, client *redis.Client,
		) loss {
			since := time.Now()
			require.NoError(t, client.BgSave(t.Context()).Err())
			awaitInfo(t, client, "persistence", "rdb_bgsave_in_progress:0\r\n")
			from := time.Now()
			s.awaitAnswers(50)
			return loss{affectedAfter: since, lostAfter: from, lostBefore: time.Now(), affectedBefore: restart(t, server)}
		}},
		"nothing on disk": {options: briefOptions, causeFault: func(
			t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client,
		) loss {
			return loss{lostBefore: time.Now(), affectedBefore: restart(t, server)}
		}},
		"FLUSHALL": {serverArgs: []string{"--appendonly", "yes", "--appendfsync", "always"}, options: briefOptions,
			causeFault: func(t *testing.T, _ *shop, _ *servertest.Server, client *redis.Client) loss {
				to := time.Now()
				require.NoError(t, client.FlushAll(t.Context()).Err())
				return loss{lostBefore: to, affectedBefore: time.Now()}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, row.serverArgs...)
			client := newClient(t, server)
			s := newShop(t, row.options, &memoryLedger{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
			var found auditCounts
			faults := effort.Of(cmp.Or(row.faultCount, 10))
			for range faults {
				var cost loss
				s.payDuring(100, func() { cost = row.causeFault(t, s, server, client) })
				found.addCounts(s.auditSales(t, cost, false))
			}
			effort.Count(t, "faults", faults)
			effort.Count(t, "answers restored", s.outcomeCount(idempotency.OutcomeRestored))
			found.reportCounts(t)
		})
	}
}
