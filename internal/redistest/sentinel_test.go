package redistest_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

var failovers = flag.Int("failovers", 0, "how often each row of TestRedisSentinelUnderLoad fails over; 0: once, in few")

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

// replicate waits until so many replicas have everything that the master has answered so far.
func replicate(ctx context.Context, client *redis.Client, replicas int) error {
	conn := client.Conn() // WAIT knows the writes of its own connection only, and replicas take all in order
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

// failover is a way to end the time of a master.
type failover func(t *testing.T, sentinel *servertest.Sentinel, master *servertest.Server)

var failoversBy = map[string]failover{
	"crash": func(_ *testing.T, _ *servertest.Sentinel, master *servertest.Server) { master.Crash() },
	"command": func(t *testing.T, sentinel *servertest.Sentinel, _ *servertest.Server) {
		require.NoError(t, sentinel.Failover())
	},
}

// await has a replica be the master, and waits until the client asks that one.
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

// What the replica has survives a failover: what was done, and what is being done.
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

// A client whose answer cannot be stored, because the master has just crashed, gets it nevertheless. It is stored when
// there is another master. Until then nobody runs the operation again.
func TestRedisSentinelSettlesLater(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sentinel := servertest.RedisSentinel(t, 1)
			client := newFailoverClient(t, sentinel)
			require.NoError(t, client.Ping(t.Context()).Err()) // to find the master may take longer than StoreTimeout
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

// What may be lost in a failover under load, and what may not: no key is stuck, whoever asks again gets the answer that
// counts, and what all replicas have is not done again. The rest is counted: replication is asynchronous.
func TestRedisSentinelUnderLoad(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		by          string
		minReplicas int  // min-replicas-to-write of the master, which has two
		waits       int  // for so many replicas, after a completion
		pauses      bool // writes on the master, before the failover
		safe        bool // loses nothing, and is tried without the flag
	}{
		"crash":                      {by: "crash"},
		"crash, one replica needed":  {by: "crash", minReplicas: 1},
		"crash, two needed":          {by: "crash", minReplicas: 2},
		"crash, one waited for":      {by: "crash", waits: 1},
		"crash, two waited for":      {by: "crash", waits: 2, safe: true},
		"command":                    {by: "command"},
		"command, one needed":        {by: "command", minReplicas: 1},
		"command, two needed":        {by: "command", minReplicas: 2},
		"command, one waited for":    {by: "command", waits: 1},
		"command, two waited for":    {by: "command", waits: 2, safe: true},
		"command, writes are paused": {by: "command", pauses: true},
	} {
		if *failovers == 0 && !test.safe {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var paid, again int64
			for n := range max(1, *failovers) {
				t.Run(strconv.Itoa(n+1), func(t *testing.T) {
					sentinel := servertest.RedisSentinel(t, 2)
					client := newFailoverClient(t, sentinel)
					master := testservice.NewRedisClient(t, sentinel.Nodes()[0].Addr())
					require.NoError(t, master.ConfigSet(t.Context(), "min-replicas-to-write", strconv.Itoa(test.minReplicas)).Err())
					till := newTill(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: test.waits}))
					till.open(t, func() {
						if test.pauses {
							pauseWrites(t, master)
						}
						failoversBy[test.by].await(t, sentinel, client)
						if test.by == "crash" { // as a supervisor would; the sentinels make it a replica
							require.NoError(t, sentinel.Nodes()[0].Restart())
						}
					})
					till.audit(t)
					paid, again = paid+till.paid.Load(), again+till.again.Load()
				})
			}
			t.Logf("%s: %d answers seen, %d executions after them", name, paid, again)
			t.Attr("failovers", strconv.Itoa(max(1, *failovers)))
			t.Attr("answers-seen", strconv.FormatInt(paid, 10))
			t.Attr("executed-again", strconv.FormatInt(again, 10))
			if test.safe {
				require.Zero(t, again)
			}
		})
	}
}

// pauseWrites has the master accept no writes, and waits until the replicas have all that it did accept.
func pauseWrites(t *testing.T, master *redis.Client) {
	t.Helper()
	require.NoError(t, master.Do(t.Context(), "CLIENT", "PAUSE", 10_000, "WRITE").Err())
	offset := regexp.MustCompile(`(?:master_repl_|,)offset[:=](\d+)`)
	testservice.Until(t, func() bool {
		offsets := map[string]bool{}
		for _, found := range offset.FindAllStringSubmatch(master.Info(t.Context(), "replication").Val(), -1) {
			offsets[found[1]] = true
		}
		return len(offsets) == 1
	})
}

// till is a service whose clients pay, each with a key, until they have an answer, and sometimes ask again.
type till struct {
	svc   *testservice.Service
	seen  sync.Map     // what was answered to each key
	paid  atomic.Int64 // answers that were seen
	again atomic.Int64 // executions after them
}

func newTill(t *testing.T, store idempotency.Store) *till {
	till := &till{}
	opts := idempotency.Options{Lease: 6 * time.Second, StoreTimeout: 5 * time.Second}
	till.svc = testservice.Setup{Store: store, Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		if _, seen := till.seen.Load(r.Header.Get("Idempotency-Key")); seen {
			till.again.Add(1)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, rand.Text())
	})
	return till
}

// open lets clients pay while work runs, and before and after.
func (s *till) open(t *testing.T, work func()) {
	const clients, more = 8, 200
	var wg sync.WaitGroup
	var closed atomic.Bool
	defer wg.Wait()
	defer closed.Store(true)
	for client := range clients {
		wg.Go(func() {
			for n := 0; !closed.Load(); n++ {
				key := fmt.Sprint(client, "-", n)
				s.seen.Store(key, s.pay(t, key))
				s.paid.Add(1)
				s.pay(t, fmt.Sprint(client, "-", mathrand.IntN(n+1)))
				time.Sleep(5 * time.Millisecond) // servers, sentinels and clients share few processors
			}
		})
	}
	testservice.Until(t, func() bool { return s.paid.Load() >= more })
	work()
	before := s.paid.Load()
	afterwards := func() bool { return s.paid.Load() >= before+more }
	require.Eventually(t, afterwards, time.Minute, 10*time.Millisecond) // the old master is not a replica at once
}

// pay asks until there is an answer.
func (s *till) pay(t *testing.T, key string) (receipt string) {
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if got := s.svc.Call(key, "body"); got.Status == http.StatusCreated {
			return got.Body
		}
	}
	t.Errorf("key %s is stuck", key)
	return ""
}

// audit has all clients ask for their receipts. Those of operations that were carried out once are the ones that they
// have seen.
func (s *till) audit(t *testing.T) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	var differ atomic.Int64
	s.seen.Range(func(key, seen any) bool {
		slots <- struct{}{}
		wg.Go(func() {
			receipt := s.pay(t, key.(string))
			if receipt != seen {
				differ.Add(1)
			}
			if again := s.pay(t, key.(string)); again != receipt {
				t.Errorf("key %s has two receipts, after the failover", key)
			}
			<-slots
		})
		return true
	})
	wg.Wait()
	require.LessOrEqual(t, differ.Load(), s.again.Load())
}

// A client of Sentinel shows, lists and forgets at the master.
func TestRedisInspectsThroughSentinel(t *testing.T) {
	t.Parallel()
	client := newFailoverClient(t, servertest.RedisSentinel(t, 1))
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.Large())
	require.Len(t, testservice.MustList(t, store).Entries, 1)
	require.NoError(t, store.Forget(t.Context(), testservice.MustInspect(t, store, testservice.NumberedKey(0))))
	require.Empty(t, testservice.MustList(t, store).Entries)
}
