package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

func large() idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: []byte(testservice.LargeBody)}
}

func TestRedisStoreConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			idempotencytest.Run(t, func(*testing.T) idempotency.Store {
				return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			})
		})
	}
	conforms("miniredis", func(t *testing.T) redis.Cmdable {
		_, client := testservice.NewMiniredis(t)
		return client
	})
	conforms("server", func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	})
	conforms("server with automatic pipelining", func(t *testing.T) redis.Cmdable {
		pipeliner, err := testservice.NewRedisClient(t, servertest.Redis(t).Addr()).AutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	conforms("server with automatic pipelining that does not wait", func(t *testing.T) redis.Cmdable {
		pipeliner, err := testservice.NewRedisClient(t, servertest.Redis(t).Addr()).AsyncAutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	conforms("server with the typed commands alone", func(t *testing.T) redis.Cmdable {
		return struct{ redis.Cmdable }{testservice.NewRedisClient(t, servertest.Redis(t).Addr())}
	})
	conforms("cluster", func(t *testing.T) redis.Cmdable {
		return testservice.NewClusterClient(t, servertest.RedisCluster(t))
	})
	conforms("server before Redis 7.0", func(t *testing.T) redis.Cmdable {
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr(), testservice.WithContextTimeout)
		client.AddHook(oldServer{BeforeEach: func(string) {}})
		return client
	})
	conforms("server that forgets the scripts before each command", func(t *testing.T) redis.Cmdable {
		server := servertest.Redis(t)
		client, other := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout), testservice.NewRedisClient(t, server.Addr())
		client.AddHook(testservice.BeforeEach(func(string) { other.ScriptFlush(t.Context()) }))
		return client
	})
}

// oldServer is a hook that answers as a server that knows no SET with both NX and GET.
type oldServer struct {
	testservice.BeforeEach
	refused *atomic.Int64
}

func (o oldServer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		raw, claims := cmd.(*redis.RawCmd)
		if !claims {
			return next(ctx, cmd)
		}
		if o.refused != nil {
			o.refused.Add(1)
		}
		raw.SetVal([]byte("-ERR syntax error\r\n"))
		return nil
	}
}

// A server that does not know SET with both NX and GET leaves all to the script.
func TestRedisServerBefore70(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		var refused atomic.Int64
		old := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		old.AddHook(oldServer{func(string) {}, &refused})
		svc := testservice.Setup{Store: idempotency.NewRedisStore(old, idempotency.RedisOptions{})}.Guard(t, echoOrFail)
		for _, body := range []string{"small", testservice.LargeBody} {
			first := svc.Call(body[:5], body)
			require.Equal(t, http.StatusCreated, first.Status)
			testservice.RequireReplay(t, first, svc.Call(body[:5], body))
		}
		for range 2 {
			require.Equal(t, http.StatusInternalServerError, svc.Call("fail", "fail").Status)
		}
		require.EqualValues(t, 6, refused.Load())
	})
}

// A server that lets nobody write still answers from what it has: one without memory, a replica, one that has lost its
// replicas.
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

// The expiry of a running record tells the age of its lease.
func TestRedisLeaseIsToldByTheExpiry(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		request := testservice.AttemptFor(time.Hour)
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), request)
		name := testservice.RedisKeys(t, client, "")[0]
		look := request
		look.TakeOver = false
		left := func() time.Duration {
			record, other, err := store.Begin(t.Context(), testservice.NumberedKey(1), look)
			require.NoError(t, err)
			require.Nil(t, other)
			return record.LeaseLeft
		}
		expires := func(ttl time.Duration) { require.NoError(t, client.PExpire(t.Context(), name, ttl).Err()) }
		near := func(want, got time.Duration) {
			t.Helper()
			require.LessOrEqual(t, got, want)
			require.Greater(t, got, want-slack)
		}
		near(request.Lease, left())
		record := client.Get(t.Context(), name).Val()
		expires(request.TTL - 30*time.Second)
		near(request.Lease-30*time.Second, left())
		expires(request.TTL - request.Lease)
		require.Zero(t, left(), "it has lapsed")
		require.NoError(t, claim.Extend(t.Context(), request.Lease))
		near(request.Lease, left())
		require.NoError(t, claim.Extend(t.Context(), 3*request.Lease))
		near(3*request.Lease, left())
		require.NoError(t, claim.Extend(t.Context(), request.Lease))
		near(3*request.Lease, left())

		require.NoError(t, client.Persist(t.Context(), name).Err())
		near(request.Lease, left()) // counted from now
		near(request.TTL, client.PTTL(t.Context(), name).Val())
		require.Equal(t, record, client.Get(t.Context(), name).Val(), "a record changed while its claim lasted")
	})
}

