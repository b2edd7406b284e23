package idempotency_test

import (
	"context"
	"errors"
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
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// smallPool gives a client two connections. A request waits for one of them until its context ends.
func smallPool(o *redis.Options) { o.PoolSize, o.PoolTimeout = 2, time.Minute }

// givesUp lets the client give up first.
func givesUp(o *redis.Options) { o.PoolTimeout = 50 * time.Millisecond }

// smallPools are clients of which each has two connections to the server of a key.
var smallPools = map[string]func(*testing.T) redis.Cmdable{
	"client that waits": func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr(), smallPool)
	},
	"client that gives up": func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp)
	},
	"client that tries again": func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp, withContextTimeout)
	},
	"client with deadlines": func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr(), smallPool, withContextTimeout)
	},
	"client with a limit": func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr(), func(o *redis.Options) { o.MaxActiveConns = 2 })
	},
	"client that hides its pool": func(t *testing.T) redis.Cmdable {
		once := func(o *redis.Options) { o.MaxRetries = -1 }
		return hiddenPool{newRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp, once)}
	},
	"cluster client": func(t *testing.T) redis.Cmdable {
		return smallClusterClient(t, servertest.RedisCluster(t), time.Minute)
	},
	"cluster client that gives up": func(t *testing.T) redis.Cmdable {
		return smallClusterClient(t, servertest.RedisCluster(t), 50*time.Millisecond)
	},
}

// hiddenPool is a client without PoolStats.
type hiddenPool struct{ redis.Cmdable }

func (c hiddenPool) Process(ctx context.Context, cmd redis.Cmder) error {
	return c.Cmdable.(*redis.Client).Process(ctx, cmd)
}

func smallClusterClient(t *testing.T, masters []*servertest.Server, poolTimeout time.Duration) *redis.ClusterClient {
	opts := &redis.ClusterOptions{
		Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, PoolSize: 2, PoolTimeout: poolTimeout,
	}
	for _, master := range masters {
		opts.Addrs = append(opts.Addrs, master.Addr())
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

const oneSlot = "{one slot}:"

// occupy takes the connections of a client to the server of that slot, until free is called.
func occupy(t *testing.T, client redis.Cmdable) (free func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { _ = client.BLPop(ctx, 0, fmt.Sprint(oneSlot, "list", i)).Err() })
	}
	node := client
	switch c := client.(type) {
	case *redis.ClusterClient:
		master, err := c.MasterForKey(t.Context(), oneSlot)
		require.NoError(t, err)
		node = master
	case hiddenPool:
		node = c.Cmdable
	}
	other := newRedisClient(t, node.(*redis.Client).Options().Addr)
	until(t, func() bool { return strings.Contains(other.Info(t.Context(), "clients").Val(), "blocked_clients:2") })
	return sync.OnceFunc(func() {
		for i := range 2 {
			require.NoError(t, other.RPush(t.Context(), fmt.Sprint(oneSlot, "list", i), "free").Err())
		}
		wg.Wait()
		cancel()
	})
}

// An empty pool is no reason to run a handler without protection: whoever sends enough requests can empty it.
func TestRedisPoolIsEmpty(t *testing.T) {
	t.Parallel()
	for name, newClient := range smallPools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			opts := idempotency.Options{FailOpen: true, StoreTimeout: time.Second}
			svc := setup{store: store, opts: opts}.guard(t, echo)
			until(t, func() bool { return svc.call("warm", "").status == http.StatusCreated })
			runs := svc.runs.Load()
			free := occupy(t, client)
			defer free()

			requireProblem(t, svc.call("key", ""), http.StatusServiceUnavailable, "store-unavailable")
			require.ErrorIs(t, svc.journal.last(t).Err, idempotency.ErrStoreBusy)
			require.Equal(t, runs, svc.runs.Load())
			free()
			until(t, func() bool { return svc.call("key", "").status == http.StatusCreated })
		})
	}
}

