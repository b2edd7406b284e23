package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// redisNetwork is a client, with the proxies between the client and its servers.
type redisNetwork struct {
	client  redis.Cmdable
	servers []*servertest.Server
	proxies []*servertest.Proxy // one proxy for each server
}

func (n *redisNetwork) inject(rule servertest.Rule) {
	for _, p := range n.proxies {
		p.Inject(rule)
	}
}

func (n *redisNetwork) strikes() (sum int) {
	for _, p := range n.proxies {
		sum += p.Strikes()
	}
	return sum
}

// newRedisNetwork starts one server behind a proxy.
func newRedisNetwork(t *testing.T, edits ...func(*redis.Options)) *redisNetwork {
	server := servertest.Redis(t)
	proxy := servertest.NewProxy(t, server.Addr())
	client := testservice.NewRedisClient(t, proxy.Addr(), edits...)
	return &redisNetwork{client, []*servertest.Server{server}, []*servertest.Proxy{proxy}}
}

// redisNetworks are the ways to reach Redis that every fault must leave without a visible effect.
var redisNetworks = map[string]func(*testing.T) *redisNetwork{
	"default client": func(t *testing.T) *redisNetwork { return newRedisNetwork(t) },
	"client without retries": func(t *testing.T) *redisNetwork {
		return newRedisNetwork(t, func(o *redis.Options) { o.MaxRetries = -1 })
	},
	"client with deadlines": func(t *testing.T) *redisNetwork { return newRedisNetwork(t, testservice.WithContextTimeout) },
	"pipelining client": func(t *testing.T) *redisNetwork {
		n := newRedisNetwork(t)
		pipeliner, err := n.client.(*redis.Client).AutoPipeline()
		require.NoError(t, err)
		n.client = pipeliner
		return n
	},
	"pipelining client that does not wait": func(t *testing.T) *redisNetwork {
		n := newRedisNetwork(t)
		pipeliner, err := n.client.(*redis.Client).AsyncAutoPipeline()
		require.NoError(t, err)
		n.client = pipeliner
		return n
	},
	"client with the typed commands alone": func(t *testing.T) *redisNetwork {
		n := newRedisNetwork(t, testservice.WithContextTimeout)
		n.client = struct{ redis.Cmdable }{n.client}
		return n
	},
	"cluster client": func(t *testing.T) *redisNetwork {
		n := &redisNetwork{servers: servertest.RedisCluster(t)}
		for _, master := range n.servers {
			n.proxies = append(n.proxies, servertest.NewProxy(t, master.Addr()))
		}
		n.client = testservice.NewClusterClient(t, n.servers, n.proxies...)
		return n
	},
}

// loadScripts loads the scripts of the store, and returns a text of each step that identifies the step's command on
// the wire.
func (n *redisNetwork) loadScripts(t *testing.T) map[string]string {
	t.Helper()
	patterns := map[string]string{"claim": "nx\r\n$3\r\nget\r\n"}
	for name, parts := range map[string][]string{
		"take over": {"record", "claim"}, "extend": {"record", "extend"},
		"complete": {"swap", "record", "complete"}, "release": {"record", "index", "release"},
		"counted claim": {"record", "index", "counted", "claim"},
	} {
		var source strings.Builder
		for _, part := range parts {
			text, err := os.ReadFile("../../internal/redisscript/" + part + ".lua")
			require.NoError(t, err)
			source.Write(text)
		}
		script := redis.NewScript(source.String())
		for _, server := range n.servers {
			require.NoError(t, script.Load(t.Context(), testservice.NewRedisClient(t, server.Addr())).Err())
		}
		patterns[name] = script.Hash()
	}
	if hasIFEQ(t, n.servers[0].Addr()) {
		patterns["complete"] = "ifeq\r\n"
	}
	return patterns
}

// hasIFEQ reports whether the server supports SET with IFEQ.
func hasIFEQ(t *testing.T, addr string) bool {
	t.Helper()
	err := testservice.NewRedisClient(t, addr).Do(t.Context(), "set", "probe", "new", "ifeq", "old").Err()
	return errors.Is(err, redis.Nil)
}