// What a request costs, counted where it is paid: on the wire.
func TestRedisRoundTrips(t *testing.T) {
	t.Parallel()
	proxy := servertest.NewProxy(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, proxy.Addr()), idempotency.RedisOptions{})
	post := func(body string) func(*testservice.Service, string) {
		return func(svc *testservice.Service, key string) { svc.Call(key, body) }
	}
	for i, test := range []struct {
		name   string
		before func(*testservice.Service, string)
		do     func(*testservice.Service, string)
		trips  int
	}{
		{"first execution", nil, post("a"), 2},
		{"first execution, 64 KiB", nil, post(testservice.LargeBody), 2},
		{"first execution, 1 MiB", nil, post(strings.Repeat(testservice.LargeBody, 16)), 2},
		{"replay", post("a"), post("a"), 1},
		{"replay, 7 KiB", post(testservice.LargeBody[:7<<10]), post(testservice.LargeBody[:7<<10]), 1},
		{"replay, 64 KiB", post(testservice.LargeBody), post(testservice.LargeBody), 1},
		{"replay, 1 MiB", post(strings.Repeat(testservice.LargeBody, 16)), post(strings.Repeat(testservice.LargeBody, 16)), 1},
		{"key reused", post("a"), post("b"), 1},
		{"key reused, 64 KiB", post("a"), post("b"), 1},
		{"claim, in progress, completion", nil, post("again"), 4}, // in progress: 2
		{"claim, release", nil, post("fail"), 2},
		{"claim of what was released, release", post("fail"), post("fail"), 3},
		{"claim, extension", nil, func(_ *testservice.Service, key string) {
			claim := testservice.MustClaim(t, store, idempotency.Key{ID: key}, testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Extend(t.Context(), time.Minute))
		}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			var svc *testservice.Service
			svc = testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				switch body, _ := io.ReadAll(r.Body); string(body) {
				case "again":
					svc.Call(r.Header.Get("Idempotency-Key"), "again")
				case "fail":
					w.WriteHeader(http.StatusInternalServerError)
				default:
					_, _ = w.Write(body)
				}
			})
			var trips int
			for _, key := range []string{fmt.Sprint("warm", i), fmt.Sprint(i)} { // the first loads the scripts
				if test.before != nil {
					test.before(svc, key)
				}
				flights := proxy.Flights()
				test.do(svc, key)
				trips = proxy.Flights() - flights
			}
			require.Equal(t, test.trips, trips)
		})
	}
}

// goldenHead is the first line of a record, without the parts that are random.
const goldenHead = "idempotency/1 %s token=<token> lease=60000 ttl=3600000 attempt=%d " +
	"key=9853a3ffbc2ac8c07fab59709bc93dde fingerprint=0100000000000000000000000000000000000000000000000000000000000000 created=<created>\n"

const goldenResponse = "response/1 crc=a8844b8b 201 header=63 trailer=24 body=8\n" +
	"Content-Type: application/json\nSet-Cookie: a=1\nSet-Cookie: b=2\nTrailer\\x3aChecksum: ok\n\n" + `{"id":1}`

var goldenRandom = regexp.MustCompile(`token=[0-9a-f]{32} |created=\d{13}\n`)