// A claim that was never sent needs no release, which would wait for a connection, too.
func TestRedisPoolIsEmptyBeforeAClaim(t *testing.T) {
	t.Parallel()
	for name, granted := range map[string]bool{
		"client that waits": false, "client that gives up": false, "client that tries again": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := smallPools[name](t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			mustClaim(t, store, numberedKey(0), attemptFor(time.Hour)) // loads the script
			defer occupy(t, client)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, claim, err := store.Begin(ctx, numberedKey(1), attemptFor(time.Hour))
			require.ErrorIs(t, err, idempotency.ErrStoreBusy)
			require.Equal(t, granted, claim != nil, "may have been granted")
		})
	}
}

// cutThenBusy is a hook that cuts the connection of the first EVALSHA, and finds no connection for the next ones.
type cutThenBusy struct {
	beforeEach
	cut *bool
}

func (c cutThenBusy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch {
		case cmd.Name() != "evalsha":
			return next(ctx, cmd)
		case *c.cut:
			return redis.ErrPoolTimeout
		}
		*c.cut = true
		return errCut
	}
}

// A server that has let a request down is not merely busy.
func TestRedisPoolIsEmptyAfterACut(t *testing.T) {
	t.Parallel()
	client := newRedisClient(t, servertest.Redis(t).Addr(), withContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	mustClaim(t, store, numberedKey(0), attemptFor(time.Hour)) // so that there is a connection
	client.AddHook(cutThenBusy{func(string) {}, new(bool)})
	for _, is := range []error{errCut, idempotency.ErrStoreBusy} {
		_, claim, err := store.Begin(t.Context(), numberedKey(1), attemptFor(time.Hour))
		require.ErrorIs(t, err, is)
		require.Equal(t, is != errCut, errors.Is(err, idempotency.ErrStoreBusy))
		require.NotNil(t, claim, "the client may have sent it")
	}
}

// A server that cannot be reached is down, however many requests wait for a connection to it.
func TestRedisCannotBeReached(t *testing.T) {
	t.Parallel()
	const requests = 10
	for name, edit := range map[string]func(*redis.Options){
		"client that waits": func(*redis.Options) {}, "client that gives up": givesUp, "client with deadlines": withContextTimeout,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silent := func(o *redis.Options) {
				o.DialerRetries = 1
				o.Dialer = func(context.Context, string, string) (net.Conn, error) {
					<-t.Context().Done()
					return nil, errCut
				}
			}
			client := newRedisClient(t, "127.0.0.1:1", smallPool, silent, edit)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			opts := idempotency.Options{FailOpen: true, StoreTimeout: 500 * time.Millisecond}
			svc := setup{store: store, opts: opts}.guard(t, echo)
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() { svc.call(fmt.Sprint(i), "") })
			}
			wg.Wait()
			require.EqualValues(t, requests, svc.runs.Load())
		})
	}
}

// A server that hangs is down for those who have a connection to it. Those who wait for one cannot know.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := newRedisClient(t, server.Addr(), smallPool, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	service := func(timeout time.Duration) *service {
		opts := idempotency.Options{FailOpen: true, StoreTimeout: timeout}
		return setup{store: store, opts: opts}.guard(t, echo)
	}
	patient, hasty := service(10*time.Second), service(500*time.Millisecond)
	var wg sync.WaitGroup
	release := occupy(t, client) // so that there are two connections
	release()
	require.NoError(t, server.Pause())
	defer server.Resume()
	for i := range 2 {
		wg.Go(func() { patient.call(fmt.Sprint(i), "") })
	}
	until(t, func() bool { return client.PoolStats().IdleConns == 0 })
	requireProblem(t, hasty.call("key", ""), http.StatusServiceUnavailable, "store-unavailable")
	require.ErrorIs(t, hasty.journal.last(t).Err, idempotency.ErrStoreBusy)
	require.Zero(t, hasty.runs.Load())
	wg.Wait()
	require.EqualValues(t, 2, patient.runs.Load())
}
