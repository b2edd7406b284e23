package servers_test

import (
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// What it costs when a Cluster replaces masters that have one replica each.
func TestRedisClusterFailsOver(t *testing.T) {
	t.Parallel()
	tryFailovers(t, 1, newCluster, []failover{
		{fault: "killed"}, {fault: "killed", replicas: 1},
		{fault: "killed while a slot moves"}, {fault: "killed while a slot moves", replicas: 1, always: true},
		{fault: "cut off"}, {fault: "cut off", replicas: 1, always: true}, {fault: "cut off", replicas: 1, long: true},
	})
}

// cluster has six nodes: three masters with a replica each.
type cluster struct {
	*servertest.ReplicatedCluster
	cut    cut
	prefix string // of records
}

// tag has all records be in one slot, which the first master has.
const tag = "{slot}:"

// names are in the slots of the three masters.
var names = []string{"b", "c", "a"}

func newCluster(t *testing.T, row failover) deployment {
	t.Helper()
	c := &cluster{ReplicatedCluster: servertest.RedisClusterWithReplicas(t)}
	if row.fault == "killed while a slot moves" {
		c.prefix = tag
	}
	return c
}

func (c *cluster) stores(t *testing.T, replicas int) (stores []idempotency.Store) {
	for _, away := range []bool{false, true} {
		stores = append(stores, idempotency.NewRedisStore(c.client(t, away), idempotency.RedisOptions{
			Prefix: c.prefix, Replicas: replicas,
		}))
	}
	return stores
}

// client returns one that looks often which node has what: it does not look again because a node does not answer.
func (c *cluster) client(t *testing.T, away bool) *redis.ClusterClient {
	t.Helper()
	opts := &redis.ClusterOptions{
		Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
		Dialer: c.cut.dialer(away), ClusterStateReloadInterval: time.Second,
	}
	for _, node := range c.Nodes() {
		opts.Addrs = append(opts.Addrs, node.Addr())
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *cluster) strike(t *testing.T, fault string, while func()) {
	t.Helper()
	switch fault {
	case "killed":
		for n := range names {
			c.kill(t, n, while)
		}
	case "killed while a slot moves": // the third one first, and the new owner of the slot when all know it
		m := c.moving(t)
		m.begin(t)
		c.kill(t, 2, func() { m.carry(t) })
		m.end(t, newClient(t, c.master(t, 2)))
		c.agree(t, m)
		effort.Count(t, "slot moves", 1)
		c.kill(t, 1, while)
	case "cut off":
		c.cutOff(t, mathrand.IntN(len(names)), while)
	}
}

// cutOff has the nth master be replaced by its replica while nobody hears it but some clients.
func (c *cluster) cutOff(t *testing.T, n int, while func()) {
	t.Helper()
	old, promoted := c.pair(t, n)
	heal, err := c.Isolate(old)
	require.NoError(t, err)
	c.cut.off(old)
	require.NoError(t, c.AwaitFailover(old, promoted))
	require.NoError(t, c.AwaitRefusal(old))
	while()
	require.NoError(t, heal())
	c.cut.heal()
	require.NoError(t, c.AwaitReplica(old))
	effort.Count(t, "failovers", 1)
}

// kill kills the nth master, has its replica replace it, and makes it a replica of that one.
func (c *cluster) kill(t *testing.T, n int, while func()) {
	t.Helper()
	old, promoted := c.pair(t, n)
	old.Crash()
	require.NoError(t, c.AwaitFailover(old, promoted))
	while()
	require.NoError(t, old.Restart())
	require.NoError(t, c.AwaitReplica(old))
	effort.Count(t, "failovers", 1)
}

// pair returns the nth master and its replica, which has all that the master has answered so far.
func (c *cluster) pair(t *testing.T, n int) (master, replica *servertest.Server) {
	t.Helper()
	master, replica, err := c.Pair(n)
	require.NoError(t, err)
	replicated(t, master, names[n], 1)
	return master, replica
}

// moving returns the move of the slot of all records from the first master, whichever that is now, to the second one.
func (c *cluster) moving(t *testing.T) move {
	t.Helper()
	from, to := newClient(t, c.master(t, 0)), newClient(t, c.master(t, 1))
	return move{int(from.ClusterKeySlot(t.Context(), tag).Val()), from, to}
}

func (c *cluster) master(t *testing.T, n int) *servertest.Server {
	t.Helper()
	master, _, err := c.Pair(n)
	require.NoError(t, err)
	return master
}

// agree waits until every node knows where a slot has moved.
func (c *cluster) agree(t *testing.T, m move) {
	t.Helper()
	moved := fmt.Sprint("MOVED ", m.slot, " ", m.to.Options().Addr)
	for _, node := range c.Nodes() {
		client := newClient(t, node)
		require.Eventually(t, func() bool {
			err := client.Get(t.Context(), tag).Err()
			return errors.Is(err, redis.Nil) && node.Addr() == m.to.Options().Addr || err != nil && err.Error() == moved
		}, patience, 10*time.Millisecond)
	}
}