// What an operator sees in redis-cli GET, and other releases of this package have to read.
func TestRedisRecordIsReadable(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	server.RequireAuth(servertest.RedisPassword())
	server.SetTime(time.UnixMilli(1763712000000))
	client := testservice.NewRedisClient(t, server.Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	holds := func(format string, args ...any) {
		t.Helper()
		require.Len(t, server.Keys(), 1)
		value, err := client.Get(t.Context(), server.Keys()[0]).Result()
		require.NoError(t, err)
		value = goldenRandom.ReplaceAllStringFunc(value, func(word string) string {
			name, _, _ := strings.Cut(word, "=")
			return name + "=<" + name + ">" + word[len(word)-1:]
		})
		require.Equal(t, fmt.Sprintf(format, args...), value)
	}
	claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	holds(goldenHead, "running", 1)
	require.NoError(t, claim.Extend(t.Context(), 2*time.Minute))
	holds(goldenHead, "running", 1)
	require.NoError(t, claim.Release(t.Context(), time.Hour))
	holds(goldenHead, "released", 1)
	claim = testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	holds(goldenHead, "running", 2)
	resp := idempotency.Response{
		Status:  http.StatusCreated,
		Header:  idempotency.NewFields(http.Header{"Content-Type": {"application/json"}, "Set-Cookie": {"a=1", "b=2"}}),
		Trailer: idempotency.NewFields(http.Header{http.TrailerPrefix + "Checksum": {"ok"}}),
		Body:    []byte(`{"id":1}`),
	}
	require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
	holds(goldenHead+goldenResponse, "done", 2)
	require.Equal(t, &resp, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response)
}

// redisContent returns all that lies under a key, of whatever type.
func redisContent(t testing.TB, client redis.Cmdable, name string) string {
	t.Helper()
	kind := client.Type(t.Context(), name).Val()
	value := map[string]func() any{
		"string": func() any { return client.Get(t.Context(), name).Val() },
		"hash":   func() any { return client.HGetAll(t.Context(), name).Val() },
		"list":   func() any { return client.LRange(t.Context(), name, 0, -1).Val() },
	}[kind]
	require.NotNil(t, value, "unexpected type %q", kind)
	return fmt.Sprint(kind, value(), client.PTTL(t.Context(), name).Val() > 0)
}

// foreign is what has no business under the key of a record.
var foreign = map[string]any{
	"text":            "hello",
	"empty text":      "",
	"much text":       testservice.LargeBody,
	"lines":           strings.Repeat("idempotency/1\n", 100),
	"no line":         "idempotency/1 done " + testservice.LargeBody,
	"unknown version": "idempotency/2 done lease=0 token=0 attempt=1 fingerprint=0 created=0\n",
	"hash":            map[string]any{"state": "done"},
	"list":            []any{"idempotency/1"},
}

func putForeign(t testing.TB, client redis.Cmdable, name string, value any) {
	t.Helper()
	require.NoError(t, client.Del(t.Context(), name).Err())
	switch value := value.(type) {
	case map[string]any:
		require.NoError(t, client.HSet(t.Context(), name, value).Err())
	case []any:
		require.NoError(t, client.RPush(t.Context(), name, value...).Err())
	default:
		require.NoError(t, client.Set(t.Context(), name, value, 0).Err())
	}
}

// damages are what may become of a record. Each is told from the record.
var damages = map[string]func(string) string{
	"cut in its head":     func(record string) string { return record[:100] },
	"without a response":  func(record string) string { return record[:strings.Index(record, "\n")+1] },
	"cut in its response": func(record string) string { return record[:len(record)-1] },
	"with a byte more":    func(record string) string { return record + "x" },
	"with another byte":   func(record string) string { return record[:len(record)-2] + "#" + record[len(record)-1:] },
	"in unknown state":    func(record string) string { return strings.Replace(record, " done ", " paused ", 1) },
	"with words missing":  func(record string) string { return strings.Replace(record, " attempt=1", "", 1) },
	"with words too long": func(record string) string {
		return strings.Replace(record, "fingerprint=", "fingerprint="+strings.Repeat("00", 64), 1)
	},
	"of a later version":  func(record string) string { return strings.Replace(record, "cy/1", "cy/2", 1) },
	"with later response": func(record string) string { return strings.Replace(record, "response/1", "response/2", 1) },
}

// onRealAndMiniredis runs a test on both.
func onRealAndMiniredis(t *testing.T, test func(*testing.T, *redis.Client)) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		test(t, testservice.NewRedisClient(t, servertest.Redis(t).Addr()))
	})
	t.Run("miniredis", func(t *testing.T) {
		_, client := testservice.NewMiniredis(t)
		test(t, client)
	})
}

