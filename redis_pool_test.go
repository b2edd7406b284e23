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
	for name, newClient := range smallPools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			until(t, func() bool { // loads the script
				_, claim, _ := store.Begin(t.Context(), numberedKey(0), attemptFor(time.Hour))
				return claim != nil
			})
			defer occupy(t, client)()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, claim, err := store.Begin(ctx, numberedKey(1), attemptFor(time.Hour))
			require.ErrorIs(t, err, idempotency.ErrStoreBusy)
			require.Nil(t, claim)
		})
	}
}

// Who empties the pool does not make the process forget an answer that others are to get.
func TestRedisPoolIsEmptyAtTheCompletion(t *testing.T) {
	t.Parallel()
	const hostile = 1100
	for _, name := range []string{"client with deadlines", "client that tries again", "cluster client"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := smallPools[name](t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			var free func()
			var svc *service
			svc = setup{store: store, opts: idempotency.Options{StoreTimeout: time.Second}}.guard(t,
				func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Idempotency-Key") == "honest" {
						free = occupy(t, client)
						var wg sync.WaitGroup
						for i := range hostile {
							wg.Go(func() { svc.call(fmt.Sprint(i), "") })
						}
						wg.Wait()
					}
					echo(w, r)
				})
			until(t, func() bool { return svc.call("warm", "").status == http.StatusCreated })
			runs := svc.runs.Load()
			first := svc.call("honest", "")
			require.Equal(t, http.StatusCreated, first.status)
			require.Equal(t, idempotency.OutcomeUnrecorded, svc.journal.last(t).Outcome)
			free()
			var second answer
			until(t, func() bool {
				second = svc.call("honest", "")
				return second.status == http.StatusCreated
			})
			requireReplay(t, first, second)
			require.Equal(t, runs+1, svc.runs.Load())
		})
	}
}

// faults is a hook that injects a fault into each of the first claims; the last one goes on for all others.
type faults struct {
	beforeEach
	next *[]func(send func() error) error
}

func (f faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "set" {
			return next(ctx, cmd)
		}
		fault := (*f.next)[0]
		if len(*f.next) > 1 {
			*f.next = (*f.next)[1:]
		}
		return fault(func() error { return next(ctx, cmd) })
	}
}

// A claim that may have been sent can be released, whatever the last try found. A server that has let a request down is
// not merely busy.
func TestRedisPoolIsEmptyAfterAnotherTry(t *testing.T) {
	t.Parallel()
	type fault = func(send func() error) error
	var (
		cut  fault = func(func() error) error { return errCut }
		busy fault = func(func() error) error { return redis.ErrPoolTimeout }
		lost fault = func(send func() error) error { // the client has tried by itself, and tries again
			_ = send()
			return redis.ErrPoolTimeout
		}
	)
	server := servertest.Redis(t)
	for name, test := range map[string]struct {
		faults   []fault
		is       error
		mayExist bool
	}{
		"cut":                 {[]fault{cut, busy}, errCut, true},
		"cut in between":      {[]fault{busy, cut, busy}, errCut, true},
		"sent by the client":  {[]fault{lost, busy}, idempotency.ErrStoreBusy, true},
		"busy from the start": {[]fault{busy}, idempotency.ErrStoreBusy, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := newRedisClient(t, server.Addr(), withContextTimeout)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: name})
			mustClaim(t, store, numberedKey(0), attemptFor(time.Hour)) // so that there is a connection
			client.AddHook(faults{func(string) {}, &test.faults})
			_, claim, err := store.Begin(t.Context(), numberedKey(1), attemptFor(time.Hour))
			require.ErrorIs(t, err, test.is)
			require.Equal(t, test.is != errCut, errors.Is(err, idempotency.ErrStoreBusy))
			require.Equal(t, test.mayExist, claim != nil)
		})
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
			opts := idempotency.Options{FailOpen: true, StoreTimeout: time.Second}
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

// farAway lets each reply of a server take 5 ms more.
func farAway(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return distantConn{conn}, err
	}
}

type distantConn struct{ net.Conn }

func (c distantConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(5 * time.Millisecond)
	return n, err
}

// When far more requests come than the connections can serve, those that get one have no time left, and the client closes
// the connections on which they time out. The server is not down even so.
func TestRedisPoolIsCrowded(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]func(*redis.Options){
		"client":                {},
		"client with deadlines": {withContextTimeout},
		"client that gives up":  {givesUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			few := func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 4, time.Minute }
			client := newRedisClient(t, servertest.Redis(t).Addr(), append([]func(*redis.Options){farAway, few}, edits...)...)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			opts := idempotency.Options{FailOpen: true, Lease: 3 * time.Second, StoreTimeout: 500 * time.Millisecond}
			svc := setup{store: store, opts: opts}.guard(t, echo)
			mustClaim(t, store, numberedKey(0), attemptFor(time.Hour)) // the server is up
			var wg sync.WaitGroup
			for i := range 1500 {
				wg.Go(func() {
					for j := range 3 {
						svc.call(fmt.Sprintf("%d-%d", i, j), "")
					}
				})
			}
			wg.Wait()
			outcomes := svc.journal.outcomes()
			require.Contains(t, outcomes, idempotency.OutcomeUnavailable, "there was room for all")
			require.NotContains(t, outcomes, idempotency.OutcomeUnprotected)
		})
	}
}
