package redistest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// wrapped is a client as a service may wrap it, for example to count commands.
type wrapped struct {
	redis.UniversalClient
	commands int
}

// A Ring moves the keys of a server that it cannot reach to the other servers, which do not have the records. So a completed
// operation would run again, with Abandoned: Refuse as well. A Pipeliner sends nothing until Exec is called.
func TestRedisClientsThatCannotKeepRecords(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Password: servertest.RedisPassword(), Addrs: map[string]string{
		"a": servertest.Redis(t).Addr(), "b": servertest.Redis(t).Addr(),
	}})
	t.Cleanup(func() { _ = ring.Close() })
	single := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	for name, test := range map[string]struct {
		client redis.Cmdable
		names  string
	}{
		"ring":               {ring, "redis.Ring"},
		"ring, wrapped":      {&wrapped{ring, 0}, "redis.Ring"},
		"ring, bare":         {struct{ redis.Cmdable }{ring}, "redis.Ring"},
		"pipeline":           {single.Pipeline(), "redis.Pipeline"},
		"transaction":        {single.TxPipeline(), "redis.Pipeline"},
		"wrapped twice":      {struct{ redis.Cmdable }{&wrapped{ring, 0}}, "redis.Ring"},
		"pipeline of a ring": {ring.Pipeline(), "redis.Pipeline"},
	} {
		t.Run(name, func(t *testing.T) {
			store := idempotency.NewRedisStore(test.client, idempotency.RedisOptions{})
			_, claim, err := store.Begin(t.Context(), idempotency.Key{ID: name}, testservice.AttemptFor(time.Hour))
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, test.names)
			require.Nil(t, claim)
			require.Equal(t, err, store.Check(t.Context()))
		})
	}
}

// A client of a Cluster that reads from replicas, which may be behind their masters, still asks only masters about records.
func TestRedisClientsThatReadFromReplicas(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.ClusterOptions){
		"read only":        func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"route by latency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"route randomly":   func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := servertest.RedisClusterOfSix(t).Nodes()
			opts := &redis.ClusterOptions{
				Addrs: []string{nodes[0].Addr()}, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
			}
			set(opts)
			client := redis.NewClusterClient(opts)
			t.Cleanup(func() { _ = client.Close() })
			var replicas []*redis.Client
			for _, node := range nodes[3:] {
				replicas = append(replicas, testservice.NewRedisClient(t, node.Addr()))
			}
			testservice.Until(t, func() bool { // the client knows the replicas
				client.ReloadState(t.Context())
				var known atomic.Int32
				err := client.ForEachSlave(t.Context(), func(context.Context, *redis.Client) error {
					known.Add(1)
					return nil
				})
				return err == nil && known.Load() == 3
			})
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			for i := range 20 { // slots
				key := testservice.NumberedKey(i)
				claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour)).(idempotency.Checkpointer)
				_, err := claim.Checkpoint(t.Context(), "charge", []byte("1"))
				require.NoError(t, err)
				_, err = claim.Checkpoints(t.Context())
				require.NoError(t, err)
				testservice.MustInspect(t, store, key)
				require.NoError(t, claim.Extend(t.Context(), time.Minute))
				require.NoError(t, claim.Complete(t.Context(), testservice.Large(), time.Hour))
				testservice.MustRead(t, store, key)
			}
			listing, err := store.List(t.Context(), idempotency.ListRequest{})
			require.NoError(t, err)
			require.Len(t, listing.Entries, 20)
			require.Empty(t, readsOf(t, replicas))
			if name == "route by latency" { // the nearest server may be a master
				return
			}
			testservice.Until(t, func() bool { // what the service itself reads comes from a replica
				_ = client.Get(t.Context(), "another").Err()
				return len(readsOf(t, replicas)) > 0
			})
		})
	}
}

// readsOf returns which commands that read, or run a script, the replicas have carried out. A master sends a replica none of
// these: the effects of a script are replicated, not the script.
func readsOf(t *testing.T, replicas []*redis.Client) (commands []string) {
	t.Helper()
	for _, replica := range replicas {
		stats := replica.Info(t.Context(), "commandstats").Val()
		for _, command := range []string{"get", "getrange", "strlen", "pttl", "hgetall", "scan", "eval", "evalsha"} {
			if strings.Contains(stats, "cmdstat_"+command+":") {
				commands = append(commands, command)
			}
		}
	}
	return commands
}