// A record that cannot be read is no reason to run the handler, not even with FailOpen, nor to write over it.
func TestRedisRecordThatCannotBeRead(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		refused := func(name, body string, spoil func(*testing.T, string)) {
			t.Run(name, func(t *testing.T) {
				prefix := fmt.Sprintf("%x:", name)
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
				svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
				require.Equal(t, http.StatusCreated, svc.Call("key", body).Status)
				keys := testservice.RedisKeys(t, client, prefix)
				require.Len(t, keys, 1)
				spoil(t, keys[0])
				before := redisContent(t, client, keys[0])

				testservice.RequireProblem(t, svc.Call("key", body), http.StatusServiceUnavailable, "store-unavailable")
				require.EqualValues(t, 1, svc.Runs.Load())
				require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
				require.Equal(t, before, redisContent(t, client, keys[0]))
			})
		}
		for name, value := range foreign {
			refused(name, "body", func(t *testing.T, key string) { putForeign(t, client, key, value) })
		}
		refused("running record with a line more", "body", func(t *testing.T, key string) {
			head, _, _ := strings.Cut(client.Get(t.Context(), key).Val(), "\n")
			head = strings.Replace(head, " done lease=0 ", " running lease=9999999999999 ", 1)
			require.NoError(t, client.Set(t.Context(), key, head+"\nline", redis.KeepTTL).Err())
		})
		for name, damage := range damages {
			for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
				refused(size+" record "+name, body, func(t *testing.T, key string) {
					record := client.Get(t.Context(), key).Val()
					require.NoError(t, client.Set(t.Context(), key, damage(record), redis.KeepTTL).Err())
				})
			}
		}
	})
}

// Nor does the owner of a claim write over what is not a record.
func TestRedisClaimFindsForeignValue(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		steps := map[string]func(context.Context, idempotency.Claim) error{
			"Extend":  func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Minute) },
			"Release": func(ctx context.Context, c idempotency.Claim) error { return c.Release(ctx, time.Hour) },
			"Complete": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, testservice.BodyOf(1), time.Hour)
			},
			"Complete with a large body": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, large(), time.Hour)
			},
		}
		for kind, value := range foreign {
			for name, step := range steps {
				t.Run(name+" finds "+kind, func(t *testing.T) {
					prefix := fmt.Sprintf("%x:", t.Name())
					store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
					claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					key := testservice.RedisKeys(t, client, prefix)[0]
					putForeign(t, client, key, value)
					before := redisContent(t, client, key)
					digest := fmt.Sprintf("%x", testservice.NumberedKey(1).Digest())
					require.Contains(t, key, digest)
					err := step(t.Context(), claim)
					require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
					require.NotContains(t, err.Error(), digest, "by which a reader of a log could confirm a guess")
					require.Equal(t, before, redisContent(t, client, key))
				})
			}
		}
	})
}

// No byte of a client gets into a key: it could choose the slot in a cluster, or meet a key of somebody else.
func TestRedisKeys(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		hostile := []idempotency.Key{
			{ID: "{user}"}, {ID: "a}b{c"}, {ID: "\r\nFLUSHALL\r\n"}, {ID: "\x00\xff"}, {ID: strings.Repeat("x", 255)},
			{User: "ab", ID: "c"}, {User: "a", ID: "bc"}, {User: "a", Endpoint: "b", ID: "c"},
		}
		for prefix, opts := range map[string]idempotency.RedisOptions{"idempotency:": {}, "shop:": {Prefix: "shop:"}} {
			store := idempotency.NewRedisStore(client, opts)
			for i, key := range hostile {
				testservice.MustComplete(t, store, key, testservice.BodyOf(i))
			}
			keys := testservice.RedisKeys(t, client, prefix)
			require.Len(t, keys, len(hostile))
			for _, key := range keys {
				require.Regexp(t, `^`+prefix+`\{[0-9a-f]{64}\}$`, key)
			}
		}
	})
}

