package servers_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// While the slot of all keys moves to another server, no answer is lost and no operation runs twice.
func TestRedisSlotsMove(t *testing.T) {
	t.Parallel()
	masters := servertest.RedisCluster(t)
	var nodes []*redis.Client
	for _, master := range masters {
		nodes = append(nodes, newClient(t, master))
	}
	clusterClient := func() *redis.ClusterClient {
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{masters[0].Addr()}, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	clients := []*redis.ClusterClient{clusterClient(), clusterClient()}
	var found auditCounts
	moves := effort.Of(30)
	for n := range moves {
		// Each move has a slot of its own, because a slot that moves back would serve a request that was redirected before.
		tag := fmt.Sprintf("{slot %d}:", n)
		var stores []idempotency.Store
		for _, client := range clients {
			stores = append(stores, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: tag}))
		}
		s := newShop(t, patientOptions, &memoryLedger{}, stores...)
		s.payDuring(30, func() { moveSlot(t, nodes, int(clients[0].ClusterKeySlot(t.Context(), tag).Val())) })
		found.addCounts(s.auditSales(t, loss{}, false))
	}
	effort.Count(t, "slot moves", moves)
	found.reportCounts(t)
}

// moveSlot moves a slot with its keys to the next server.
func moveSlot(t *testing.T, nodes []*redis.Client, slot int) {
	t.Helper()
	owner := slot * len(nodes) / 16384
	m := slotMove{slot, nodes[owner], nodes[(owner+1)%len(nodes)]}
	m.beginMove(t)
	m.moveAllKeys(t)
	m.endMove(t, nodes[(owner+2)%len(nodes)])
}

// slotMove moves a slot from one server to another. Its methods are the steps of an operator.
type slotMove struct {
	slot           int
	source, target *redis.Client
}

func (m slotMove) beginMove(t *testing.T) {
	t.Helper()
	m.setSlot(t, m.target, "IMPORTING", m.source)
	m.setSlot(t, m.source, "MIGRATING", m.target)
}

// moveAllKeys moves all keys of the slot.
func (m slotMove) moveAllKeys(t *testing.T) {
	t.Helper()
	for m.moveKeys(t, 5) > 0 {
	}
}

// moveKeys moves at most limit keys, and returns the number of moved keys.
func (m slotMove) moveKeys(t *testing.T, limit int) int {
	t.Helper()
	host, port, err := net.SplitHostPort(m.target.Options().Addr)
	require.NoError(t, err)
	keys, err := m.source.ClusterGetKeysInSlot(t.Context(), m.slot, limit).Result()
	require.NoError(t, err)
	if len(keys) == 0 {
		return 0
	}
	command := []any{"MIGRATE", host, port, "", 0, 5000, "REPLACE", "AUTH", servertest.RedisPassword(), "KEYS"}
	for _, key := range keys {
		command = append(command, key)
	}
	require.Eventually(t, func() bool { // because a node may refuse MIGRATE while another node is replaced
		return m.source.Do(t.Context(), command...).Err() == nil
	}, patience, 100*time.Millisecond)
	return len(keys)
}

// endMove tells the new owner first, then the old owner, then others.
func (m slotMove) endMove(t *testing.T, others ...*redis.Client) {
	t.Helper()
	for _, node := range append([]*redis.Client{m.target, m.source}, others...) {
		m.setSlot(t, node, "NODE", m.target)
	}
}

// setSlot sets the state of the slot at node. other is the node that the state names.
func (m slotMove) setSlot(t *testing.T, node *redis.Client, state string, other *redis.Client) {
	t.Helper()
	id := other.ClusterMyID(t.Context()).Val()
	require.NoError(t, node.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, state, id).Err())
}