// Wherever the connection breaks, the client gets the handler's answer, the handler runs once, and the next request
// is answered as usual. A request is never refused because of its own claim.
func TestRedisConnectionBreaks(t *testing.T) {
	t.Parallel()
	for name, start := range redisNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			digests := n.loadScripts(t)
			store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
			breaks := func(name, script string, step func(t *testing.T, svc *testservice.Service, key string)) {
				for _, fault := range []servertest.Fault{servertest.LoseRequest, servertest.LoseReply} {
					t.Run(string(fault)+" of "+name, func(t *testing.T) {
						svc := testservice.Setup{Store: store}.Guard(t, testservice.EchoOrFail)
						n.inject(servertest.Rule{Fault: fault, Pattern: digests[script]})
						step(t, svc, fmt.Sprint(fault, len(name)))
						require.Equal(t, 1, n.strikes(), "the fault did not strike")
					})
				}
			}
			executed := func(body string) func(t *testing.T, svc *testservice.Service, key string) {
				return func(t *testing.T, svc *testservice.Service, key string) {
					first := svc.Call(key, body)
					require.Equal(t, http.StatusCreated, first.Status, first.Body)
					require.Equal(t, body, first.Body)
					testservice.RequireReplay(t, first, svc.Call(key, body))
					require.EqualValues(t, 1, svc.Runs.Load())
					require.Equal(t, []idempotency.Outcome{"executed", "replayed"}, svc.Journal.Outcomes())
				}
			}
			breaks("claim", "claim", executed("small"))
			breaks("completion", "complete", executed("small"))
			breaks("large completion", "complete", executed(testservice.LargeBody))
			breaks("release", "release", func(t *testing.T, svc *testservice.Service, key string) {
				for range 2 {
					require.Equal(t, http.StatusInternalServerError, svc.Call(key, "fail").Status)
				}
				require.Equal(t, []idempotency.Outcome{"released", "released"}, svc.Journal.Outcomes())
			})
			breaks("extension", "extend", func(t *testing.T, _ *testservice.Service, key string) {
				claim := testservice.MustClaim(t, store, idempotency.Key{ID: key}, testservice.AttemptFor(time.Hour))
				require.NoError(t, claim.Extend(t.Context(), time.Minute))
				require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
			})
			t.Run("nothing is left behind", func(t *testing.T) {
				for _, server := range n.servers {
					for _, key := range testservice.RedisKeys(t, testservice.NewRedisClient(t, server.Addr()), "") {
						require.Regexp(t, `\}$`, key, "a staging key")
					}
				}
			})
		})
	}
}

// A server that does not answer counts as an unavailable store, soon enough for an answer to the client.
func TestRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const storeTimeout, slack = time.Second, 9 * time.Second // go-redis by itself tries four times, for three seconds each
	for name, start := range redisNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			n.loadScripts(t)
			svc := testservice.Setup{
				Store: idempotency.NewRedisStore(n.client, idempotency.RedisOptions{}),
				Opts:  idempotency.Options{StoreTimeout: storeTimeout},
			}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "completion" {
					for _, server := range n.servers {
						require.NoError(t, server.Pause())
					}
				}
				testservice.Echo(w, r)
			})
			timed := func(key string) testservice.Answer {
				began := time.Now()
				got := svc.Call(key, "body")
				require.Less(t, time.Since(began), storeTimeout+slack)
				return got
			}
			answers := func() bool { return svc.Call(uuid.NewString(), "body").Status == http.StatusCreated }
			testservice.Until(t, answers)
			require.Equal(t, http.StatusCreated, timed("completion").Status, "the effects exist, so the answer is true")
			require.Equal(t, idempotency.OutcomeUnrecorded, svc.Journal.Last(t).Outcome)
			runs := svc.Runs.Load()
			testservice.RequireProblem(t, timed("claim"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, runs, svc.Runs.Load())
			for _, server := range n.servers {
				server.Resume()
			}
			testservice.Until(t, answers)
		})
	}
}