// A large record is staged in the slot of its key, and what is staged does not stay.
func TestRedisStaging(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		client.Options().ContextTimeoutEnabled = true // so that the store uses this client, with its hooks
		client.AddHook(noIFEQ{func(string) {}})
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		brief := testservice.AttemptFor(time.Hour)
		brief.Lease = time.Millisecond

		overtaken := testservice.MustClaim(t, store, testservice.NumberedKey(1), brief)
		var owner idempotency.Claim
		require.Eventually(t, func() (ok bool) {
			_, owner, _ = store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			return owner != nil
		}, 10*time.Second, time.Millisecond)
		name := testservice.RedisKeys(t, client, "")
		require.Len(t, name, 1)

		require.ErrorIs(t, overtaken.Complete(t.Context(), large(), time.Hour), idempotency.ErrClaimLost)
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a claim that was lost")
		require.NoError(t, owner.Complete(t.Context(), large(), time.Hour))
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a completion")
		require.InDelta(t, time.Hour, client.PTTL(t.Context(), name[0]).Val(), float64(10*time.Second))
		require.NoError(t, owner.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		require.NoError(t, owner.Complete(t.Context(), large(), time.Hour))
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a repetition")
		require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body))

		// The owner disappears behind the first of the two commands.
		cut := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		cut.AddHook(noIFEQ{func(string) {}})
		cut.AddHook(halfPipeline{func(string) {}})
		store = idempotency.NewRedisStore(cut, idempotency.RedisOptions{})
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, claim.Complete(t.Context(), large(), time.Hour), errCut)
		staged := testservice.RedisKeys(t, client, "")
		require.Len(t, staged, 3)
		for _, key := range staged {
			require.Regexp(t, `^idempotency:\{[0-9a-f]{64}\}([0-9a-f]{32})?$`, key, "the hash tag is the same")
			if !strings.HasSuffix(key, "}") {
				require.InDelta(t, time.Minute, client.PTTL(t.Context(), key).Val(), float64(10*time.Second))
			}
		}
	})
}

// What is running or released is looked at a second time. In between, its owner may come to an end, or the record may expire.
func TestRedisRecordChangesBetweenTheSteps(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, test := range map[string]struct {
			meanwhile func(t *testing.T, owner idempotency.Claim)
			attempt   int // that is claimed, or 0 if there is an answer
		}{
			"completed": {func(t *testing.T, owner idempotency.Claim) {
				require.NoError(t, owner.Complete(t.Context(), large(), time.Hour))
			}, 0},
			"released": {func(t *testing.T, owner idempotency.Claim) {
				require.NoError(t, owner.Release(t.Context(), time.Hour))
			}, 2},
			"forgotten": {func(t *testing.T, _ idempotency.Claim) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
			}, 1},
		} {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				owner := testservice.MustClaim(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{}), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
				slow := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
				var once sync.Once
				slow.AddHook(testservice.BeforeEach(func(command string) {
					if command == "evalsha" {
						once.Do(func() { test.meanwhile(t, owner) })
					}
				}))
				store := idempotency.NewRedisStore(slow, idempotency.RedisOptions{})
				record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
				require.NoError(t, err)
				if test.attempt == 0 {
					require.Equal(t, testservice.LargeBody, string(record.Response.Body))
					return
				}
				require.NotNil(t, claim)
				require.Equal(t, test.attempt, record.Attempt)
				require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
				require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body, 1)
			})
		}
	})
}

var errCut = errors.New("connection cut")

