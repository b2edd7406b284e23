package servers_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
	"github.com/idempotency-go/idempotency/internal/servertest"
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

// moveSlot moves a slot, with its keys, to the next server, as an operator does.
func moveSlot(t *testing.T, nodes []*redis.Client, slot int) {
	t.Helper()
	do := func(node *redis.Client, args ...any) { require.NoError(t, node.Do(t.Context(), args...).Err()) }
	owner := slot * len(nodes) / 16384
	from, to := nodes[owner], nodes[(owner+1)%len(nodes)]
	id := func(node *redis.Client) string { return node.ClusterMyID(t.Context()).Val() }
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	host, port, err := net.SplitHostPort(to.Options().Addr)
	require.NoError(t, err)
	for {
		keys, err := from.ClusterGetKeysInSlot(t.Context(), slot, 5).Result()
		require.NoError(t, err)
		if len(keys) == 0 {
			break
		}
		move := []any{"MIGRATE", host, port, "", 0, 5000, "AUTH", servertest.RedisPassword(), "KEYS"}
		for _, key := range keys {
			move = append(move, key)
		}
		do(from, move...)
	}
	for _, node := range []*redis.Client{to, from, nodes[(owner+2)%len(nodes)]} { // the new owner is told first
		do(node, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	}
}