// A claim that was granted after the end of the request's wait blocks its key for at most a lease.
func TestRedisClaimThatNobodyLearnsOf(t *testing.T) {
	t.Parallel()
	for _, fault := range []servertest.Fault{servertest.HoldReply, servertest.HoldRequest} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			n := newRedisNetwork(t)
			digests := n.loadScripts(t)
			store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
			svc := testservice.Setup{Store: store}.Guard(t, testservice.AttemptNumber)
			hasty := testservice.Setup{
				Store: store, Opts: idempotency.Options{StoreTimeout: 5 * time.Second},
			}.Guard(t, testservice.AttemptNumber)

			n.inject(servertest.Rule{Fault: fault, Pattern: digests["claim"]})
			for range 10 { // on a loaded machine, a request may end before the fault
				testservice.RequireProblem(t, hasty.Call("key", ""), http.StatusServiceUnavailable, "store-unavailable")
				if n.strikes() > 0 {
					break
				}
			}
			require.Equal(t, 1, n.strikes())
			n.proxies[0].Release()
			var first testservice.Answer
			testservice.Until(t, func() bool { // well before the end of the lease, because the claim is released in the background
				first = svc.Call("key", "")
				return first.Status != http.StatusConflict && first.Status != http.StatusServiceUnavailable
			})
			// Attempt 1 if Redis never got the lost claim, attempt 2 if Redis granted the claim.
			require.Contains(t, []string{"attempt 1", "attempt 2"}, first.Body)
			testservice.RequireReplay(t, first, svc.Call("key", ""))
			require.EqualValues(t, 1, svc.Runs.Load()+hasty.Runs.Load())
		})
	}
}

// beginInVain begins an attempt whose reply is lost, and returns the claim, which the server may have granted.
func beginInVain(t *testing.T, store idempotency.Store, key idempotency.Key) idempotency.Claim {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _, err := store.Begin(ctx, key, testservice.AttemptFor(time.Hour))
	claim := testservice.InDoubt(err)
	require.NotNil(t, claim, "%v", err)
	return claim
}

// A claim whose reply was lost can be released by its token, whether or not the server has granted the claim.
func TestRedisReleaseOfAnUnansweredClaim(t *testing.T) {
	t.Parallel()
	for name, start := range redisNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			digests := n.loadScripts(t)
			store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
			lost := func(fault servertest.Fault, step string, key idempotency.Key) (claim idempotency.Claim) {
				for range 10 { // on a loaded machine, a request may end before the fault
					n.inject(servertest.Rule{Fault: fault, Pattern: digests[step], Times: 1000})
					claim = beginInVain(t, store, key)
					if n.strikes() > 0 {
						return claim
					}
				}
				require.Fail(t, "the fault did not strike")
				return nil
			}
			for i, fault := range []servertest.Fault{servertest.LoseReply, servertest.HoldReply} {
				t.Run(string(fault)+" of a claim that was granted", func(t *testing.T) {
					key := testservice.NumberedKey(i)
					claim := lost(fault, "claim", key)
					n.inject(servertest.Rule{})
					require.Positive(t, testservice.MustRead(t, store, key).LeaseLeft)
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
					record, next, err := store.Begin(t.Context(), key, testservice.AttemptFor(time.Hour))
					require.NoError(t, err)
					require.NotNil(t, next)
					require.Equal(t, 2, record.Attempt)
					require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
					require.NoError(t, next.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
				})
			}
			t.Run("takeover", func(t *testing.T) {
				key := testservice.NumberedKey(4)
				require.NoError(t, testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour)).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				claim := lost(servertest.LoseReply, "take over", key)
				n.inject(servertest.Rule{})
				for range 2 {
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				}
				record, next, err := store.Begin(t.Context(), key, testservice.AttemptFor(time.Hour))
				require.NoError(t, err)
				require.NotNil(t, next)
				require.Equal(t, 3, record.Attempt)
			})
			t.Run("request that never arrived", func(t *testing.T) {
				claim := lost(servertest.LoseRequest, "claim", testservice.NumberedKey(2)) // the client may still repeat this claim
				require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				n.inject(servertest.Rule{})
				record, next, err := store.Begin(t.Context(), testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
				require.NoError(t, err)
				require.NotNil(t, next)
				require.Equal(t, 1, record.Attempt)
			})
			t.Run("key of somebody else", func(t *testing.T) {
				owner := testservice.MustClaim(t, store, testservice.NumberedKey(3), testservice.AttemptFor(time.Hour))
				claim := lost(servertest.LoseReply, "claim", testservice.NumberedKey(3))
				n.inject(servertest.Rule{})
				require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				require.NoError(t, owner.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
				require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(3)).Response.Body, 1)
			})
		})
	}
}

