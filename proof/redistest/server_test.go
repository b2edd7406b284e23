package redistest_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// A server that refuses writes still serves its records: a server without memory, a replica, and a server that has
// lost its replicas.
func TestRedisThatCannotBeWrittenTo(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client, node := testservice.NewRedisClient(t, server.Addr()), testservice.NewRedisClient(t, server.Addr())
	svc := testservice.Setup{Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})}.Guard(t, testservice.Echo)
	small, big := svc.Call("small", "small"), svc.Call("big", testservice.LargeBody)
	set := func(name, value string) func() error {
		return func() error { return node.ConfigSet(t.Context(), name, value).Err() }
	}
	for name, test := range map[string]struct{ begin, end func() error }{
		"no memory":   {set("maxmemory", "1"), set("maxmemory", "0")},
		"no replicas": {set("min-replicas-to-write", "1"), set("min-replicas-to-write", "0")},
		"replica": {
			func() error { return node.ReplicaOf(t.Context(), "127.0.0.1", "1").Err() },
			func() error { return node.ReplicaOf(t.Context(), "NO", "ONE").Err() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, test.begin())
			testservice.RequireReplay(t, small, svc.Call("small", "small"))
			testservice.RequireReplay(t, big, svc.Call("big", testservice.LargeBody))
			testservice.RequireProblem(t, svc.Call(url.PathEscape(name), "new"), http.StatusServiceUnavailable, "store-unavailable")
			require.NoError(t, test.end())
			require.Equal(t, http.StatusCreated, svc.Call(url.PathEscape(name), "new").Status, svc.Journal.Last(t))
		})
	}
}

// A server without free memory refuses new claims, but granted claims can be settled.
func TestRedisWithoutMemory(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	small := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	big := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
	medium := testservice.MustClaim(t, store, testservice.NumberedKey(5), testservice.AttemptFor(time.Hour))
	released := testservice.MustClaim(t, store, testservice.NumberedKey(3), testservice.AttemptFor(time.Hour))
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err()) // one byte

	_, _, err := store.Begin(t.Context(), testservice.NumberedKey(4), testservice.AttemptFor(time.Hour))
	require.Nil(t, testservice.InDoubt(err))
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	require.NoError(t, small.Extend(t.Context(), time.Minute))
	require.NoError(t, small.Complete(t.Context(), testservice.BodyOf(100), time.Hour))
	require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body, 100)
	require.NoError(t, medium.Complete(t.Context(), testservice.BodyOf(7<<10), time.Hour))
	require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(5)).Response.Body, 7<<10)
	require.NoError(t, released.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	testservice.MustClaim(t, store, testservice.NumberedKey(3), testservice.AttemptFor(time.Hour)) // in the released room
	require.NoError(t, big.Complete(t.Context(), testservice.Large(), time.Hour))
	require.Equal(t, &idempotency.Response{Status: http.StatusCreated, Omitted: true},
		testservice.MustRead(t, store, testservice.NumberedKey(2)).Response)
}

