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

// While the slot of all keys moves to another server, nothing is lost, and nothing runs twice.
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
	var found counts
	moves := effort.Of(30)
	for n := range moves {
		tag := fmt.Sprintf("{slot %d}:", n) // a slot that moves back would serve a request that was redirected before
		var stores []idempotency.Store
		for _, client := range clients {
			stores = append(stores, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: tag}))
		}
		s := newShop(t, patient, &memory{}, stores...)
		s.open(30, func() { moveSlot(t, nodes, int(clients[0].ClusterKeySlot(t.Context(), tag).Val())) })
		found.add(s.audit(t, loss{}, false))
	}
	effort.Count(t, "slot moves", moves)
	found.report(t)
}

// moveSlot moves a slot, with its keys, to the next server.
func moveSlot(t *testing.T, nodes []*redis.Client, slot int) {
	t.Helper()
	owner := slot * len(nodes) / 16384
	m := move{slot, nodes[owner], nodes[(owner+1)%len(nodes)]}
	m.begin(t)
	m.carry(t)
	m.end(t, nodes[(owner+2)%len(nodes)])
}

// move is that of a slot from one server to another, in the steps that an operator takes.
type move struct {
	slot     int
	from, to *redis.Client
}

func (m move) begin(t *testing.T) {
	t.Helper()
	m.set(t, m.to, "IMPORTING", m.from)
	m.set(t, m.from, "MIGRATING", m.to)
}

// carry moves all keys.
func (m move) carry(t *testing.T) {
	t.Helper()
	for m.some(t, 5) > 0 {
	}
}

// some moves so many keys at most, and returns how many they were.
func (m move) some(t *testing.T, most int) int {
	t.Helper()
	host, port, err := net.SplitHostPort(m.to.Options().Addr)
	require.NoError(t, err)
	keys, err := m.from.ClusterGetKeysInSlot(t.Context(), m.slot, most).Result()
	require.NoError(t, err)
	if len(keys) == 0 {
		return 0
	}
	command := []any{"MIGRATE", host, port, "", 0, 5000, "REPLACE", "AUTH", servertest.RedisPassword(), "KEYS"}
	for _, key := range keys {
		command = append(command, key)
	}
	require.Eventually(t, func() bool { // a node may refuse that while another one is replaced
		return m.from.Do(t.Context(), command...).Err() == nil
	}, patience, 100*time.Millisecond)
	return len(keys)
}

// end tells the new owner first.
func (m move) end(t *testing.T, others ...*redis.Client) {
	t.Helper()
	for _, node := range append([]*redis.Client{m.to, m.from}, others...) {
		m.set(t, node, "NODE", m.to)
	}
}

// set tells a node something of the slot.
func (m move) set(t *testing.T, node *redis.Client, state string, other *redis.Client) {
	t.Helper()
	id := other.ClusterMyID(t.Context()).Val()
	require.NoError(t, node.Do(t.Context(), "CLUSTER", "SETSLOT", m.slot, state, id).Err())
}
