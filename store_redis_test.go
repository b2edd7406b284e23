package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestRedisStoreConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			newStore := func(*testing.T) idempotency.Store {
				return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			}
			idempotencytest.Run(t, newStore)
			idempotencytest.RunSteps(t, newStore)
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		var refused atomic.Int64
		old := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		old.AddHook(oldServer{func(string) {}, &refused})
		svc := testservice.Setup{Store: idempotency.NewRedisStore(old, idempotency.RedisOptions{})}.Guard(t, testservice.EchoOrFail)
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

// The steps of a record that Redis has lost are not those of the next operation with the key.
func TestRedisStepsOfALostRecord(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		key, request := testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)
		old := testservice.MustClaim(t, store, key, request).(idempotency.Checkpointer)
		record := testservice.RedisKeys(t, client, "")[0]
		_, err := old.Checkpoint(t.Context(), "charge", []byte("old"))
		require.NoError(t, err)
		require.NoError(t, client.Del(t.Context(), record).Err())
		require.Len(t, testservice.RedisKeys(t, client, ""), 1, "the steps")

		request.Fingerprint[0]++
		own := testservice.MustClaim(t, store, key, request).(idempotency.Checkpointer)
		found, err := own.Checkpoints(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)
		require.Empty(t, testservice.MustInspect(t, store, key).Steps)
		stored, err := own.Checkpoint(t.Context(), "charge", []byte("new"))
		require.NoError(t, err)
		require.Equal(t, "new", string(stored))
	})
}

// Redis has lost a record, and not what is beside it. The next operation with the key gets none of that, however it ends.
func TestRedisResolutionOfALostRecord(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		ctx, key, request := t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)
		verdict := func(operator string) idempotency.Resolution {
			return idempotency.Resolution{Operator: operator, Reason: "no charge", TTL: time.Hour}
		}
		old := testservice.MustClaim(t, store, key, request).(idempotency.Checkpointer)
		record := testservice.RedisKeys(t, client, "")[0]
		_, err := old.Checkpoint(ctx, "charge", []byte("old"))
		require.NoError(t, err)
		lapse := func() idempotency.Entry {
			require.NoError(t, client.PExpire(ctx, record, 59*time.Minute).Err())
			return testservice.MustInspect(t, store, key)
		}
		require.NoError(t, store.Resolve(ctx, lapse(), verdict("bob")))
		require.Equal(t, "bob", testservice.MustInspect(t, store, key).Resolved.Operator)
		require.NoError(t, client.Del(ctx, record).Err())

		request.Fingerprint[0]++
		testservice.MustClaim(t, store, key, request)
		entry := lapse()
		require.Equal(t, idempotency.StateAbandoned, entry.State)
		require.Nil(t, entry.Resolved)
		require.NoError(t, store.Resolve(ctx, entry, verdict("carol")))
		entry = testservice.MustInspect(t, store, key)
		require.Equal(t, "carol", entry.Resolved.Operator)
		require.Empty(t, entry.Steps)
		require.NoError(t, client.Del(ctx, record).Err())

		request.Fingerprint[0]++
		claim := testservice.MustClaim(t, store, key, request)
		require.NoError(t, claim.Complete(ctx, testservice.BodyOf(3), time.Hour))
		require.Nil(t, testservice.MustInspect(t, store, key).Resolved)
	})
}

// A damaged resolution is told as damage. The operation goes on: no request reads who has resolved it.
func TestRedisDamagedResolution(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		ctx, key := t.Context(), testservice.NumberedKey(1)
		testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		record := testservice.RedisKeys(t, client, "")[0]
		require.NoError(t, client.PExpire(ctx, record, 59*time.Minute).Err())
		resolution := idempotency.Resolution{Operator: "bob", TTL: time.Hour}
		require.NoError(t, store.Resolve(ctx, testservice.MustInspect(t, store, key), resolution))
		require.NoError(t, client.HSet(ctx, record+":steps", " resolved", "resolved/2").Err())
		entry, err := store.Inspect(ctx, key)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Equal(t, idempotency.StateReleased, entry.State)
		require.Nil(t, entry.Resolved)
		claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		require.NoError(t, claim.Complete(ctx, testservice.BodyOf(3), time.Hour))
		require.Equal(t, testservice.BodyOf(3).Body, testservice.MustRead(t, store, key).Response.Body)
	})
}

