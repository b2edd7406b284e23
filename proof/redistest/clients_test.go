package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// These clients wrap go-redis as a service may do, for example to count commands.
type (
	wrapped struct {
		redis.UniversalClient
		commands int
	}
	hidden    struct{ wrapped }
	delegates struct {
		redis.Cmdable
		next *delegates // the client itself
	}
)

// RedisStore rejects clients that cannot keep records. A Ring moves the keys of an unreachable server to the other
// servers, which lack the records, so a completed operation would run again, even with Abandoned: Refuse. A
// Pipeliner sends nothing until the call of Exec. A single connection stays broken after a fault.
func TestRedisClientsThatCannotKeepRecords(t *testing.T) {
	t.Parallel()
	server, single := testservice.NewMiniredis(t)
	ring := redis.NewRing(&redis.RingOptions{Password: servertest.RedisPassword(), Addrs: map[string]string{"a": server.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	conn := single.Conn()
	t.Cleanup(func() { _ = conn.Close() })
	var tx *redis.Tx
	require.NoError(t, single.Watch(t.Context(), func(watching *redis.Tx) error { tx = watching; return nil }))
	circle := &delegates{Cmdable: single}
	circle.next = circle
	circleOfRing := &delegates{Cmdable: &hidden{wrapped{ring, 0}}}
	circleOfRing.next = circleOfRing
	for name, test := range map[string]struct {
		client redis.Cmdable
		names  string // empty: the client is accepted
	}{
		"ring":               {ring, "*redis.Ring"},
		"ring, embedded":     {struct{ *redis.Ring }{ring}, "*redis.Ring"},
		"ring, wrapped":      {&wrapped{ring, 0}, "*redis.Ring"},
		"ring, bare":         {struct{ redis.Cmdable }{ring}, "*redis.Ring"},
		"ring, hidden":       {&hidden{wrapped{ring, 0}}, "*redis.Ring"},
		"ring, wrapped more": {circleOfRing, "*redis.Ring"},
		"pipeline":           {single.Pipeline(), "*redis.Pipeline"},
		"pipeline, wrapped":  {struct{ redis.Pipeliner }{single.Pipeline()}, "*redis.Pipeline"},
		"transaction":        {single.TxPipeline(), "*redis.Pipeline"},
		"pipeline of a ring": {ring.Pipeline(), "*redis.Pipeline"},
		"connection":         {conn, "*redis.Conn"},
		"watching":           {tx, "*redis.Tx"},
		"nothing":            {nil, "nil"},
		"no client":          {(*redis.Client)(nil), "nil"},
		"client":             {single, ""},
		"client, wrapped":    {&hidden{wrapped{single, 0}}, ""},
		"circle":             {circle, ""},
	} {
		t.Run(name, func(t *testing.T) {
			store := idempotency.NewRedisStore(test.client, idempotency.RedisOptions{})
			for what, s := range map[string]idempotency.Store{
				"store": store, "cache": cache.New(store, cache.Options{}), "seal": testservice.MustSeal(t, store, testservice.Sealing("1")),
			} {
				_, claim, err := s.Begin(t.Context(), idempotency.Key{ID: name + what}, testservice.AttemptFor(time.Hour))
				if test.names == "" {
					require.NoError(t, err)
					require.NotNil(t, claim)
					continue
				}
				require.ErrorContains(t, err, test.names)
				require.Equal(t, test.names != "nil", errors.Is(err, errors.ErrUnsupported), err)
				require.Nil(t, testservice.InDoubt(err))
			}
			_, _, err := store.Begin(t.Context(), idempotency.Key{ID: name}, testservice.AttemptFor(time.Hour))
			require.Equal(t, err, store.Check(t.Context()))
		})
	}
}

// A connection without timeouts ignores deadlines. Even so, a step and Check end at the deadline of their context.
func TestRedisClientsWithoutTimeouts(t *testing.T) {
	t.Parallel()
	const none = -2
	for name, open := range map[string]func(t *testing.T, addr string) redis.Cmdable{
		"client": func(t *testing.T, addr string) redis.Cmdable {
			return testservice.NewRedisClient(t, addr, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = none, none })
		},
		"client with deadlines": func(t *testing.T, addr string) redis.Cmdable {
			return testservice.NewRedisClient(t, addr, testservice.WithContextTimeout, func(o *redis.Options) { o.ReadTimeout = none })
		},
		"client of a cluster": func(t *testing.T, addr string) redis.Cmdable {
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{addr}, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, ReadTimeout: none,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slotsOf(addr), nil },
			})
			t.Cleanup(func() { _ = client.Close() })
			return client
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			store := idempotency.NewRedisStore(open(t, server.Addr()), idempotency.RedisOptions{})
			testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
			require.NoError(t, server.Pause())
			ended := make(chan error)
			for _, step := range []func(context.Context) error{
				func(ctx context.Context) error {
					_, _, err := store.Begin(ctx, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					return err
				},
				func(ctx context.Context) error { _, err := store.Inspect(ctx, testservice.NumberedKey(0)); return err },
				func(ctx context.Context) error { _, err := store.List(ctx, idempotency.ListRequest{}); return err },
				store.Check,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				go func() { ended <- step(ctx) }()
				select {
				case err := <-ended:
					require.Error(t, err)
				case <-time.After(time.Minute):
					server.Resume()
					<-ended
					t.Error("a step goes on beyond its context")
				}
				cancel()
			}
			server.Resume()
		})
	}
}