// halfPipeline is a hook that sends of a pipeline which begins with SET nothing else.
type halfPipeline struct{ testservice.BeforeEach }

func (halfPipeline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "set" { // but what go-redis sends to open a connection
			return next(ctx, cmds)
		}
		return errors.Join(next(ctx, cmds[:1]), errCut)
	}
}

// noIFEQ is a hook that answers as a server that does not compare values.
type noIFEQ struct{ testservice.BeforeEach }

func (noIFEQ) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isSwap(cmd) {
			cmd.SetErr(redisError("ERR syntax error"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func isSwap(cmd redis.Cmder) bool { return cmd.Name() == "set" && cmd.Args()[3] == "ifeq" }

// redisError is what a server answers.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// givingUp is a hook that gives up the first large completion, and keeps what it was to store.
type givingUp struct {
	testservice.BeforeEach
	ifeq     bool // the server has it
	kept, as []byte
}

func (g *givingUp) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !isSwap(cmd) || !g.ifeq {
			return noIFEQ{}.ProcessHook(next)(ctx, cmd)
		}
		if g.giveUp(cmd) {
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (g *givingUp) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "set" && g.giveUp(cmds[0]) { // not what go-redis sends to open a connection
			return errCut
		}
		return next(ctx, cmds)
	}
}

// giveUp reports whether cmd is the first one.
func (g *givingUp) giveUp(cmd redis.Cmder) bool {
	if g.kept != nil {
		return false
	}
	g.kept = cmd.Args()[2].([]byte)
	g.as = bytes.Clone(g.kept)
	return true
}

// A hook may give up a command that another goroutine is still about to send. So its record stays as it is, although
// others are put together in buffers that are used again.
func TestRedisRecordOfACompletionThatWasGivenUp(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for _, ifeq := range []bool{false, true} {
			hooked := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
			hook := &givingUp{BeforeEach: func(string) {}, ifeq: ifeq}
			hooked.AddHook(hook)
			store := idempotency.NewRedisStore(hooked, idempotency.RedisOptions{Prefix: fmt.Sprint(ifeq)})
			testservice.MustComplete(t, store, testservice.NumberedKey(0), large())
			for i := range 10 {
				testservice.MustComplete(t, store, testservice.NumberedKey(i+1), large())
			}
			require.NotEmpty(t, hook.as)
			require.Equal(t, hook.as, hook.kept)
		}
	})
}

// However many requests wait for one key, Redis hears of each of them once, and then from one of them now and then.
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

// unsafeSettings returns the settings that Check finds fault with.
func unsafeSettings(t testing.TB, client redis.Cmdable) []string {
	t.Helper()
	return unsafeWith(t, client, idempotency.RedisOptions{})
}

func unsafeWith(t testing.TB, client redis.Cmdable, opts idempotency.RedisOptions) []string {
	t.Helper()
	err := idempotency.NewRedisStore(client, opts).Check(t.Context())
	var settings []string
	for _, err := range idempotency.Findings(err) {
		finding, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		require.True(t, ok, "not a finding: %v", err)
		require.NotEmpty(t, finding.Risk)
		require.Contains(t, err.Error(), finding.Node+": "+finding.Setting+" is "+finding.Value)
		settings = append(settings, finding.Setting)
	}
	return settings
}

