package redistest_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// newReplica starts a replica of master, and waits until the replica has all data of master.
func newReplica(t *testing.T, master *servertest.Server, args ...string) *servertest.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	replica := servertest.Redis(t, append([]string{"--replicaof", host, port}, args...)...)
	client := testservice.NewRedisClient(t, master.Addr())
	testservice.Until(t, func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "state=online")
	})
	return replica
}

// hurry bounds how long a completion waits for replicas that never acknowledge.
const hurry = 500 * time.Millisecond

func inAHurry(o *redis.Options) { o.ReadTimeout = hurry }

// answersWithReplica are answers that the store sends to Redis in different ways.
var answersWithReplica = map[string]idempotency.Response{"small": testservice.BodyOf(1), "large": testservice.Large()}

// An answer counts as stored once the replica has the answer. Until then, a repeated Complete fails as well.
func TestRedisReplicas(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t)
	replica := newReplica(t, master)
	client, copied := testservice.NewRedisClient(t, master.Addr(), inAHurry), testservice.NewRedisClient(t, replica.Addr())
	node := testservice.NewRedisClient(t, master.Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: 1})
	for name, resp := range answersWithReplica {
		t.Run(name, func(t *testing.T) {
			key := idempotency.Key{ID: name}
			claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
			require.NoError(t, replica.Pause())
			defer replica.Resume()
			for range 2 { // a repetition fails as well, even on a new connection
				require.ErrorContains(t, claim.Complete(t.Context(), resp, time.Hour), "too few replicas")
				require.NoError(t, node.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
			}
			require.Equal(t, &resp, testservice.MustRead(t, store, key).Response, "the master has it")
			replica.Resume()
			testservice.Until(t, func() bool { return claim.Complete(t.Context(), resp, time.Hour) == nil })
			require.ElementsMatch(t, testservice.RedisKeys(t, client, ""), testservice.RedisKeys(t, copied, ""), "the replica has it, too")
		})
	}
}

// The client does not wait for a lost replica.
func TestRedisReplicaIsGone(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t)
	replica := newReplica(t, master)
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, master.Addr()), idempotency.RedisOptions{Replicas: 1})
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{StoreTimeout: 3 * time.Second}}.Guard(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Call("before", "body").Status)
	require.Equal(t, idempotency.OutcomeExecuted, svc.Journal.Last(t).Outcome)
	require.NoError(t, replica.Pause())
	first := svc.Call("key", "body")
	require.Equal(t, http.StatusCreated, first.Status)
	require.Equal(t, idempotency.OutcomeUnrecorded, svc.Journal.Last(t).Outcome)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	replica.Resume()
	testservice.Until(t, func() bool { return svc.Journal.Last(t).Outcome == idempotency.OutcomeRecorded })
}

// WAIT goes to the server of the key, on the connection that sent the answer.
func TestRedisReplicasOfACluster(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisClusterWithReplicas(t)
	masters := cluster.Nodes()[:3]
	replicas := make(map[string]*servertest.Server)
	for i, master := range masters {
		replicas[master.Addr()] = cluster.Nodes()[3+i]
	}
	client := testservice.NewClusterClient(t, masters)
	for name, resp := range answersWithReplica {
		for i := range 20 { // i is the slot
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: 1})
			key := idempotency.Key{ID: fmt.Sprint(name, i)}
			claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
			require.Equal(t, &resp, testservice.MustRead(t, store, key).Response)
		}
	}
	owner, err := client.MasterForKey(t.Context(), oneSlot)
	require.NoError(t, err)
	require.NoError(t, replicas[owner.Options().Addr].Pause())
	hasty := testservice.NewClusterClient(t, masters)
	hasty.Options().ReadTimeout = hurry // only for acknowledgements that never come; others may be slow on a slow machine
	store := idempotency.NewRedisStore(hasty, idempotency.RedisOptions{Prefix: oneSlot, Replicas: 1})
	for name, resp := range answersWithReplica {
		for i := range 3 { // WAIT would succeed on any other server, because the other servers have their replicas
			claim := testservice.MustClaim(t, store, idempotency.Key{ID: fmt.Sprint(name, i)}, testservice.AttemptFor(time.Hour))
			require.ErrorContains(t, claim.Complete(t.Context(), resp, time.Hour), "too few replicas")
		}
	}
}

func TestRedisReplicasConform(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t)
	newReplica(t, master)
	client := testservice.NewRedisClient(t, master.Addr())
	idempotencytest.Run(t, func(*testing.T) idempotency.Store {
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: 1})
	})
}

// A client that cannot choose the connection of WAIT is refused.
func TestRedisReplicasOfOtherClients(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	pipeliner, err := client.AutoPipeline()
	require.NoError(t, err)
	for name, test := range map[string]struct {
		client   redis.Cmdable
		replicas int
		valid    bool
	}{
		"client":                {client, 1, true},
		"fewer than none":       {client, -1, false},
		"pipelining client":     {pipeliner, 1, false},
		"typed commands":        {struct{ redis.Cmdable }{client}, 1, false},
		"typed commands, none":  {struct{ redis.Cmdable }{client}, 0, true},
		"fewer, typed commands": {struct{ redis.Cmdable }{client}, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := idempotency.NewRedisStore(test.client, idempotency.RedisOptions{Replicas: test.replicas})
			_, claim, err := store.Begin(t.Context(), idempotency.Key{ID: name}, testservice.AttemptFor(time.Hour))
			if test.valid {
				require.NoError(t, err)
				require.NotNil(t, claim)
				return
			}
			require.ErrorContains(t, err, "Replicas")
			require.Nil(t, claim)
		})
	}
}

// Check reports the settings that would keep answers from counting as stored.
func TestRedisReplicasAreChecked(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always"}
	master := servertest.Redis(t, safe...)
	client := testservice.NewRedisClient(t, master.Addr())
	findings := func(client redis.Cmdable, replicas int) []string {
		return unsafeWith(t, client, idempotency.RedisOptions{Replicas: replicas})
	}
	require.Empty(t, findings(client, 0))
	require.Equal(t, []string{"connected_slaves"}, findings(client, 1))
	newReplica(t, master, safe...)
	require.Empty(t, findings(client, 1), "nor does it ask for min-replicas-to-write")
	require.Equal(t, []string{"connected_slaves"}, findings(client, 2))

	require.NoError(t, client.ACLSetUser(t.Context(), "app", "on", ">secret", "~*", "+@all", "-wait").Err())
	app := testservice.NewRedisClient(t, master.Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
	require.Equal(t, []string{"WAIT"}, findings(app, 1))
}

// While a replica is lost, completions leave a part of the pool to replays.
func TestRedisReplicasLeaveConnections(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t)
	replica := newReplica(t, master)
	client := testservice.NewRedisClient(t, master.Addr(), func(o *redis.Options) { o.PoolSize = 4 }, testservice.WithContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: 1})
	testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(1))
	require.NoError(t, replica.Pause())
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i := range 32 {
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(i+1), testservice.AttemptFor(time.Hour))
		waiting.Go(func() {
			for ctx.Err() == nil { // as the background does, but without a pause
				_ = claim.Complete(ctx, testservice.BodyOf(1), time.Hour)
			}
		})
	}
	direct := testservice.NewRedisClient(t, master.Addr())
	waits := func() int { return strings.Count(direct.ClientList(t.Context()).Val(), "cmd=wait ") }
	testservice.Until(t, func() bool { return waits() == 2 }) // half of the pool
	for range 50 {
		_, _, err := store.Begin(t.Context(), testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
		require.NoError(t, err)
		require.LessOrEqual(t, waits(), 2)
	}
}