// The expiry of a running record tells the age of its lease.
func TestRedisLeaseIsToldByTheExpiry(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
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
			const slack = 15 * time.Second // lost when it is asked for, however slow the machine is
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

// A record that cannot be read is no reason to run the handler, not even with FailOpen, nor to write over it.
func TestRedisRecordThatCannotBeRead(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		steps := map[string]func(context.Context, idempotency.Claim) error{
			"Extend":  func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Minute) },
			"Release": func(ctx context.Context, c idempotency.Claim) error { return c.Release(ctx, time.Hour) },
			"Complete": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, testservice.BodyOf(1), time.Hour)
			},
			"Complete with a large body": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, testservice.Large(), time.Hour)
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		client.Options().ContextTimeoutEnabled = true // so that the store uses this client, with its hooks
		client.AddHook(withoutIFEQHook{func(string) {}})
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

		require.ErrorIs(t, overtaken.Complete(t.Context(), testservice.Large(), time.Hour), idempotency.ErrClaimLost)
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a claim that was lost")
		require.NoError(t, owner.Complete(t.Context(), testservice.Large(), time.Hour))
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a completion")
		require.InDelta(t, time.Hour, client.PTTL(t.Context(), name[0]).Val(), float64(10*time.Second))
		require.NoError(t, owner.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		require.NoError(t, owner.Complete(t.Context(), testservice.Large(), time.Hour))
		require.Equal(t, name, testservice.RedisKeys(t, client, ""), "of a repetition")
		require.Equal(t, testservice.LargeBody, string(testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body))

		// The owner disappears behind the first of the two commands.
		cut := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		cut.AddHook(withoutIFEQHook{func(string) {}})
		cut.AddHook(firstCommandHook{func(string) {}})
		store = idempotency.NewRedisStore(cut, idempotency.RedisOptions{})
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, claim.Complete(t.Context(), testservice.Large(), time.Hour), errCut)
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, test := range map[string]struct {
			meanwhile func(t *testing.T, owner idempotency.Claim)
			attempt   int // that is claimed, or 0 if there is an answer
		}{
			"completed": {func(t *testing.T, owner idempotency.Claim) {
				require.NoError(t, owner.Complete(t.Context(), testservice.Large(), time.Hour))
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

// firstCommandHook is a hook that sends only the first command of a pipeline, if the pipeline begins with SET.
type firstCommandHook struct{ testservice.BeforeEach }

func (firstCommandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "set" { // go-redis opens connections by other pipelines
			return next(ctx, cmds)
		}
		return errors.Join(next(ctx, cmds[:1]), errCut)
	}
}

// withoutIFEQHook is a hook that answers SET with IFEQ like a server that does not support IFEQ.
type withoutIFEQHook struct{ testservice.BeforeEach }

func (withoutIFEQHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isSwap(cmd) {
			cmd.SetErr(redisError("ERR syntax error"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func isSwap(cmd redis.Cmder) bool { return cmd.Name() == "set" && cmd.Args()[3] == "ifeq" }

// redisError is an error of a server.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// abortingHook is a hook that aborts the first large completion, and keeps the arguments of this completion.
type abortingHook struct {
	testservice.BeforeEach
	ifeq     bool // the server has it
	kept, as []byte
}

func (g *abortingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !isSwap(cmd) || !g.ifeq {
			return withoutIFEQHook{}.ProcessHook(next)(ctx, cmd)
		}
		if g.giveUp(cmd) {
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (g *abortingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "set" && g.giveUp(cmds[0]) { // not what go-redis sends to open a connection
			return errCut
		}
		return next(ctx, cmds)
	}
}

// giveUp reports whether cmd is the first completion, and keeps the record in cmd.
func (g *abortingHook) giveUp(cmd redis.Cmder) bool {
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
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for _, ifeq := range []bool{false, true} {
			hooked := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
			hook := &abortingHook{BeforeEach: func(string) {}, ifeq: ifeq}
			hooked.AddHook(hook)
			store := idempotency.NewRedisStore(hooked, idempotency.RedisOptions{Prefix: fmt.Sprint(ifeq)})
			testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.Large())
			for i := range 10 {
				testservice.MustComplete(t, store, testservice.NumberedKey(i+1), testservice.Large())
			}
			require.NotEmpty(t, hook.as)
			require.Equal(t, hook.as, hook.kept)
		}
	})
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
					testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.Large())
				}
				return
			}
			_, _, err := store.Begin(t.Context(), testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
			require.ErrorContains(t, err, "Prefix")
			require.Nil(t, testservice.InDoubt(err))
			require.Equal(t, err, store.Check(t.Context()))
		})
	}
}