// All operations on the keys of a moving slot succeed: claims of first and later attempts are granted, renewed and
// settled, both before and during the move.
func TestRedisSlotOnTheMove(t *testing.T) {
	t.Parallel()
	client, masters := movable(t)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
	finished, running := testservice.NumberedKey(0), idempotency.Key{ID: "running"}
	require.NoError(t, testservice.MustClaim(t, store, finished, testservice.AttemptFor(time.Hour)).Complete(t.Context(), testservice.Large(), time.Hour))
	testservice.MustClaim(t, store, running, testservice.AttemptFor(time.Hour))
	steps := map[string]func(idempotency.Claim) error{
		"extension":        func(c idempotency.Claim) error { return c.Extend(t.Context(), time.Minute) },
		"release":          func(c idempotency.Claim) error { return c.Release(t.Context(), idempotency.Release{TTL: time.Hour}) },
		"completion":       func(c idempotency.Claim) error { return c.Complete(t.Context(), testservice.BodyOf(1), time.Hour) },
		"large completion": func(c idempotency.Claim) error { return c.Complete(t.Context(), testservice.Large(), time.Hour) },
	}
	begin := func(when, step string) idempotency.Claim {
		return testservice.MustClaim(t, store, idempotency.Key{ID: when + " " + step}, testservice.AttemptFor(time.Hour))
	}
	claims := map[string]map[string]idempotency.Claim{"before": {}, "again": {}, "again during": {}, "during": {}}
	for name := range steps {
		for _, again := range []string{"again", "again during"} {
			require.NoError(t, begin(again, name).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}
		claims["before"][name], claims["again"][name] = begin("before", name), begin("again", name)
	}

	duringMove(t, client, masters, func() {
		require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, finished).Response.Body))
		_, claim, err := store.Begin(t.Context(), running, testservice.AttemptFor(time.Hour))
		require.NoError(t, err)
		require.Nil(t, claim)
		for name, step := range steps {
			claims["during"][name], claims["again during"][name] = begin("during", name), begin("again during", name)
			for when := range claims {
				require.NoError(t, step(claims[when][name]), "%s %s", when, name)
			}
		}
		for when := range claims {
			read := testservice.MustRead(t, store, idempotency.Key{ID: when + " large completion"})
			require.Equal(t, testservice.LargeBody, string(read.Response.Body), when)
		}
	})
}

// movable returns a client of a Cluster, and the clients of the Cluster's masters.
func movable(t *testing.T) (client *redis.ClusterClient, masters []*redis.Client) {
	t.Helper()
	servers := servertest.RedisCluster(t)
	for _, server := range servers {
		masters = append(masters, testservice.NewRedisClient(t, server.Addr()))
	}
	return testservice.NewClusterClient(t, servers), masters
}

// However many requests wait for one key, Redis gets one command from each request, and later only the polls of a
// single request.
func TestRedisIsSparedByWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 1000
	server := servertest.Redis(t)
	attempt := testservice.AttemptFor(time.Hour)
	attempt.Fingerprint = sha256.Sum256(nil)
	owner := testservice.MustClaim(t, idempotency.NewRedisStore(testservice.NewRedisClient(t, server.Addr()), idempotency.RedisOptions{}),
		testservice.NumberedKey(1), attempt)
	client := testservice.NewRedisClient(t, server.Addr())
	runner, err := idempotency.NewRunner(idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
		idempotency.RunnerOptions{Wait: time.Minute})
	require.NoError(t, err)
	asked := func() (n int) {
		stats := client.Info(t.Context(), "commandstats").Val()
		_, calls, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
		_, _ = fmt.Sscan(calls, &n)
		return n
	}

	began, before := time.Now(), asked()
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			resp, replayed, err := runner.Do(t.Context(), testservice.NumberedKey(1), nil, nil)
			if err != nil || !replayed || string(resp.Body) != "done" {
				t.Errorf("got %q, replayed %t, %v", resp.Body, replayed, err)
			}
		})
	}
	require.Eventually(t, func() bool {
		return asked()-before > waiters && time.Since(began) > 2*time.Second
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, owner.Complete(t.Context(), idempotency.Response{Status: 200, Body: []byte("done")}, time.Hour))
	wg.Wait()
	polls := asked() - before - waiters
	require.Less(t, polls, 10+int(time.Since(began)/(200*time.Millisecond)))
}

// The records of a moving slot are shown, are listed once, and can be forgotten.
func TestRedisInspectsSlotOnTheMove(t *testing.T) {
	t.Parallel()
	client, masters := movable(t)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
	const n = 5
	for i := range n {
		testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(i))
	}
	duringMove(t, client, masters, func() {
		testservice.MustComplete(t, store, testservice.NumberedKey(n), testservice.BodyOf(n)) // written to the destination of the slot
		require.Len(t, testservice.MustList(t, store).Entries, n+1)
		for i := range n + 1 {
			entry := testservice.MustInspect(t, store, testservice.NumberedKey(i))
			require.Len(t, entry.Response.Body, i)
			require.NoError(t, store.Forget(t.Context(), entry))
		}
		require.Empty(t, testservice.MustList(t, store).Entries)
	})
}
