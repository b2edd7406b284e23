//go:build linux

package clocks_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestClockOfTheSuccessorDiffers has the server crash between any two steps of two or three requests with one key, and
// replaces it by a replica whose clock differs, though everything else is the same. The store must do what it would have
// done if the clock had jumped.
func TestClockOfTheSuccessorDiffers(t *testing.T) {
	t.Parallel()
	each(t, kinds[:3], func(t *testing.T, k kind) {
		master := k.start(t)
		var addr atomic.Value
		addr.Store(master.Addr())
		master.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}
		store := master.store(t)
		var now time.Duration
		rows, tally := 0, map[string]int{}
		for _, jump := range jumps {
			c := newClock(t)
			c.set(now + jump)
			replica := master.follow(t, c.env()...)
			var all [gaps]batch
			for i := range all {
				all[i] = newBatch(t, k, store, fmt.Sprint("failover ", jump, i))
				all[i].takeAll(0, i+1, now)
			}
			master.replace(t, replica)
			addr.Store(replica.Addr())
			master, now = replica, now+jump
			for i, b := range all {
				b.takeAll(i+1, len(steps), now)
				b.end()
				sequence := make([]time.Duration, gaps)
				sequence[i] = jump
				for _, r := range b {
					r.judge(t, sequence)
					r.count(tally)
				}
				rows += len(b)
			}
		}
		effort.Count(t, "failovers", len(jumps))
		effort.Count(t, "rows", rows)
		for outcome, n := range tally {
			effort.Count(t, outcome, n)
		}
	})
}

func (b batch) takeAll(from, to int, ahead time.Duration) {
	for step := from; step < to; step++ {
		b.take(step, ahead)
	}
}

// follow starts a replica of the server with that environment.
func (s server) follow(t testing.TB, env ...string) (replica server) {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	servertest.SetEnv(env...)
	defer servertest.SetEnv()
	if s.kind.postgres {
		replica = server{db: servertest.Replica(t, s.Addr(), allow...), kind: s.kind}
		replica.Server, replica.url = replica.db.Server, replica.db.URL()
		return replica
	}
	host, port, _ := net.SplitHostPort(s.Addr())
	replica = s.kind.startRedis(t, "--replicaof", host, port)
	await(t, func() bool { return strings.Contains(replica.info(t), "master_link_status:up") })
	return replica
}

// replace waits until the replica has everything, and puts it in the place of the server, which crashes.
func (s server) replace(t testing.TB, replica server) {
	t.Helper()
	if s.kind.postgres {
		var written string
		require.NoError(t, s.pool(t).QueryRow(t.Context(), "select pg_current_wal_lsn()::text").Scan(&written))
		pool := replica.pool(t)
		await(t, func() (has bool) {
			err := pool.QueryRow(t.Context(), "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written).Scan(&has)
			require.NoError(t, err)
			return has
		})
		s.Crash()
		require.NoError(t, replica.db.Promote())
		return
	}
	s.dial = nil
	await(t, func() bool { return s.offset(t) == replica.offset(t) })
	s.Crash()
	replica.tell(t, "replicaof", "no", "one")
}

// offset returns how far the server is in the stream of writes.
func (s server) offset(t testing.TB) string {
	_, rest, _ := strings.Cut(s.info(t), "master_repl_offset:")
	offset, _, _ := strings.Cut(rest, "\r")
	return offset
}

func (s server) info(t testing.TB) string {
	t.Helper()
	client := s.client()
	defer client.Close()
	told, err := client.Info(t.Context(), "replication").Result()
	require.NoError(t, err)
	return told
}

func await(t testing.TB, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it never happened")
	}
}