func TestRedisCheck(t *testing.T) {
	t.Parallel()
	safe := []string{"--appendonly", "yes", "--appendfsync", "always"}
	limited := append(slices.Clone(safe), "--maxmemory", "100mb", "--maxmemory-policy")
	for name, test := range map[string]struct {
		args     []string
		findings []string
	}{
		"safe":                     {safe, nil},
		"safe with a limit":        {append(slices.Clip(limited), "noeviction"), nil},
		"policy without a limit":   {append(slices.Clip(safe), "--maxmemory-policy", "allkeys-lru"), nil},
		"evicts":                   {append(slices.Clip(limited), "allkeys-lru"), []string{"maxmemory_policy"}},
		"evicts what expires":      {append(slices.Clip(limited), "volatile-ttl"), []string{"maxmemory_policy"}},
		"keeps nothing":            {[]string{"--appendfsync", "no"}, []string{"aof_enabled"}},
		"keeps snapshots":          {[]string{"--save", "1 1"}, []string{"aof_enabled"}},
		"synchronises each second": {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, []string{"appendfsync"}},
		"evicts and keeps nothing": {
			[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lfu"},
			[]string{"maxmemory_policy", "aof_enabled"},
		},
		"does not tell": {append(slices.Clip(safe), "--rename-command", "CONFIG", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.findings, unsafeSettings(t, testservice.NewRedisClient(t, servertest.Redis(t, test.args...).Addr())))
		})
	}
	t.Run("replication", func(t *testing.T) {
		master := servertest.Redis(t, safe...)
		host, port, err := net.SplitHostPort(master.Addr())
		require.NoError(t, err)
		replica := servertest.Redis(t, append(slices.Clip(safe), "--replicaof", host, port)...)
		client := testservice.NewRedisClient(t, master.Addr())
		require.Eventually(t, func() bool {
			return strings.Contains(client.Info(t.Context(), "replication").Val(), "connected_slaves:1")
		}, 10*time.Second, 10*time.Millisecond)
		require.Equal(t, []string{"role"}, unsafeSettings(t, testservice.NewRedisClient(t, replica.Addr())))
		require.Equal(t, []string{"min-replicas-to-write"}, unsafeSettings(t, client))
		require.NoError(t, client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		require.Equal(t, []string{"min-replicas-to-write"}, unsafeSettings(t, client), "it narrows what a failover loses")
	})
	t.Run("version", func(t *testing.T) {
		for version, findings := range map[string][]string{
			"5.0.14": {"redis_version"}, "6.2.20": {"redis_version"}, "7.0.15": nil, "10.0.1": nil,
		} {
			client := testservice.NewRedisClient(t, "127.0.0.1:1", testservice.WithContextTimeout)
			client.AddHook(infoHook("redis_version:" + version + "\r\nrole:master\r\n"))
			require.Equal(t, findings, unsafeSettings(t, client), version)
		}
	})
	t.Run("every master of a cluster", func(t *testing.T) {
		masters := servertest.RedisCluster(t)
		client := testservice.NewClusterClient(t, masters)
		require.Equal(t, []string{"aof_enabled", "aof_enabled", "aof_enabled"}, unsafeSettings(t, client))
		for _, master := range masters {
			node := testservice.NewRedisClient(t, master.Addr())
			require.NoError(t, node.ConfigSet(t.Context(), "appendonly", "yes").Err())
			require.NoError(t, node.ConfigSet(t.Context(), "appendfsync", "always").Err())
		}
		require.Empty(t, unsafeSettings(t, client))
	})
	t.Run("miniredis", func(t *testing.T) {
		_, client := testservice.NewMiniredis(t)
		require.Empty(t, unsafeSettings(t, client))
	})
	t.Run("no server", func(t *testing.T) {
		server := servertest.Redis(t)
		client := testservice.NewRedisClient(t, server.Addr())
		server.Close()
		err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(t.Context())
		require.Error(t, err)
		_, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		require.False(t, ok, "that nobody answers is not a setting: %v", err)
	})
}

// infoHook answers INFO in place of a server, and CONFIG with an error.
type infoHook string

func (infoHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (infoHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (info infoHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		if cmd, ok := cmd.(*redis.StringCmd); ok {
			cmd.SetVal(string(info))
			return nil
		}
		cmd.SetErr(errors.New("NOPERM"))
		return cmd.Err()
	}
}

// A server that has no memory left refuses new claims; those that it has granted can be settled.
func TestRedisWithoutMemory(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	small := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	big := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
	medium := testservice.MustClaim(t, store, testservice.NumberedKey(5), testservice.AttemptFor(time.Hour))
	released := testservice.MustClaim(t, store, testservice.NumberedKey(3), testservice.AttemptFor(time.Hour))
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err()) // byte

	_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(4), testservice.AttemptFor(time.Hour))
	require.Nil(t, claim)
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	require.NoError(t, small.Extend(t.Context(), time.Minute))
	require.NoError(t, small.Complete(t.Context(), testservice.BodyOf(100), time.Hour))
	require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body, 100)
	require.NoError(t, medium.Complete(t.Context(), testservice.BodyOf(7<<10), time.Hour))
	require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(5)).Response.Body, 7<<10)
	require.NoError(t, released.Release(t.Context(), time.Hour))
	testservice.MustClaim(t, store, testservice.NumberedKey(3), testservice.AttemptFor(time.Hour)) // in the room of the record that was released
	require.NoError(t, big.Complete(t.Context(), large(), time.Hour))
	require.Equal(t, &idempotency.Response{Status: http.StatusCreated, Omitted: true},
		testservice.MustRead(t, store, testservice.NumberedKey(2)).Response)
}