// recordStates has functions that turn a completed record into a record in the given state.
var recordStates = map[string]func(record string) string{
	"done":     func(record string) string { return record },
	"running":  func(record string) string { return headInState(record, " running ") },
	"lapsed":   func(record string) string { return replaceWord("lease", "lease=1")(headInState(record, " running ")) },
	"released": func(record string) string { return headInState(record, " released ") },
}

func headInState(record, state string) string {
	head, _, _ := strings.Cut(record, "\n")
	return strings.Replace(head, " done ", state, 1) + "\n"
}

// executeOnce executes an operation, and returns the name of its record and the record.
func executeOnce(t *testing.T, client redis.Cmdable, svc *testservice.Service, prefix, key, body string) (name, record string) {
	t.Helper()
	before := testservice.RedisKeys(t, client, prefix)
	require.Equal(t, http.StatusCreated, svc.Call(key, body).Status)
	for _, name := range testservice.RedisKeys(t, client, prefix) {
		if !strings.Contains(fmt.Sprint(before), name) {
			return name, client.Get(t.Context(), name).Val()
		}
	}
	require.Fail(t, "no record")
	return "", ""
}

// requireLeftAlone sends a request whose key holds an invalid record: the handler does not run, and the record stays.
func requireLeftAlone(t *testing.T, client redis.Cmdable, svc *testservice.Service, name, key, body string) {
	t.Helper()
	runs, before := svc.Runs.Load(), redisContent(t, client, name)
	for range 2 {
		testservice.RequireProblem(t, svc.Call(key, body), http.StatusServiceUnavailable, "store-unavailable")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
	}
	require.Equal(t, runs, svc.Runs.Load())
	require.Equal(t, before, redisContent(t, client, name))
}

// A record under the name of another record is neither replayed nor claimed.
func TestRedisRecordOfAnotherKey(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
			for state, as := range recordStates {
				t.Run(size+" "+state, func(t *testing.T) {
					prefix := fmt.Sprintf("%x:", t.Name())
					store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
					svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
					theirs, record := executeOnce(t, client, svc, prefix, "theirs", body)
					own, _ := executeOnce(t, client, svc, prefix, "own", body)
					require.NoError(t, client.Set(t.Context(), theirs, as(record), redis.KeepTTL).Err())
					require.EqualValues(t, 1, client.Copy(t.Context(), theirs, own, 0, true).Val())

					requireLeftAlone(t, client, svc, own, "own", body)
				})
			}
		}
	})
}

// The owner of a claim does not overwrite the record of another key.
func TestRedisClaimFindsRecordOfAnotherKey(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for state, as := range recordStates {
			t.Run(state, func(t *testing.T) {
				prefix := fmt.Sprintf("%x:", t.Name())
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
				testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(1))
				theirs := testservice.RedisKeys(t, client, prefix)[0]
				record := client.Get(t.Context(), theirs).Val()
				require.NoError(t, client.Del(t.Context(), theirs).Err())
				claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
				own := testservice.RedisKeys(t, client, prefix)[0]
				require.NoError(t, client.Set(t.Context(), own, as(record), time.Hour).Err())
				before := redisContent(t, client, own)

				require.ErrorIs(t, claim.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(2), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.Large(), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Release(t.Context(), time.Hour), idempotency.ErrClaimLost)
				require.Equal(t, before, redisContent(t, client, own))
				require.Equal(t, []string{own}, testservice.RedisKeys(t, client, prefix))
			})
		}
	})
}

// replaceWord returns a function that replaces the word with the given name in a head.
func replaceWord(name, with string) func(string) string {
	return func(record string) string {
		start := strings.Index(record, name+"=")
		end := start + strings.IndexAny(record[start:], " \n")
		return record[:start] + with + record[end:]
	}
}

// appendToHead returns a function that appends text to a head.
func appendToHead(text string) func(string) string {
	return func(record string) string { return strings.Replace(record, "\n", text+"\n", 1) }
}

var (
	many9s = strings.Repeat("9", 25)
	digits = strings.Repeat("0123456789abcdef", 4)
)

