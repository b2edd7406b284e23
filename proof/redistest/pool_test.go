package redistest_test

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
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// smallPool limits a client to two connections. A request waits for a connection until the end of its context.
func smallPool(o *redis.Options) { o.PoolSize, o.PoolTimeout = 2, time.Minute }

// givesUp makes the client's wait for a connection end before the context.
func givesUp(o *redis.Options) { o.PoolTimeout = 50 * time.Millisecond }

// smallPools are clients with two connections to the server of a key.
var smallPools = map[string]func(*testing.T) redis.Cmdable{
	"client that waits": func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr(), smallPool)
	},
	"client that gives up": func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp)
	},
	"client that tries again": func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp, testservice.WithContextTimeout)
	},
	"client with deadlines": func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr(), smallPool, testservice.WithContextTimeout)
	},
	"client with a limit": func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr(), func(o *redis.Options) { o.MaxActiveConns = 2 })
	},
	"client that hides its pool": func(t *testing.T) redis.Cmdable {
		once := func(o *redis.Options) { o.MaxRetries = -1 }
		return hiddenPool{testservice.NewRedisClient(t, servertest.Redis(t).Addr(), smallPool, givesUp, once)}
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

// occupy takes all connections of a client to the server of the tested slot, until the call of free.
func occupy(t *testing.T, client redis.Cmdable) (free func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			// Another user may still have a connection, and some clients do not wait for it.
			for ctx.Err() == nil && client.BLPop(ctx, 0, fmt.Sprint(oneSlot, "list", i)).Err() != nil {
				time.Sleep(time.Millisecond)
			}
		})
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
	other := testservice.NewRedisClient(t, node.(*redis.Client).Options().Addr)
	testservice.Until(t, func() bool { return strings.Contains(other.Info(t.Context(), "clients").Val(), "blocked_clients:2") })
	return sync.OnceFunc(func() {
		for i := range 2 {
			require.NoError(t, other.RPush(t.Context(), fmt.Sprint(oneSlot, "list", i), "free").Err())
		}
		wg.Wait()
		cancel()
	})
}

// A handler must not run unprotected because the pool is empty: any user who sends enough requests can empty the
// pool.
func TestRedisPoolIsEmpty(t *testing.T) {
	t.Parallel()
	for name, newClient := range smallPools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			opts := idempotency.Options{FailOpen: true, StoreTimeout: time.Second}
			svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
			testservice.Until(t, func() bool { return svc.Call("warm", "").Status == http.StatusCreated })
			runs := svc.Runs.Load()
			free := occupy(t, client)
			defer free()

			testservice.RequireProblem(t, svc.Call("key", ""), http.StatusServiceUnavailable, "store-unavailable")
			require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrStoreBusy)
			require.Equal(t, runs, svc.Runs.Load())
			free()
			testservice.Until(t, func() bool { return svc.Call("key", "").Status == http.StatusCreated })
		})
	}
}

// A claim that was never sent needs no release, because the release would wait for a connection, too.
func TestRedisPoolIsEmptyBeforeAClaim(t *testing.T) {
	t.Parallel()
	for name, newClient := range smallPools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			testservice.Until(t, func() bool { // loads the script
				_, claim, _ := store.Begin(t.Context(), testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
				return claim != nil
			})
			defer occupy(t, client)()
			testservice.Until(t, func() bool { // with a hidden pool, the store cannot tell why the deadline has cut off a try
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := store.Begin(ctx, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
				busy := errors.Is(err, idempotency.ErrStoreBusy)
				require.True(t, testservice.InDoubt(err) == nil || !busy)
				return busy
			})
		})
	}
}

// A user who empties the pool does not make the process forget the answers of other users.
func TestRedisPoolIsEmptyAtTheCompletion(t *testing.T) {
	t.Parallel()
	const hostile = 1100
	for _, name := range []string{"client with deadlines", "client that tries again", "cluster client"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := smallPools[name](t)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: oneSlot})
			var free func()
			var svc *testservice.Service
			svc = testservice.Setup{Store: store, Opts: idempotency.Options{StoreTimeout: time.Second}}.Guard(t,
				func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Idempotency-Key") == "honest" {
						free = occupy(t, client)
						var wg sync.WaitGroup
						for i := range hostile {
							wg.Go(func() { svc.Call(fmt.Sprint(i), "") })
						}
						wg.Wait()
					}
					testservice.Echo(w, r)
				})
			testservice.Until(t, func() bool { return svc.Call("warm", "").Status == http.StatusCreated })
			runs := svc.Runs.Load()
			first := svc.Call("honest", "")
			require.Equal(t, http.StatusCreated, first.Status)
			require.Equal(t, idempotency.OutcomeUnrecorded, svc.Journal.Last(t).Outcome)
			free()
			var second testservice.Answer
			testservice.Until(t, func() bool {
				second = svc.Call("honest", "")
				return second.Status == http.StatusCreated
			})
			testservice.RequireReplay(t, first, second)
			require.Equal(t, runs+1, svc.Runs.Load())
		})
	}
}

