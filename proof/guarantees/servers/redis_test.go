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

// twoStores returns what each server of a shop has.
func twoStores(open func() redis.Cmdable) []idempotency.Store {
	return []idempotency.Store{
		idempotency.NewRedisStore(open(), idempotency.RedisOptions{}),
		idempotency.NewRedisStore(open(), idempotency.RedisOptions{}),
	}
}

// till waits until INFO tells something.
func till(t *testing.T, client *redis.Client, section, told string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return strings.Contains(client.Info(t.Context(), section).Val(), told)
	}, patience, time.Millisecond)
}

// What a Redis that is killed and started again forgets is what its settings say, no more and no less. The same holds
// for FLUSHALL.
func TestRedisIsKilled(t *testing.T) {
	t.Parallel()
	type fault func(t *testing.T, s *shop, server *servertest.Server, client *redis.Client) loss
	restart := func(t *testing.T, server *servertest.Server) (done time.Time) {
		require.NoError(t, server.Restart())
		return time.Now()
	}
	// Redis writes to its log before it answers, but with everysec not while it waits for the disk: what was answered may
	// be in its buffer only.
	written := func(t *testing.T, s *shop, server *servertest.Server, client *redis.Client) loss {
		since := time.Now()
		till(t, client, "persistence", "aof_buffer_length:0\r\n")
		s.await(20)
		return loss{since: since, until: restart(t, server)}
	}
	for name, row := range map[string]struct {
		args   []string
		opts   idempotency.Options
		fault  fault
		faults int // zero: 10
	}{
		"always": {args: []string{"--appendonly", "yes", "--appendfsync", "always"}, opts: patient,
			fault: func(t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client) loss {
				restart(t, server)
				return loss{}
			}},
		"everysec": {args: []string{"--appendonly", "yes", "--appendfsync", "everysec"}, opts: brief, fault: written},
		"no fsync": {args: []string{"--appendonly", "yes", "--appendfsync", "no"}, opts: patient,
			fault: func(t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client) loss {
				restart(t, server)
				return loss{}
			}},
		"snapshots": {opts: brief, fault: func(t *testing.T, s *shop, server *servertest.Server, client *redis.Client) loss {
			since := time.Now()
			require.NoError(t, client.BgSave(t.Context()).Err())
			till(t, client, "persistence", "rdb_bgsave_in_progress:0\r\n")
			from := time.Now()
			s.await(50)
			return loss{since: since, from: from, to: time.Now(), until: restart(t, server)}
		}, faults: 3},
		"nothing on disk": {opts: brief, fault: func(t *testing.T, _ *shop, server *servertest.Server, _ *redis.Client) loss {
			return loss{to: time.Now(), until: restart(t, server)}
		}},
		"FLUSHALL": {args: []string{"--appendonly", "yes", "--appendfsync", "always"}, opts: brief,
			fault: func(t *testing.T, _ *shop, _ *servertest.Server, client *redis.Client) loss {
				to := time.Now()
				require.NoError(t, client.FlushAll(t.Context()).Err())
				return loss{to: to, until: time.Now()}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, row.args...)
			client := newClient(t, server)
			s := newShop(t, row.opts, &memory{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
			var found counts
			faults := effort.Of(cmp.Or(row.faults, 10))
			for range faults {
				var cost loss
				s.open(100, func() { cost = row.fault(t, s, server, client) })
				found.add(s.audit(t, cost, false))
			}
			effort.Count(t, "faults", faults)
			effort.Count(t, "answers restored", s.outcome(idempotency.OutcomeRestored))
			found.report(t)
		})
	}
}