// slotsOf returns a table of slots that gives each server an equal part, and the last server the remainder.
func slotsOf(addrs ...string) (slots []redis.ClusterSlot) {
	const all = 16384
	for i, addr := range addrs {
		part := redis.ClusterSlot{Start: i * all / len(addrs), End: (i+1)*all/len(addrs) - 1}
		part.Nodes = []redis.ClusterNode{{Addr: addr}}
		slots = append(slots, part)
	}
	return slots
}

// A service can tell its client which server has a key. Servers of a Cluster then refuse the keys of other servers,
// but independent servers accept any key, so Check reports independent servers.
func TestRedisCheckOfSlotsByTheService(t *testing.T) {
	t.Parallel()
	servers := func(args ...string) (addrs []string) {
		for range 2 {
			addrs = append(addrs, servertest.Redis(t, append(args, "--appendonly", "yes", "--appendfsync", "always")...).Addr())
		}
		return addrs
	}
	apart, cluster := servers(), servers("--cluster-enabled", "yes")
	for name, test := range map[string]struct{ addrs, findings []string }{
		"servers":           {apart, []string{"cluster_enabled", "cluster_enabled"}},
		"one server":        {apart[:1:1], nil}, // the capacity makes the client's append copy the slice
		"servers that know": {cluster, nil},
	} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: test.addrs, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slotsOf(test.addrs...), nil },
			})
			t.Cleanup(func() { _ = client.Close() })
			require.Equal(t, test.findings, unsafeSettings(t, client))
		})
	}
}

// No other option of go-redis clients makes a difference.
func TestRedisClientsConform(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*redis.Options){
		"RESP2, another database, no pool for pipelines": func(o *redis.Options) { o.Protocol, o.DB, o.PipelinePoolSize = 2, 3, -1 },
		"values cached in the client": func(o *redis.Options) {
			o.ContextTimeoutEnabled, o.ClientSideCacheConfig = true, &redis.ClientSideCacheConfig{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testservice.NewRedisClient(t, servertest.Redis(t).Addr(), edit)
			newStore := func(*testing.T) idempotency.Store {
				return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: uuid.NewString()})
			}
			idempotencytest.Run(t, newStore)
			idempotencytest.RunSteps(t, newStore)
			idempotencytest.RunInspector(t, newStore)
			idempotencytest.RunResolver(t, newStore)
		})
	}
}

// A Cluster client that reads from replicas, which may be behind their masters, still asks only masters about
// records, even while a slot moves.
func TestRedisClientsThatReadFromReplicas(t *testing.T) {
	t.Parallel()
	nodes := servertest.RedisClusterWithReplicas(t).Nodes()
	var masters, replicas []*redis.Client
	for i, node := range nodes {
		client := testservice.NewRedisClient(t, node.Addr())
		if i < 3 {
			masters = append(masters, client)
		} else {
			replicas = append(replicas, client)
		}
	}
	for name, set := range map[string]func(*redis.ClusterOptions){
		"read only":        func(o *redis.ClusterOptions) { o.ReadOnly = true },
		"route by latency": func(o *redis.ClusterOptions) { o.RouteByLatency = true },
		"route randomly":   func(o *redis.ClusterOptions) { o.RouteRandomly = true },
	} {
		t.Run(name, func(t *testing.T) {
			for _, replica := range replicas {
				require.NoError(t, replica.ConfigResetStat(t.Context()).Err())
			}
			client := awaitReplicas(t, 3, func() *redis.ClusterClient {
				opts := &redis.ClusterOptions{
					Addrs: []string{nodes[0].Addr()}, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
				}
				set(opts)
				return newClusterClient(opts)
			})
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: name})
			for i := range 20 { // i is the slot
				settleOnce(t, store, testservice.NumberedKey(i))
			}
			require.Len(t, testservice.MustList(t, store).Entries, 20)

			one := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot + name})
			testservice.MustComplete(t, one, testservice.NumberedKey(0), testservice.BodyOf(1))
			for range 10 {
				duringMove(t, client, masters, func() { testservice.MustInspect(t, one, testservice.NumberedKey(0)) })
			}
			require.Empty(t, readsOf(t, replicas))
			if name == "route by latency" { // the nearest server may be a master
				return
			}
			testservice.Until(t, func() bool { // the service's own reads come from a replica
				for i := range 20 { // in every shard, because a busy machine may have made a replica the master of its shard
					_ = client.Get(t.Context(), fmt.Sprint("another ", i)).Err()
				}
				return len(readsOf(t, replicas)) > 0
			})
		})
	}
}