var errCut = errors.New("connection cut")

// cutOnce is a hook that cuts the connection instead of sending the first claim.
type cutOnce struct {
	testservice.BeforeEach
	cut func()
}

func (c *cutOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "set" && c.cut != nil {
			c.cut()
			c.cut = nil
			return errCut
		}
		return next(ctx, cmd)
	}
}

// A refused claim was not granted, unless the reply to an earlier try was lost.
func TestRedisClaimThatIsRefused(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client, node := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout), testservice.NewRedisClient(t, server.Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour)) // loads the script
	demote := func() { require.NoError(t, node.ReplicaOf(t.Context(), "127.0.0.1", "1").Err()) }
	promote := func() { require.NoError(t, node.ReplicaOf(t.Context(), "NO", "ONE").Err()) }

	demote()
	_, _, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.ErrorContains(t, err, "READONLY")
	require.Nil(t, testservice.InDoubt(err))

	promote()
	client.AddHook(&cutOnce{BeforeEach: func(string) {}, cut: demote})
	_, _, err = store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.ErrorContains(t, err, "READONLY")
	claim := testservice.InDoubt(err)
	require.NotNil(t, claim)
	promote()
	require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
	testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
}

// A client that retries by itself may report an error although an earlier try was granted the claim.
func TestRedisClientTriesAgainByItself(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--replica-serve-stale-data", "no")
	node, proxy := testservice.NewRedisClient(t, server.Addr()), servertest.NewProxy(t, server.Addr())
	var demote sync.Once
	client := testservice.NewRedisClient(t, proxy.Addr(), testservice.WithContextTimeout, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if proxy.Strikes() > 0 {
				demote.Do(func() { require.NoError(t, node.ReplicaOf(ctx, "127.0.0.1", "1").Err()) })
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour)) // opens a connection
	proxy.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "nx\r\n$3\r\nget\r\n"})
	_, _, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.ErrorContains(t, err, "MASTERDOWN")
	claim := testservice.InDoubt(err)
	require.NotNil(t, claim)
	require.NoError(t, node.ReplicaOf(t.Context(), "NO", "ONE").Err())
	testservice.Until(t, func() bool { return claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}) == nil })
	testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
}

// A late claim changes nothing if another attempt has claimed the key before.
func TestRedisClaimArrivesLate(t *testing.T) {
	t.Parallel()
	n := newRedisNetwork(t)
	digests := n.loadScripts(t)
	store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
	hasty := testservice.Setup{Store: store, Opts: idempotency.Options{StoreTimeout: 2 * time.Second}}.Guard(t, testservice.AttemptNumber)
	n.inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: digests["claim"], Times: 2})
	for _, key := range []string{"running", "completed"} {
		testservice.RequireProblem(t, hasty.Call(key, ""), http.StatusServiceUnavailable, "store-unavailable")
	}
	require.Equal(t, 2, n.strikes())

	svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "running" {
			n.proxies[0].Release() // releases both claims
		}
		testservice.AttemptNumber(w, r)
	})
	completed, running := svc.Call("completed", ""), svc.Call("running", "")
	require.Equal(t, "attempt 1", completed.Body)
	require.Equal(t, "attempt 1", running.Body)
	testservice.RequireReplay(t, completed, svc.Call("completed", ""))
	testservice.RequireReplay(t, running, svc.Call("running", ""))
	require.Equal(t, []idempotency.Outcome{"executed", "executed", "replayed", "replayed"}, svc.Journal.Outcomes())
}