// malformed has changes that make a head invalid in every state, because the scripts never write such a head.
var malformed = map[string]func(record string) string{
	"attempt 00":                 replaceWord("attempt", "attempt=00"),
	"attempt of 11 digits":       replaceWord("attempt", "attempt=00000000001"),
	"lease with zeros before it": replaceWord("lease", "lease=00000000000000"),
	"ttl with zeros before it":   replaceWord("ttl", "ttl=00000000000000"),
	"ttl of 14 digits":           replaceWord("ttl", "ttl=10000000000000"),
	"ttl of 25 digits":           replaceWord("ttl", "ttl="+many9s),
	"ttl -1":                     replaceWord("ttl", "ttl=-1"),
	"ttl 1e3":                    replaceWord("ttl", "ttl=1e3"),
	"no ttl":                     replaceWord("ttl", "ttl="),
	"created at zeros and 1":     replaceWord("created", "created=00000000000001"),
	"attempt -1":                 replaceWord("attempt", "attempt=-1"),
	"attempt +1":                 replaceWord("attempt", "attempt=+1"),
	"attempt 1.5":                replaceWord("attempt", "attempt=1.5"),
	"attempt 1e3":                replaceWord("attempt", "attempt=1e3"),
	"attempt 0x1":                replaceWord("attempt", "attempt=0x1"),
	"no attempt":                 replaceWord("attempt", "attempt="),
	"attempt beyond 2^31":        replaceWord("attempt", "attempt=2147483648"),
	"attempt beyond 2^32":        replaceWord("attempt", "attempt=4294967297"),
	"attempt beyond 2^53":        replaceWord("attempt", "attempt=9007199254740993"),
	"attempt of 2^63":            replaceWord("attempt", "attempt=9223372036854775808"),
	"attempt of 25 digits":       replaceWord("attempt", "attempt="+many9s),
	"attempt twice":              replaceWord("attempt", "attempt=1 attempt=1"),
	"lease of 14 digits":         replaceWord("lease", "lease=10000000000000"),
	"lease of 25 digits":         replaceWord("lease", "lease="+many9s),
	"lease -1":                   replaceWord("lease", "lease=-1"),
	"lease +1":                   replaceWord("lease", "lease=+1"),
	"lease 1e3":                  replaceWord("lease", "lease=1e3"),
	"no lease":                   replaceWord("lease", "lease="),
	"created at 14 digits":       replaceWord("created", "created=10000000000000"),
	"created at 25 digits":       replaceWord("created", "created="+many9s),
	"created at -1":              replaceWord("created", "created=-1"),
	"created at 1e3":             replaceWord("created", "created=1e3"),
	"created never":              replaceWord("created", "created="),
	"created now":                replaceWord("created", "created=now"),
	"token too short":            replaceWord("token", "token=0"),
	"token too long":             replaceWord("token", "token="+digits),
	"token a pattern":            replaceWord("token", "token=%x+"),
	"token in upper case":        replaceWord("token", "token="+strings.ToUpper(digits[:32])),
	"no key":                     func(record string) string { return replaceWord("key", "")(strings.Replace(record, " key", "key", 1)) },
	"key too short":              replaceWord("key", "key=0"),
	"key too long":               replaceWord("key", "key="+digits),
	"key of nobody":              replaceWord("key", "key="+digits[:32]),
	"fingerprint too short":      replaceWord("fingerprint", "fingerprint=0"),
	"another word":               appendToHead(" more=1"),
	"a space at the end":         appendToHead(" "),
	"CR LF":                      appendToHead("\r"),
	"a zero byte":                appendToHead("\x00"),
	"magic in upper case":        func(record string) string { return strings.Replace(record, "idempotency", "Idempotency", 1) },
}

// behindHead is what may follow the head of a completed record only.
var behindHead = map[string]string{"a digit": "0", "digits": "1763712000000", "a line": "line\n", "a response": goldenResponse}

// A head that no script has written is no reason to run the handler, and no script makes it worse.
func TestRedisMalformedHead(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
		name, record := executeOnce(t, client, svc, "", "key", "body")
		refused := func(t *testing.T, value string) {
			require.NotEqual(t, record, value)
			require.NoError(t, client.Set(t.Context(), name, value, time.Hour).Err())
			requireLeftAlone(t, client, svc, name, "key", "body")
		}
		for state, as := range recordStates {
			if state != "released" { // and what is released with this attempt is free
				t.Run(state+", attempt 0", func(t *testing.T) { refused(t, replaceWord("attempt", "attempt=0")(as(record))) })
			}
			for fault, damage := range malformed {
				t.Run(state+", "+fault, func(t *testing.T) { refused(t, damage(as(record))) })
			}
			for what, rest := range behindHead {
				if state != "done" {
					t.Run(state+", "+what+" behind it", func(t *testing.T) { refused(t, as(record)+rest) })
				}
			}
		}
	})
}

