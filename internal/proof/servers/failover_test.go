package servers_test

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// A failover by Sentinel loses nothing that all replicas had when it began. Of what came after that some is lost, which is
// counted: min-replicas-to-write only narrows it.
func TestRedisFailsOver(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"crash", "command"} {
		for _, needed := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, min-replicas-to-write %d", by, needed), func(t *testing.T) {
				t.Parallel()
				sentinel := servertest.RedisSentinel(t, 2, "--min-replicas-to-write", strconv.Itoa(needed))
				clients := []*redis.Client{failoverClient(t, sentinel), failoverClient(t, sentinel)}
				var stores []idempotency.Store
				for _, client := range clients {
					stores = append(stores, idempotency.NewRedisStore(client, idempotency.RedisOptions{}))
				}
				opts := idempotency.Options{Lease: 5 * time.Second, StoreTimeout: 5 * time.Second}
				s := newShop(t, opts, &memory{}, stores...)
				var found counts
				faults := effort.Of(1)
				for range faults {
					var cost loss
					s.open(200, func() {
						cost.since = time.Now()
						replicated(t, clients[0], 2)
						failOver(t, sentinel, by, clients)
						cost.until = time.Now()
					})
					found.add(s.audit(t, cost, false))
				}
				effort.Count(t, "failovers", faults)
				found.report(t)
			})
		}
	}
}

func failoverClient(t *testing.T, sentinel *servertest.Sentinel) *redis.Client {
	t.Helper()
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: servertest.SentinelMaster, SentinelAddrs: sentinel.Addrs(),
		Password: servertest.RedisPassword(), SentinelPassword: servertest.RedisPassword(),
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// replicated waits until the replicas have all that the master has answered so far.
func replicated(t *testing.T, client *redis.Client, replicas int) {
	t.Helper()
	conn := client.Conn() // WAIT knows the writes of its own connection only, and replicas take all in order
	defer conn.Close()
	require.NoError(t, conn.Set(t.Context(), "barrier", "", time.Minute).Err())
	acknowledged, err := conn.Wait(t.Context(), replicas, time.Second).Result()
	require.NoError(t, err)
	require.EqualValues(t, replicas, acknowledged)
}

// failOver has a replica be the master, and waits until clients ask that one and the former master is its replica.
func failOver(t *testing.T, sentinel *servertest.Sentinel, by string, clients []*redis.Client) {
	t.Helper()
	old, err := sentinel.Master()
	require.NoError(t, err)
	if by == "crash" {
		old.Crash()
	} else {
		require.NoError(t, sentinel.Failover())
	}
	require.NoError(t, sentinel.AwaitFailover(old))
	master, err := sentinel.Master()
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	for _, client := range clients {
		require.Eventually(t, func() bool {
			return client.ConfigGet(t.Context(), "port").Val()["port"] == port
		}, 30*time.Second, 10*time.Millisecond)
	}
	if by == "crash" { // as a supervisor would
		require.NoError(t, old.Restart())
	}
	// A sentinel says the same when it has seen two masters for eight seconds.
	require.NoError(t, newClient(t, old).Do(t.Context(), "REPLICAOF", host, port).Err())
	till(t, clients[0], "replication", "connected_slaves:2\r\n")
}