// faults is a hook that injects one fault into each of the first claims. The last fault applies to all later
// claims.
type faults struct {
	testservice.BeforeEach
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

// A claim that may have been sent can be released, whatever the last try has found. A server that has failed a
// request does not count as merely busy.
func TestRedisPoolIsEmptyAfterAnotherTry(t *testing.T) {
	t.Parallel()
	type fault = func(send func() error) error
	var (
		cut  fault = func(func() error) error { return errCut }
		busy fault = func(func() error) error { return redis.ErrPoolTimeout }
		lost fault = func(send func() error) error { // the client has sent the claim, and retries by itself
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
			client := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: name})
			testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour)) // opens a connection
			client.AddHook(faults{func(string) {}, &test.faults})
			_, _, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.ErrorIs(t, err, test.is)
			require.Equal(t, test.is != errCut, errors.Is(err, idempotency.ErrStoreBusy))
			require.Equal(t, test.mayExist, testservice.InDoubt(err) != nil)
		})
	}
}

// An unreachable server counts as down, however many requests wait for a connection.
func TestRedisCannotBeReached(t *testing.T) {
	t.Parallel()
	const requests = 10
	for name, edit := range map[string]func(*redis.Options){
		"client that waits": func(*redis.Options) {}, "client that gives up": givesUp, "client with deadlines": testservice.WithContextTimeout,
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
			client := testservice.NewRedisClient(t, "127.0.0.1:1", smallPool, silent, edit)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			opts := idempotency.Options{FailOpen: true, StoreTimeout: time.Second}
			svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() { svc.Call(fmt.Sprint(i), "") })
			}
			wg.Wait()
			require.EqualValues(t, requests, svc.Runs.Load())
		})
	}
}

// A hanging server counts as down for requests with a connection. Requests that wait for a connection cannot know.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := testservice.NewRedisClient(t, server.Addr(), smallPool, func(o *redis.Options) { o.ReadTimeout = time.Minute })
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	service := func(timeout time.Duration) *testservice.Service {
		opts := idempotency.Options{FailOpen: true, StoreTimeout: timeout}
		return testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
	}
	patient, hasty := service(10*time.Second), service(500*time.Millisecond)
	var wg sync.WaitGroup
	release := occupy(t, client) // opens two connections
	release()
	require.NoError(t, server.Pause())
	defer server.Resume()
	for i := range 2 {
		wg.Go(func() { patient.Call(fmt.Sprint(i), "") })
	}
	testservice.Until(t, func() bool { return client.PoolStats().IdleConns == 0 })
	testservice.RequireProblem(t, hasty.Call("key", ""), http.StatusServiceUnavailable, "store-unavailable")
	require.ErrorIs(t, hasty.Journal.Last(t).Err, idempotency.ErrStoreBusy)
	require.Zero(t, hasty.Runs.Load())
	wg.Wait()
	require.EqualValues(t, 2, patient.Runs.Load())
}

// farAway delays each reply of a server by 5 ms.
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

// With far more requests than the connections can serve, the requests that get a connection have no time left, and
// the client closes each connection after a timeout. Even so, the server does not count as down.
func TestRedisPoolIsCrowded(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]func(*redis.Options){
		"client":                {},
		"client with deadlines": {testservice.WithContextTimeout},
		"client that gives up":  {givesUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			few := func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 4, time.Minute }
			client := testservice.NewRedisClient(t, servertest.Redis(t).Addr(), append([]func(*redis.Options){farAway, few}, edits...)...)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			opts := idempotency.Options{FailOpen: true, Lease: 3 * time.Second, StoreTimeout: 500 * time.Millisecond}
			svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Echo)
			testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour)) // the server is up
			var wg sync.WaitGroup
			for i := range 1500 {
				wg.Go(func() {
					for j := range 3 {
						svc.Call(fmt.Sprintf("%d-%d", i, j), "")
					}
				})
			}
			wg.Wait()
			outcomes := svc.Journal.Outcomes()
			require.Contains(t, outcomes, idempotency.OutcomeUnavailable, "there was room for all")
			require.NotContains(t, outcomes, idempotency.OutcomeUnprotected)
		})
	}
}