// A repeated claim that arrives after the release of the first copy does not block the key.
func TestRedisClaimArrivesTwice(t *testing.T) {
	t.Parallel()
	n := newRedisNetwork(t, func(o *redis.Options) { o.ReadTimeout = time.Second })
	digests := n.loadScripts(t)
	store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
	n.inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: digests["claim"]})
	claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.Equal(t, 1, n.strikes())
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	n.proxies[0].Release()
	testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
}

// A completion that arrives after a takeover does not overwrite the successor's record.
func TestRedisCompletionArrivesLate(t *testing.T) {
	t.Parallel()
	for size, resp := range map[string]idempotency.Response{"small": testservice.BodyOf(1), "large": testservice.Large()} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, successor has ended: %t", size, ended), func(t *testing.T) {
				t.Parallel()
				n := newRedisNetwork(t)
				digests := n.loadScripts(t)
				store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
				brief := testservice.AttemptFor(time.Hour)
				brief.Lease = 50 * time.Millisecond
				late := testservice.MustClaim(t, store, testservice.NumberedKey(1), brief)
				n.inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: digests["complete"]})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				require.Error(t, late.Complete(ctx, resp, time.Hour))
				require.Equal(t, 1, n.strikes())

				var successor idempotency.Claim
				testservice.Until(t, func() bool {
					_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					successor = claim
					return err == nil && claim != nil
				})
				if ended {
					require.NoError(t, successor.Complete(t.Context(), testservice.BodyOf(2), time.Hour))
				}
				n.proxies[0].Release()
				require.ErrorIs(t, late.Complete(t.Context(), resp, time.Hour), idempotency.ErrClaimLost)
				require.NoError(t, successor.Complete(t.Context(), testservice.BodyOf(2), time.Hour))
				require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body, 2)
				require.Len(t, testservice.RedisKeys(t, n.client, ""), 1)
			})
		}
	}
}

// If Redis loses the record while the handler runs, the completion writes the record again.
func TestRedisForgetsARunningOperation(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
		t.Run(size, func(t *testing.T) {
			svc := testservice.Setup{Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})}.Guard(t,
				func(w http.ResponseWriter, r *http.Request) {
					require.NoError(t, client.FlushAll(r.Context()).Err())
					testservice.Echo(w, r)
				})
			first := svc.Call(size, body)
			require.Equal(t, http.StatusCreated, first.Status)
			testservice.RequireReplay(t, first, svc.Call(size, body))
			require.Equal(t, []idempotency.Outcome{"restored", "replayed"}, svc.Journal.Outcomes())
		})
	}
}

// Every client gets its answer although the server is killed and restarted while the handler runs.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		outcome idempotency.Outcome
	}{
		"with its records":    {[]string{"--appendonly", "yes", "--appendfsync", "always"}, idempotency.OutcomeExecuted},
		"without its records": {nil, idempotency.OutcomeRestored},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, test.args...)
			client := testservice.NewRedisClient(t, server.Addr(), func(o *redis.Options) { o.MinIdleConns = 8 })
			testservice.Until(t, func() bool { return client.PoolStats().IdleConns >= 8 }) // the restart breaks all of these connections
			svc := testservice.Setup{
				Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
				Opts:  idempotency.Options{StoreTimeout: 30 * time.Second}, // the start of servers may keep the machine busy
			}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, server.Restart())
				testservice.Echo(w, r)
			})
			first := svc.Call("key", "body")
			require.Equal(t, http.StatusCreated, first.Status, "%v", svc.Journal.Last(t).Err)
			require.Equal(t, test.outcome, svc.Journal.Last(t).Outcome)
			require.NoError(t, server.Restart())
			if test.outcome == idempotency.OutcomeExecuted {
				testservice.RequireReplay(t, first, svc.Call("key", "body"))
			}
			require.Equal(t, http.StatusCreated, svc.Call("other", "body").Status)
		})
	}
}
