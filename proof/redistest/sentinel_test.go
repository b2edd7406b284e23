package redistest_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// newFailoverClient returns a client of the master that the sentinels name.
func newFailoverClient(t testing.TB, sentinel *servertest.Sentinel) *redis.Client {
	t.Helper()
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: servertest.SentinelMaster, SentinelAddrs: sentinel.Addrs(),
		Password: servertest.RedisPassword(), SentinelPassword: servertest.RedisPassword(),
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// replicate waits until the given number of replicas have everything that the master has acknowledged so far.
func replicate(ctx context.Context, client *redis.Client, replicas int) error {
	conn := client.Conn() // WAIT covers only the writes of its own connection, but replicas receive all writes in order
	defer conn.Close()
	if err := conn.Set(ctx, "barrier", "", time.Minute).Err(); err != nil {
		return err
	}
	acknowledged, err := conn.Wait(ctx, replicas, 10*time.Second).Result()
	if err == nil && int(acknowledged) < replicas {
		err = fmt.Errorf("%d of %d replicas have it", acknowledged, replicas)
	}
	return err
}

// failover is a way to replace a master.
type failover func(t *testing.T, sentinel *servertest.Sentinel, master *servertest.Server)

var failoversBy = map[string]failover{
	"crash": func(_ *testing.T, _ *servertest.Sentinel, master *servertest.Server) { master.Crash() },
	"command": func(t *testing.T, sentinel *servertest.Sentinel, _ *servertest.Server) {
		require.NoError(t, sentinel.Failover())
	},
}

// await makes a replica the master, and waits until the client uses the new master.
func (by failover) await(t *testing.T, sentinel *servertest.Sentinel, client *redis.Client) {
	t.Helper()
	old, err := sentinel.Master()
	require.NoError(t, err)
	by(t, sentinel, old)
	require.NoError(t, sentinel.AwaitFailover(old))
	master, err := sentinel.Master()
	require.NoError(t, err)
	testservice.Until(t, func() bool {
		return strings.HasSuffix(master.Addr(), ":"+client.ConfigGet(t.Context(), "port").Val()["port"])
	})
}

// The replica's records survive a failover: completed operations and running operations.
func TestRedisSentinelFailsOver(t *testing.T) {
	t.Parallel()
	for name, by := range failoversBy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sentinel := servertest.RedisSentinel(t, 1)
			client := newFailoverClient(t, sentinel)
			svc := testservice.Setup{Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})}.Guard(t,
				func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Idempotency-Key") == "during" {
						require.NoError(t, replicate(t.Context(), client, 1))
						by.await(t, sentinel, client)
					}
					testservice.Echo(w, r)
				})
			before := svc.Call("before", testservice.LargeBody)
			during := svc.Call("during", "body")
			require.Equal(t, http.StatusCreated, during.Status, during.Body)
			testservice.RequireReplay(t, during, svc.Call("during", "body"))
			testservice.RequireReplay(t, before, svc.Call("before", testservice.LargeBody))
			after := svc.Call("after", "body")
			require.Equal(t, http.StatusCreated, after.Status, after.Body)
			testservice.RequireReplay(t, after, svc.Call("after", "body"))
			require.EqualValues(t, 3, svc.Runs.Load())
			require.Equal(t, []idempotency.Outcome{
				"executed", "executed", "replayed", "replayed", "executed", "replayed",
			}, svc.Journal.Outcomes())
		})
	}
}

// A client gets its answer although the master has crashed and the answer cannot be stored. The answer is stored
// once a new master exists. Until then the operation is not executed again.
func TestRedisSentinelSettlesLater(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sentinel := servertest.RedisSentinel(t, 1)
			client := newFailoverClient(t, sentinel)
			require.NoError(t, client.Ping(t.Context()).Err()) // the search for the master may take longer than StoreTimeout
			svc := testservice.Setup{
				Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
				Opts:  idempotency.Options{StoreTimeout: time.Second},
			}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, replicate(t.Context(), client, 1))
				sentinel.Nodes()[0].Crash()
				testservice.Echo(w, r)
			})
			first := svc.Call("key", body)
			require.Equal(t, http.StatusCreated, first.Status, first.Body)
			require.Equal(t, []idempotency.Outcome{"unrecorded"}, svc.Journal.Outcomes())
			var retried testservice.Answer
			testservice.Until(t, func() bool {
				retried = svc.Call("key", body)
				return retried.Replayed()
			})
			testservice.RequireReplay(t, first, retried)
			require.EqualValues(t, 1, svc.Runs.Load())
			testservice.Until(t, func() bool { return slices.Contains(svc.Journal.Outcomes(), "recorded") })
		})
	}
}

// A client of Sentinel inspects, lists and forgets records on the master.
func TestRedisInspectsThroughSentinel(t *testing.T) {
	t.Parallel()
	client := newFailoverClient(t, servertest.RedisSentinel(t, 1))
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.Large())
	require.Len(t, testservice.MustList(t, store).Entries, 1)
	require.NoError(t, store.Forget(t.Context(), testservice.MustInspect(t, store, testservice.NumberedKey(0))))
	require.Empty(t, testservice.MustList(t, store).Entries)
}