// The number of the last attempt is as good as any other, but has no successor.
func TestRedisLastAttempt(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := testservice.Setup{Store: store}.Guard(t, testservice.AttemptNumber)
		require.Equal(t, "attempt 1", svc.Call("key", "").Body)
		name := testservice.RedisKeys(t, client, "")[0]
		record := recordStates["released"](client.Get(t.Context(), name).Val())
		require.NoError(t, client.Set(t.Context(), name, replaceWord("attempt", "attempt=2147483646")(record), time.Hour).Err())

		require.Equal(t, "attempt 2147483647", svc.Call("key", "").Body)
		require.True(t, svc.Call("key", "").Replayed())
		released := recordStates["released"](client.Get(t.Context(), name).Val())
		require.NoError(t, client.Set(t.Context(), name, released, time.Hour).Err())
		testservice.RequireProblem(t, svc.Call("key", ""), http.StatusConflict, "outcome-unknown")
		require.Equal(t, released, client.Get(t.Context(), name).Val())
	})
}

func TestRedisInspectorConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			newStore := func(*testing.T) idempotency.Store { return newScopedStore(client) }
			idempotencytest.RunInspector(t, newStore)
			idempotencytest.RunResolver(t, newStore)
		})
	}
	conforms("miniredis", func(t *testing.T) redis.Cmdable {
		_, client := testservice.NewMiniredis(t)
		return client
	})
	conforms("server", func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr())
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
	conforms("server that forgets the scripts before each command", func(t *testing.T) redis.Cmdable {
		server := servertest.Redis(t)
		client, other := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout), testservice.NewRedisClient(t, server.Addr())
		client.AddHook(testservice.BeforeEach(func(string) { other.ScriptFlush(t.Context()) }))
		return client
	})
}