// While a slot moves from one server to another, nothing that concerns its keys fails.
func TestRedisSlotOnTheMove(t *testing.T) {
	t.Parallel()
	masters := servertest.RedisCluster(t)
	client := testservice.NewClusterClient(t, masters)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "{one slot}:"})
	finished := testservice.NumberedKey(0)
	require.NoError(t, testservice.MustClaim(t, store, finished, testservice.AttemptFor(time.Hour)).Complete(t.Context(), large(), time.Hour))
	steps := map[string]func(idempotency.Claim) error{
		"extension":        func(c idempotency.Claim) error { return c.Extend(t.Context(), time.Minute) },
		"release":          func(c idempotency.Claim) error { return c.Release(t.Context(), time.Hour) },
		"completion":       func(c idempotency.Claim) error { return c.Complete(t.Context(), testservice.BodyOf(1), time.Hour) },
		"large completion": func(c idempotency.Claim) error { return c.Complete(t.Context(), large(), time.Hour) },
	}
	before := map[string]idempotency.Claim{}
	for name := range steps {
		before[name] = testservice.MustClaim(t, store, idempotency.Key{ID: "before " + name}, testservice.AttemptFor(time.Hour))
	}

	slot := client.ClusterKeySlot(t.Context(), "{one slot}:").Val()
	var from, to *redis.Client
	for _, master := range masters {
		node := testservice.NewRedisClient(t, master.Addr())
		if len(testservice.RedisKeys(t, node, "")) > 0 {
			from = node
		} else {
			to = node
		}
	}
	id := func(node *redis.Client) any { return node.Do(t.Context(), "CLUSTER", "MYID").Val() }
	require.NoError(t, to.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)).Err())
	require.NoError(t, from.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)).Err())

	require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, finished).Response.Body))
	for name, step := range steps {
		require.NoError(t, step(before[name]), name)
		require.NoError(t, step(testservice.MustClaim(t, store, idempotency.Key{ID: "during " + name}, testservice.AttemptFor(time.Hour))), name)
	}
	require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, idempotency.Key{ID: "before large completion"}).Response.Body))
	require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, idempotency.Key{ID: "during large completion"}).Response.Body))
}

// With a prefix that keeps apart what one script works on, no large answer could be stored in a Cluster.
func TestRedisPrefix(t *testing.T) {
	t.Parallel()
	client := testservice.NewClusterClient(t, servertest.RedisCluster(t))
	for prefix, valid := range map[string]bool{
		"": true, "plain:": true, "{one slot}:": true, "{": true, "}": true, "}{": true, "{{": true, "{a}{}": true,
		"{}": false, "{}:": false, "app{}:": false, "}{}": false, "{}{one slot}:": false,
	} {
		t.Run(prefix, func(t *testing.T) {
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
			if valid {
				for i := range 20 { // slots
					testservice.MustComplete(t, store, testservice.NumberedKey(i), large())
				}
				return
			}
			_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
			require.ErrorContains(t, err, "Prefix")
			require.Nil(t, claim)
			require.Equal(t, err, store.Check(t.Context()))
		})
	}
}
