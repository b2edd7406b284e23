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

// TestClockOfTheSuccessorDiffers crashes the server between any two steps of two or three requests with one key. A replica with
// the same data and another clock replaces the server. The store must act as if the clock had jumped.
func TestClockOfTheSuccessorDiffers(t *testing.T) {
	t.Parallel()
	runForEachKind(t, allKinds[:3], func(t *testing.T, k kind) {
		master := k.startServer(t)
		var addr atomic.Value
		addr.Store(master.Addr())
		master.dialServer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}
		store := master.newStore(t)
		var now time.Duration
		scenarios, tally := 0, map[string]int{}
		for _, jump := range clockJumps {
			c := newClock(t)
			c.setWallClock(now + jump)
			replica := master.startReplica(t, c.buildEnv()...)
			var all [gapCount]batch
			for i := range all {
				all[i] = newBatch(t, k, store, fmt.Sprint("failover ", jump, i))
				all[i].takeSteps(0, i+1, now)
			}
			master.failOverTo(t, replica)
			addr.Store(replica.Addr())
			master, now = replica, now+jump
			for i, b := range all {
				b.takeSteps(i+1, len(scenarioSteps), now)
				b.endRequests()
				sequence := make([]time.Duration, gapCount)
				sequence[i] = jump
				for _, r := range b {
					r.checkOutcomes(t, sequence)
					r.countOutcomes(tally)
				}
				scenarios += len(b)
			}
		}
		effort.Count(t, "failovers", len(clockJumps))
		effort.Count(t, "rows", scenarios)
		for outcome, n := range tally {
			effort.Count(t, outcome, n)
		}
	})
}

// takeSteps takes the steps with the indexes from to to-1.
func (b batch) takeSteps(from, to int, ahead time.Duration) {
	for step := from; step < to; step++ {
		b.takeStep(step, ahead)
	}
}

// startReplica starts a replica of the server with the environment variables env.
func (s server) startReplica(t testing.TB, env ...string) (replica server) {
	t.Helper()
	startLock.Lock()
	defer startLock.Unlock()
	servertest.SetEnv(env...)
	defer servertest.SetEnv()
	if s.kind.isPostgres {
		replica = server{database: servertest.Replica(t, s.Addr(), postgresSettings...), kind: s.kind}
		replica.Server, replica.url = replica.database.Server, replica.database.URL()
		return replica
	}
	host, port, _ := net.SplitHostPort(s.Addr())
	replica = s.kind.startRedis(t, "--replicaof", host, port)
	awaitCondition(t, func() bool { return strings.Contains(replica.readReplicationInfo(t), "master_link_status:up") })
	return replica
}

// failOverTo waits until the replica has received all writes, crashes the server, and promotes the replica.
func (s server) failOverTo(t testing.TB, replica server) {
	t.Helper()
	if s.kind.isPostgres {
		var written string
		require.NoError(t, s.newTestPool(t).QueryRow(t.Context(), "select pg_current_wal_lsn()::text").Scan(&written))
		pool := replica.newTestPool(t)
		awaitCondition(t, func() (has bool) {
			err := pool.QueryRow(t.Context(), "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written).Scan(&has)
			require.NoError(t, err)
			return has
		})
		s.Crash()
		require.NoError(t, replica.database.Promote())
		return
	}
	s.dialServer = nil
	awaitCondition(t, func() bool { return s.replicationOffset(t) == replica.replicationOffset(t) })
	s.Crash()
	replica.sendCommand(t, "replicaof", "no", "one")
}

// replicationOffset returns the position of the server in the replication stream.
func (s server) replicationOffset(t testing.TB) string {
	_, rest, _ := strings.Cut(s.readReplicationInfo(t), "master_repl_offset:")
	offset, _, _ := strings.Cut(rest, "\r")
	return offset
}

func (s server) readReplicationInfo(t testing.TB) string {
	t.Helper()
	client := s.newRedisClient()
	defer client.Close()
	told, err := client.Info(t.Context(), "replication").Result()
	require.NoError(t, err)
	return told
}

func awaitCondition(t testing.TB, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it never happened")
	}
}