// newClusterClient returns a client whose nodes connect when they are complete. With RouteByLatency, go-redis 9.23 begins to measure
// the latency of a new node before it sets the last field of the node, which is a data race in go-redis.
func newClusterClient(opts *redis.ClusterOptions) *redis.ClusterClient {
	var completions sync.Map // channels by *redis.Client
	opts.NewClient = func(o *redis.Options) *redis.Client {
		completed := make(chan struct{})
		o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			<-completed
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		client := redis.NewClient(o)
		completions.Store(client, completed)
		return client
	}
	cluster := redis.NewClusterClient(opts)
	cluster.OnNewNode(func(client *redis.Client) {
		if completed, ok := completions.Load(client); ok {
			close(completed.(chan struct{}))
		}
	})
	return cluster
}

// awaitReplicas opens clients until a client knows the given number of replicas.
func awaitReplicas(t *testing.T, number int32, open func() *redis.ClusterClient) (client *redis.ClusterClient) {
	testservice.Until(t, func() bool {
		client = open()
		var known atomic.Int32
		err := client.ForEachSlave(t.Context(), func(context.Context, *redis.Client) error {
			known.Add(1)
			return nil
		})
		if err == nil && known.Load() == number {
			return true
		}
		_ = client.Close()
		return false
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// settleOnce executes each step of an operation once, and then inspects the operation.
func settleOnce(t *testing.T, store *idempotency.RedisStore, key idempotency.Key) {
	t.Helper()
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

// duringMove calls look while oneSlot moves from its master to another master, and then reverts the move.
func duringMove(t *testing.T, client *redis.ClusterClient, masters []*redis.Client, look func()) {
	t.Helper()
	owner, err := client.MasterForKey(t.Context(), oneSlot)
	require.NoError(t, err)
	var from, to *redis.Client
	for _, master := range masters {
		if master.Options().Addr == owner.Options().Addr {
			from = master
		} else {
			to = master
		}
	}
	slot := client.ClusterKeySlot(t.Context(), oneSlot).Val()
	move := func(node *redis.Client, how ...any) {
		t.Helper()
		require.NoError(t, node.Do(t.Context(), append([]any{"CLUSTER", "SETSLOT", slot}, how...)...).Err())
	}
	move(to, "IMPORTING", from.Do(t.Context(), "CLUSTER", "MYID").Val())
	move(from, "MIGRATING", to.Do(t.Context(), "CLUSTER", "MYID").Val())
	look()
	move(to, "STABLE")
	move(from, "STABLE")
}

// A failover client that reads from replicas for the service keeps its records on the master, and follows a new
// master.
func TestRedisFailoverClusterClient(t *testing.T) {
	t.Parallel()
	sentinel := servertest.RedisSentinel(t, 1)
	client := awaitReplicas(t, 1, func() *redis.ClusterClient {
		return redis.NewFailoverClusterClient(&redis.FailoverOptions{
			MasterName: servertest.SentinelMaster, SentinelAddrs: sentinel.Addrs(), RouteRandomly: true, DB: 3,
			Password: servertest.RedisPassword(), SentinelPassword: servertest.RedisPassword(), ContextTimeoutEnabled: true,
		})
	})
	replica := testservice.NewRedisClient(t, sentinel.Nodes()[1].Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: 1})
	const n = 20
	for i := range n {
		settleOnce(t, store, testservice.NumberedKey(i))
	}
	require.Len(t, testservice.MustList(t, store).Entries, n)
	require.Empty(t, readsOf(t, []*redis.Client{replica}))
	require.NotContains(t, unsafeSettings(t, client), "cluster_enabled")

	old := sentinel.Nodes()[0]
	require.NoError(t, sentinel.Failover())
	require.NoError(t, sentinel.AwaitFailover(old))
	for i := range n {
		testservice.Until(t, func() bool {
			record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(i), testservice.AttemptFor(time.Hour))
			require.Nil(t, claim, "the operation would run again")
			return err == nil && record.Response != nil
		})
	}
	testservice.Until(t, func() bool {
		_, claim, _ := store.Begin(t.Context(), testservice.NumberedKey(n), testservice.AttemptFor(time.Hour))
		return claim != nil
	})

}

// readsOf returns the reading commands and scripts that the replicas have executed. A master never sends these to a
// replica, because Redis replicates the effects of a script instead of the script.
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