// newScopedStore returns a store with a prefix of its own, all of whose characters stand for themselves.
func newScopedStore(client redis.Cmdable) *idempotency.RedisStore {
	return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: `*?[a]\` + uuid.NewString() + ":"})
}

// listedDigests returns the digests of a listing, in its order.
func listedDigests(listing idempotency.Listing) (all [][sha256.Size]byte) {
	for _, e := range listing.Entries {
		all = append(all, e.Digest)
	}
	return all
}

// What somebody else has put under the name of a record is neither shown nor forgotten, and hides no other record.
func TestRedisInspectsForeignValues(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(10))
		healthy := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		name := testservice.RedisKeys(t, client, "")[0]
		record := client.Get(t.Context(), name).Val()
		testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(10))
		damaged := otherRecordName(t, client, name)

		values := map[string]any{"record of another key": record}
		for what, value := range foreign {
			values[what] = value
		}
		for what, damage := range damages {
			values[what] = damage(client.Get(t.Context(), damaged).Val())
		}
		for what, value := range values {
			t.Run(what, func(t *testing.T) {
				putForeign(t, client, damaged, value)
				before := redisContent(t, client, damaged)

				entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Equal(t, testservice.NumberedKey(1).Digest(), entry.Digest)
				require.Nil(t, entry.Response)
				require.Empty(t, entry.Note)
				if entry.State == "" {
					require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrRecordInvalid)
					entry.Created, entry.Attempt = healthy.Created, 1
					for _, entry.State = range []idempotency.State{
						idempotency.StateReleased, idempotency.StateAbandoned, idempotency.StateCompleted, idempotency.StateRunning,
					} {
						require.Error(t, store.Forget(t.Context(), entry))
					}
				}
				require.Equal(t, before, redisContent(t, client, damaged))

				listing := testservice.MustList(t, store)
				if what == "with another byte" { // which is in the body
					require.Len(t, listing.Entries, 2)
					require.Zero(t, listing.Unreadable)
					return
				}
				require.Equal(t, [][sha256.Size]byte{healthy.Digest}, listedDigests(listing))
				require.Equal(t, 1, listing.Unreadable)
				require.Equal(t, map[idempotency.State]idempotency.Total{
					idempotency.StateCompleted: {Records: 1, Bytes: healthy.Size},
				}, listing.Totals)
			})
		}
	})
}

// otherRecordName returns the name of the only record besides than.
func otherRecordName(t testing.TB, client redis.Cmdable, than string) string {
	t.Helper()
	for _, name := range testservice.RedisKeys(t, client, "") {
		if name != than {
			return name
		}
	}
	require.Fail(t, "no other key")
	return ""
}

// A completed record with a damaged answer can be forgotten, with the entry that Inspect has returned.
func TestRedisForgetsDamagedAnswer(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(10))
		name := testservice.RedisKeys(t, client, "")[0]
		putForeign(t, client, name, damages["cut in its response"](client.Get(t.Context(), name).Val()))

		entry, err := store.Inspect(t.Context(), testservice.NumberedKey(0))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Equal(t, idempotency.StateCompleted, entry.State)
		require.Equal(t, 1, entry.Attempt)
		require.NoError(t, store.Forget(t.Context(), entry))
		testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
	})
}

// List leaves out staged records, the records of stores with other prefixes, and keys with similar names.
func TestRedisListsItsOwnRecords(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "a:"})
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(10))
		name := testservice.RedisKeys(t, client, "")[0]
		record := client.Get(t.Context(), name).Val()
		digest := name[len("a:{") : len(name)-1]
		for _, other := range []string{
			name + strings.Repeat("0", 32), "a:" + digest, "a:{" + digest[1:] + "}", "a:{" + digest + "0}", "b:{" + digest + "}",
			"a:{" + strings.Repeat("x", 64) + "}", "a:{" + strings.ToUpper(digest) + "}", "a:b:{" + digest + "}", "A:{" + digest + "}",
		} {
			require.NoError(t, client.Set(t.Context(), other, record, 0).Err())
		}
		for _, prefix := range []string{"*:", "?:", "[a-z]:", "a:{b}"} {
			testservice.MustComplete(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix}), testservice.NumberedKey(1), testservice.BodyOf(1))
		}
		for _, prefix := range []string{"a:", "*:", "?:", "[a-z]:", "a:{b}"} {
			listing := testservice.MustList(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix}))
			require.Len(t, listing.Entries, 1, prefix)
			require.Zero(t, listing.Unreadable, prefix)
		}
	})
}

// commandCounter is a hook that counts commands by name, and answers each SCAN with every name twice, as a server may.
type commandCounter struct {
	mu   *sync.Mutex
	sent map[string]int
}

func (c commandCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.countCommand(cmd)
		err := next(ctx, cmd)
		if scan, ok := cmd.(*redis.ScanCmd); ok && err == nil {
			names, cursor := scan.Val()
			scan.SetVal(slices.Concat(names, names), cursor)
		}
		return err
	}
}

func (c commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.countCommand(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c commandCounter) countCommand(cmd redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[cmd.Name()]++
}

// List reads the starts of as many records as it is asked to, and no whole record. A name that SCAN shows twice counts once.
func TestRedisListIsBounded(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		const n = 250
		watched := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		sent := commandCounter{new(sync.Mutex), make(map[string]int)}
		watched.AddHook(sent)
		store := idempotency.NewRedisStore(watched, idempotency.RedisOptions{})
		for i := range n {
			testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.Large())
		}
		for scan, partial := range map[int]bool{1: true, n - 1: true, n: false, n + 1: false, 0: false} {
			clear(sent.sent)
			listing, err := store.List(t.Context(), idempotency.ListRequest{Scan: scan, Limit: 7})
			require.NoError(t, err)
			want := n
			if partial {
				want = scan
			}
			require.Equal(t, partial, listing.Partial, scan)
			require.Equal(t, want, listing.Totals[idempotency.StateCompleted].Records, scan)
			require.Len(t, listing.Entries, min(want, 7))
			require.Zero(t, sent.sent["get"])
			require.Equal(t, want, sent.sent["getrange"], scan)
		}
	})
}

// A record without an expiry counts from now, as for Begin. To inspect it leaves it as it is.
func TestRedisInspectsRecordWithoutExpiry(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
		name := testservice.RedisKeys(t, client, "")[0]
		require.NoError(t, client.Persist(t.Context(), name).Err())
		for _, entry := range []idempotency.Entry{testservice.MustInspect(t, store, testservice.NumberedKey(0)), testservice.MustList(t, store).Entries[0]} {
			require.Equal(t, idempotency.StateRunning, entry.State)
			require.Equal(t, time.Minute, entry.LeaseLeft)
			require.Zero(t, entry.Remaining)
			require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrInProgress)
		}
		require.Equal(t, time.Duration(-1), client.TTL(t.Context(), name).Val())
	})
}

// A Forget whose reply was lost has removed the record: to repeat it is no failure.
func TestRedisForgetsThoughTheReplyIsLost(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		cut := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		store := idempotency.NewRedisStore(cut, idempotency.RedisOptions{})
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(1))
		entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		require.NoError(t, store.Forget(t.Context(), entry)) // the server knows the script now
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(1))
		entry = testservice.MustInspect(t, store, testservice.NumberedKey(0))
		lost := &droppedReplyHook{}
		cut.AddHook(lost)
		require.NoError(t, store.Forget(t.Context(), entry))
		require.Equal(t, int64(2), lost.sent.Load())
		require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrNoRecord)
	})
}

// droppedReplyHook is a hook that drops the reply to the first script.
type droppedReplyHook struct {
	testservice.BeforeEach
	sent atomic.Int64
}

func (l *droppedReplyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && l.sent.Add(1) == 1 {
			cmd.SetErr(errCut)
			return errCut
		}
		return err
	}
}

func (l *droppedReplyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// List returns errors.ErrUnsupported for requests that the store cannot answer.
func TestRedisListUnsupported(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	_, err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).
		List(t.Context(), idempotency.ListRequest{User: "alice"})
	require.ErrorIs(t, err, errors.ErrUnsupported)

	masters := servertest.RedisCluster(t)
	pipeliner, err := testservice.NewClusterClient(t, masters).AutoPipeline()
	require.NoError(t, err)
	for name, client := range map[string]redis.Cmdable{
		"pipeliner": pipeliner, "client of one server": testservice.NewRedisClient(t, masters[0].Addr()),
		"typed": struct{ redis.Cmdable }{testservice.NewClusterClient(t, masters)},
	} {
		_, err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).List(t.Context(), idempotency.ListRequest{})
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "ClusterClient", name)
	}
	store := idempotency.NewRedisStore(pipeliner, idempotency.RedisOptions{})
	testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.Large())
	entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
	require.Equal(t, testservice.LargeBody, string(entry.Response.Body))
	require.NoError(t, store.Forget(t.Context(), entry))
}

// No step of an inspector outlasts its context, and each says what is wrong with the options of the store.
func TestRedisInspectorFails(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tested := range map[string]struct {
		store *idempotency.RedisStore
		ctx   context.Context
		says  string
	}{
		"options": {idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: -1}), t.Context(), "Replicas"},
		"context": {idempotency.NewRedisStore(client, idempotency.RedisOptions{}), ended, "canceled"},
		"context, and a client that does not heed it": {idempotency.NewRedisStore(
			struct{ redis.Cmdable }{client}, idempotency.RedisOptions{}), ended, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tested.store.Inspect(tested.ctx, testservice.NumberedKey(0))
			require.ErrorContains(t, err, tested.says)
			_, err = tested.store.List(tested.ctx, idempotency.ListRequest{})
			require.ErrorContains(t, err, tested.says)
			err = tested.store.Forget(tested.ctx, idempotency.Entry{State: idempotency.StateCompleted})
			require.ErrorContains(t, err, tested.says)
		})
	}
}

// redisForm is the head of a record in Redis as record.lua describes it.
var redisForm = regexp.MustCompile(`^idempotency/1 (running|released|done) token=([^ \n]{32}) lease=([0-9]{1,13}) ` +
	`ttl=([0-9]{1,13}) attempt=([0-9]{1,10}) key=([^ \n]+) ` +
	`fingerprint=([0-9a-f]{64}) created=([0-9]{1,13})\n`)

var hexToken = regexp.MustCompile(`^[0-9a-f]{32}$`)

// redisEntry is a record in Redis that was read in another way than the package does.
type redisEntry struct {
	state      string
	isFree     bool // it is what is left of a record whose key was freed
	lease, ttl time.Duration
	record     idempotency.Record
}

// redisEntryOf reads the record of a key. It reports false for what no script writes.
func redisEntryOf(value, key string) (e redisEntry, ok bool) {
	m := redisForm.FindStringSubmatch(value)
	if m == nil || m[6] != key || strings.ContainsAny(m[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		return e, false
	}
	number := func(text string) int64 {
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	rest, attempt := value[len(m[0]):], number(m[5])
	isFree := m[1] == "released" && m[5] == "0"
	if attempt < 1 && !isFree || attempt > math.MaxInt32 {
		return e, false
	}
	e = redisEntry{state: m[1], isFree: isFree, lease: time.Duration(number(m[3])), ttl: time.Duration(number(m[4]))}
	e.record.Attempt, e.record.Created = int(attempt), time.UnixMilli(number(m[8]))
	_, _ = hex.Decode(e.record.Fingerprint[:], []byte(m[7]))
	if e.state != "done" {
		return e, rest == "" && hexToken.MatchString(m[2])
	}
	resp, ok := testservice.ParseResponseByPattern([]byte(rest))
	e.record.Response = &resp
	return e, ok
}

// after returns the record as the store shows it when its expiry is so many milliseconds away.
func (e redisEntry) after(expiry int64) idempotency.Record {
	if e.state == "running" {
		left := max(0, e.lease-(e.ttl-time.Duration(expiry)))
		e.record.LeaseLeft = left * time.Millisecond
	}
	return e.record
}

// FuzzRedisRecord puts anything under the name of a record, and asks the store for it. The store shows what another reader
// sees there, claims what may be claimed, and leaves the rest as it is.
func FuzzRedisRecord(f *testing.F) {
	server := miniredis.RunT(f) // its clock stands still
	server.RequireAuth(servertest.RedisPassword())
	client := testservice.NewRedisClient(f, server.Addr(), testservice.WithContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustComplete(f, store, testservice.NumberedKey(1), frozen)
	name := server.Keys()[0]
	key := strings.TrimPrefix(name, "idempotency:{")[:32]
	done := client.Get(f.Context(), name).Val()
	const expiry = 3_600_000
	for _, as := range recordStates {
		for _, left := range []uint32{expiry, expiry - 59_999, expiry - 60_000, 1} {
			f.Add(as(done), left, true)
			f.Add(as(done), left, false)
		}
		f.Add(replaceWord("fingerprint", "fingerprint="+strings.Repeat("0", 64))(as(done)), uint32(1), true)
		f.Add(replaceWord("attempt", "attempt=2147483647")(as(done)), uint32(1), true)
		f.Add(replaceWord("attempt", "attempt=0")(as(done)), uint32(1), true)
		for _, damage := range malformed {
			f.Add(damage(as(done)), uint32(1), true)
		}
	}
	f.Fuzz(func(t *testing.T, value string, expiry uint32, takeOver bool) {
		expiry = max(expiry, 1)
		require.NoError(t, client.Set(t.Context(), name, value, time.Duration(expiry)*time.Millisecond).Err())
		request := testservice.AttemptFor(time.Hour)
		request.TakeOver = takeOver
		got, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
		entry, ok := redisEntryOf(value, key)
		stored := client.Get(t.Context(), name).Val()
		if !ok {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "%q", value)
			require.Nil(t, claim)
			require.Equal(t, value, stored)
			return
		}
		require.NoError(t, err, "%q", value)
		if entry.isFree {
			require.NotNil(t, claim, "%q", value)
			require.Equal(t, 1, got.Attempt)
			require.WithinDuration(t, time.Now(), got.Created, time.Minute)
			entry, ok = redisEntryOf(stored, key)
			require.True(t, ok, "%q", stored)
			require.Equal(t, got.Created, entry.record.Created)
			require.Equal(t, request.Fingerprint, entry.record.Fingerprint)
			return
		}
		want := entry.after(int64(expiry))
		lapsed := entry.state == "running" && takeOver && want.LeaseLeft == 0
		if !(entry.state == "released" || lapsed) || want.Fingerprint != request.Fingerprint || want.Attempt == math.MaxInt32 {
			require.Nil(t, claim, "%q", value)
			require.Equal(t, want, got)
			require.Equal(t, value, stored)
			return
		}
		require.NotNil(t, claim, "%q", value)
		want.Attempt++
		want.LeaseLeft, want.Remaining = request.Lease, time.Duration(expiry)*time.Millisecond
		require.Equal(t, want, got)
		entry, ok = redisEntryOf(stored, key)
		require.True(t, ok, "%q", stored)
		want.Remaining = 0
		require.Equal(t, want, entry.after(client.PTTL(t.Context(), name).Val().Milliseconds()))
	})
}
