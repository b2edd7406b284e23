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

// A Cluster replaces masters that have one replica each. The test counts the lost answers.
func TestRedisClusterFailsOver(t *testing.T) {
	t.Parallel()
	runFailovers(t, 1, newCluster, []failover{
		{fault: "killed"}, {fault: "killed", awaitedReplicas: 1},
		{fault: "killed while a slot moves"}, {fault: "killed while a slot moves", awaitedReplicas: 1, alwaysRuns: true},
		{fault: "cut off"}, {fault: "cut off", awaitedReplicas: 1, alwaysRuns: true},
		{fault: "cut off", awaitedReplicas: 1, outlastsTimeout: true},
	})
}

// cluster has three masters with one replica each.
type cluster struct {
	*servertest.ReplicatedCluster
	networkCut networkCut
	keyPrefix  string
}

// slotTag puts all records into one slot of the first master.
const slotTag = "{slot}:"

// masterKeys has a key in a slot of each of the three masters.
var masterKeys = []string{"b", "c", "a"}

func newCluster(t *testing.T, row failover) deployment {
	t.Helper()
	c := &cluster{ReplicatedCluster: servertest.RedisClusterWithReplicas(t)}
	if row.fault == "killed while a slot moves" {
		c.keyPrefix = slotTag
	}
	return c
}

func (c *cluster) openStores(t *testing.T, replicas int) (stores []idempotency.Store) {
	for _, away := range []bool{false, true} {
		stores = append(stores, idempotency.NewRedisStore(c.newClusterClient(t, away), idempotency.RedisOptions{
			Prefix: c.keyPrefix, Replicas: replicas,
		}))
	}
	return stores
}

// newClusterClient returns a client that reads the slots of the nodes once a second, because a client does not read the slots again
// when a node fails to answer.
func (c *cluster) newClusterClient(t *testing.T, away bool) *redis.ClusterClient {
	t.Helper()
	opts := &redis.ClusterOptions{
		Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
		Dialer: c.networkCut.newDialer(away), ClusterStateReloadInterval: time.Second,
	}
	for _, node := range c.Nodes() {
		opts.Addrs = append(opts.Addrs, node.Addr())
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *cluster) causeFault(t *testing.T, fault string, while func()) {
	t.Helper()
	switch fault {
	case "killed":
		for n := range masterKeys {
			c.killMaster(t, n, while)
		}
	case "killed while a slot moves": // first the third master, and the new owner of the slot once all nodes know the owner
		m := c.planMove(t)
		m.beginMove(t)
		c.killMaster(t, 2, func() { m.moveAllKeys(t) })
		m.endMove(t, newClient(t, c.findMaster(t, 2)))
		c.awaitAgreement(t, m)
		effort.Count(t, "slot moves", 1)
		c.killMaster(t, 1, while)
	case "cut off":
		c.isolateMaster(t, mathrand.IntN(len(masterKeys)), while)
	}
}

// isolateMaster cuts the nth master off from all nodes and from the clients that are not away. The replica replaces the master.
func (c *cluster) isolateMaster(t *testing.T, n int, while func()) {
	t.Helper()
	old, promoted := c.awaitPair(t, n)
	heal, err := c.Isolate(old)
	require.NoError(t, err)
	c.networkCut.isolate(old)
	require.NoError(t, c.AwaitFailover(old, promoted))
	require.NoError(t, c.AwaitRefusal(old))
	while()
	require.NoError(t, heal())
	c.networkCut.heal()
	require.NoError(t, c.AwaitReplica(old))
	effort.Count(t, "failovers", 1)
}

// killMaster kills the nth master. Its replica becomes the master, and the killed master becomes the replica of the new master.
func (c *cluster) killMaster(t *testing.T, n int, while func()) {
	t.Helper()
	old, promoted := c.awaitPair(t, n)
	old.Crash()
	require.NoError(t, c.AwaitFailover(old, promoted))
	while()
	require.NoError(t, old.Restart())
	require.NoError(t, c.AwaitReplica(old))
	effort.Count(t, "failovers", 1)
}

// awaitPair returns the nth master and its replica, after the replica has received every write that the master has answered so
// far.
func (c *cluster) awaitPair(t *testing.T, n int) (master, replica *servertest.Server) {
	t.Helper()
	master, replica, err := c.Pair(n)
	require.NoError(t, err)
	awaitReplicated(t, master, masterKeys[n], 1)
	return master, replica
}

// planMove returns the move of the slot of all records from the current first master to the current second master.
func (c *cluster) planMove(t *testing.T) slotMove {
	t.Helper()
	from, to := newClient(t, c.findMaster(t, 0)), newClient(t, c.findMaster(t, 1))
	return slotMove{int(from.ClusterKeySlot(t.Context(), slotTag).Val()), from, to}
}

func (c *cluster) findMaster(t *testing.T, n int) *servertest.Server {
	t.Helper()
	master, _, err := c.Pair(n)
	require.NoError(t, err)
	return master
}

// awaitAgreement waits until every node knows the new owner of a slot.
func (c *cluster) awaitAgreement(t *testing.T, m slotMove) {
	t.Helper()
	moved := fmt.Sprint("MOVED ", m.slot, " ", m.target.Options().Addr)
	for _, node := range c.Nodes() {
		client := newClient(t, node)
		require.Eventually(t, func() bool {
			err := client.Get(t.Context(), slotTag).Err()
			return errors.Is(err, redis.Nil) && node.Addr() == m.target.Options().Addr || err != nil && err.Error() == moved
		}, patience, 10*time.Millisecond)
	}
}
