package idempotency_test

import (
	"bytes"
	"context"
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
	runSuite := func(name string, newClient func(*testing.T) redis.Cmdable) {
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
	runSuite("miniredis", func(t *testing.T) redis.Cmdable {
		_, client := testservice.NewMiniredis(t)
		return client
	})
	runSuite("server", func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	})
	runSuite("server with automatic pipelining", func(t *testing.T) redis.Cmdable {
		pipeliner, err := testservice.NewRedisClient(t, servertest.Redis(t).Addr()).AutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	runSuite("server with automatic pipelining that does not wait", func(t *testing.T) redis.Cmdable {
		pipeliner, err := testservice.NewRedisClient(t, servertest.Redis(t).Addr()).AsyncAutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	runSuite("server with the typed commands alone", func(t *testing.T) redis.Cmdable {
		return struct{ redis.Cmdable }{testservice.NewRedisClient(t, servertest.Redis(t).Addr())}
	})
	runSuite("cluster", func(t *testing.T) redis.Cmdable {
		return testservice.NewClusterClient(t, servertest.RedisCluster(t))
	})
	runSuite("server before Redis 7.0", func(t *testing.T) redis.Cmdable {
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr(), testservice.WithContextTimeout)
		client.AddHook(oldServerHook{BeforeEach: func(string) {}})
		return client
	})
	runSuite("server that forgets the scripts before each command", func(t *testing.T) redis.Cmdable {
		server := servertest.Redis(t)
		client := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout)
		other := testservice.NewRedisClient(t, server.Addr())
		client.AddHook(testservice.BeforeEach(func(string) { other.ScriptFlush(t.Context()) }))
		return client
	})
}

// oldServerHook is a hook that answers like a server before Redis 7.0, which refuses SET with both NX and GET.
type oldServerHook struct {
	testservice.BeforeEach
	refusedCommands *atomic.Int64
}

func (h oldServerHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		raw, isClaim := cmd.(*redis.RawCmd)
		if !isClaim {
			return next(ctx, cmd)
		}
		if h.refusedCommands != nil {
			h.refusedCommands.Add(1)
		}
		raw.SetVal([]byte("-ERR syntax error\r\n"))
		return nil
	}
}

// On a server that refuses SET with both NX and GET, the script does all the work.
func TestRedisServerBefore70(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		var refused atomic.Int64
		old := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		old.AddHook(oldServerHook{func(string) {}, &refused})
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

// Redis may lose a record and keep its steps. The next operation with the same key does not get these steps.
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

// Redis may lose a record and keep the steps and the resolution beside the record. The next operation with the same key
// gets neither, in whatever state the next operation ends.
func TestRedisResolutionOfALostRecord(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		ctx, key, request := t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)
		newResolution := func(operator string) idempotency.Resolution {
			return idempotency.Resolution{Operator: operator, Reason: "no charge", TTL: time.Hour}
		}
		old := testservice.MustClaim(t, store, key, request).(idempotency.Checkpointer)
		record := testservice.RedisKeys(t, client, "")[0]
		_, err := old.Checkpoint(ctx, "charge", []byte("old"))
		require.NoError(t, err)
		lapseLease := func() idempotency.Entry {
			require.NoError(t, client.PExpire(ctx, record, 59*time.Minute).Err())
			return testservice.MustInspect(t, store, key)
		}
		require.NoError(t, store.Resolve(ctx, lapseLease(), newResolution("bob")))
		require.Equal(t, "bob", testservice.MustInspect(t, store, key).Resolved.Operator)
		require.NoError(t, client.Del(ctx, record).Err())

		request.Fingerprint[0]++
		testservice.MustClaim(t, store, key, request)
		entry := lapseLease()
		require.Equal(t, idempotency.StateAbandoned, entry.State)
		require.Nil(t, entry.Resolved)
		require.NoError(t, store.Resolve(ctx, entry, newResolution("carol")))
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

// Inspect reports a damaged resolution. Requests continue as usual, because no request reads the resolution.
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

// The store computes the age of a lease from the expiry of the running record.
func TestRedisLeaseIsToldByTheExpiry(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		request := testservice.AttemptFor(time.Hour)
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), request)
		name := testservice.RedisKeys(t, client, "")[0]
		readOnly := request
		readOnly.TakeOver = false
		readLeaseLeft := func() time.Duration {
			record, other, err := store.Begin(t.Context(), testservice.NumberedKey(1), readOnly)
			require.NoError(t, err)
			require.Nil(t, other)
			return record.LeaseLeft
		}
		setExpiry := func(ttl time.Duration) { require.NoError(t, client.PExpire(t.Context(), name, ttl).Err()) }
		requireNear := func(want, got time.Duration) {
			t.Helper()
			const slack = 15 * time.Second // for the time that passes on a slow machine before the answer
			require.LessOrEqual(t, got, want)
			require.Greater(t, got, want-slack)
		}
		requireNear(request.Lease, readLeaseLeft())
		record := client.Get(t.Context(), name).Val()
		setExpiry(request.TTL - 30*time.Second)
		requireNear(request.Lease-30*time.Second, readLeaseLeft())
		setExpiry(request.TTL - request.Lease)
		require.Zero(t, readLeaseLeft(), "it has lapsed")
		require.NoError(t, claim.Extend(t.Context(), request.Lease))
		requireNear(request.Lease, readLeaseLeft())
		require.NoError(t, claim.Extend(t.Context(), 3*request.Lease))
		requireNear(3*request.Lease, readLeaseLeft())
		require.NoError(t, claim.Extend(t.Context(), request.Lease))
		requireNear(3*request.Lease, readLeaseLeft())

		require.NoError(t, client.Persist(t.Context(), name).Err())
		requireNear(request.Lease, readLeaseLeft()) // without an expiry, the lease begins now
		requireNear(request.TTL, client.PTTL(t.Context(), name).Val())
		require.Equal(t, record, client.Get(t.Context(), name).Val(), "a record changed while its claim lasted")
	})
}

// The proxy counts the round trips of each request on the connection.
func TestRedisRoundTrips(t *testing.T) {
	t.Parallel()
	proxy := servertest.NewProxy(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, proxy.Addr()), idempotency.RedisOptions{})
	post := func(body string) func(*testservice.Service, string) {
		return func(svc *testservice.Service, key string) { svc.Call(key, body) }
	}
	for i, test := range []struct {
		name           string
		prepare        func(*testservice.Service, string)
		sendRequests   func(*testservice.Service, string)
		wantRoundTrips int
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
		{"claim, in progress, completion", nil, post("again"), 4}, // the refusal in-progress takes 2
		{"claim, release", nil, post("fail"), 2},
		{"claim of a released key, release", post("fail"), post("fail"), 3},
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
			var roundTrips int
			for _, key := range []string{fmt.Sprint("warm", i), fmt.Sprint(i)} { // the first key loads the scripts
				if test.prepare != nil {
					test.prepare(svc, key)
				}
				flights := proxy.Flights()
				test.sendRequests(svc, key)
				roundTrips = proxy.Flights() - flights
			}
			require.Equal(t, test.wantRoundTrips, roundTrips)
		})
	}
}

// goldenHead is the first line of a record, with placeholders for the parts that are different in each run.
const goldenHead = "idempotency/1 %s token=<token> lease=60000 ttl=3600000 attempt=%d " +
	"operation=b24d9d95-4c46-8928-9469-3b1c939f4f3f user=9516b3d00ae328291b352c1cb492c469 " +
	"fingerprint=0100000000000000000000000000000000000000000000000000000000000000 created=<created>\n"

const goldenResponse = "response/1 crc=a8844b8b 201 header=63 trailer=24 body=8\n" +
	"Content-Type: application/json\nSet-Cookie: a=1\nSet-Cookie: b=2\nTrailer\\x3aChecksum: ok\n\n" + `{"id":1}`

// goldenRandom matches the parts of a record that are different in each run.
var goldenRandom = regexp.MustCompile(`token=[0-9a-f]{32} |created=\d{13}\n`)

// The format of a record is fixed, because operators read records with GET in redis-cli, and other releases of this
// package have to read the records too.
func TestRedisRecordIsReadable(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	server.RequireAuth(servertest.RedisPassword())
	server.SetTime(time.UnixMilli(1763712000000))
	client := testservice.NewRedisClient(t, server.Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	requireRecord := func(format string, args ...any) {
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
	requireRecord(goldenHead, "running", 1)
	require.NoError(t, claim.Extend(t.Context(), 2*time.Minute))
	requireRecord(goldenHead, "running", 1)
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	requireRecord(goldenHead, "released", 1)
	claim = testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	requireRecord(goldenHead, "running", 2)
	resp := idempotency.Response{
		Status:  http.StatusCreated,
		Header:  idempotency.NewFields(http.Header{"Content-Type": {"application/json"}, "Set-Cookie": {"a=1", "b=2"}}),
		Trailer: idempotency.NewFields(http.Header{http.TrailerPrefix + "Checksum": {"ok"}}),
		Body:    []byte(`{"id":1}`),
	}
	require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
	requireRecord(goldenHead+goldenResponse, "done", 2)
	require.Equal(t, &resp, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response)
}

// readRedisValue returns type and content of the value with the given name, and whether the value expires.
func readRedisValue(t testing.TB, client redis.Cmdable, name string) string {
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

// foreignValues are values that are no records, and that another program may have stored under the name of a record.
var foreignValues = map[string]any{
	"text":            "hello",
	"empty text":      "",
	"much text":       testservice.LargeBody,
	"lines":           strings.Repeat("idempotency/1\n", 100),
	"no line":         "idempotency/1 done " + testservice.LargeBody,
	"unknown version": "idempotency/2 done lease=0 token=0 attempt=1 fingerprint=0 created=0\n",
	"hash":            map[string]any{"state": "done"},
	"list":            []any{"idempotency/1"},
}

// replaceRedisValue stores a string, hash or list under name.
func replaceRedisValue(t testing.TB, client redis.Cmdable, name string, value any) {
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

// damages are changes that damage a completed record. The store detects each of them.
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

// If the record of a key cannot be read, the store refuses the request, even with FailOpen, and keeps the value as it is.
func TestRedisRecordThatCannotBeRead(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		requireRefusal := func(name, body string, damageRecord func(*testing.T, string)) {
			t.Run(name, func(t *testing.T) {
				prefix := fmt.Sprintf("%x:", name)
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
				svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
				require.Equal(t, http.StatusCreated, svc.Call("key", body).Status)
				keys := testservice.RedisKeys(t, client, prefix)
				require.Len(t, keys, 1)
				damageRecord(t, keys[0])
				before := readRedisValue(t, client, keys[0])

				testservice.RequireProblem(t, svc.Call("key", body), http.StatusServiceUnavailable, "store-unavailable")
				require.EqualValues(t, 1, svc.Runs.Load())
				require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
				require.Equal(t, before, readRedisValue(t, client, keys[0]))
			})
		}
		for name, value := range foreignValues {
			requireRefusal(name, "body", func(t *testing.T, key string) { replaceRedisValue(t, client, key, value) })
		}
		requireRefusal("running record with another line", "body", func(t *testing.T, key string) {
			head, _, _ := strings.Cut(client.Get(t.Context(), key).Val(), "\n")
			head = strings.Replace(head, " done lease=0 ", " running lease=9999999999999 ", 1)
			require.NoError(t, client.Set(t.Context(), key, head+"\nline", redis.KeepTTL).Err())
		})
		for name, damage := range damages {
			for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
				requireRefusal(size+" record "+name, body, func(t *testing.T, key string) {
					record := client.Get(t.Context(), key).Val()
					require.NoError(t, client.Set(t.Context(), key, damage(record), redis.KeepTTL).Err())
				})
			}
		}
	})
}

// The owner of a claim does not overwrite a value that is not a record.
func TestRedisClaimFindsForeignValue(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		claimCalls := map[string]func(context.Context, idempotency.Claim) error{
			"Extend": func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Minute) },
			"Release": func(ctx context.Context, c idempotency.Claim) error {
				return c.Release(ctx, idempotency.Release{TTL: time.Hour})
			},
			"Complete": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, testservice.BodyOf(1), time.Hour)
			},
			"Complete with a large body": func(ctx context.Context, c idempotency.Claim) error {
				return c.Complete(ctx, testservice.Large(), time.Hour)
			},
		}
		for kind, value := range foreignValues {
			for name, call := range claimCalls {
				t.Run(name+" finds "+kind, func(t *testing.T) {
					prefix := fmt.Sprintf("%x:", t.Name())
					store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
					claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					key := testservice.RedisKeys(t, client, prefix)[0]
					replaceRedisValue(t, client, key, value)
					before := readRedisValue(t, client, key)
					operation := testservice.NumberedKey(1).OperationID().String()
					require.Contains(t, key, operation)
					err := call(t.Context(), claim)
					require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
					require.NotContains(t, err.Error(), operation, "by which a reader of a log could confirm a guess")
					require.Equal(t, before, readRedisValue(t, client, key))
				})
			}
		}
	})
}

// The names of records contain the ID of the operation, and no byte that a client has chosen. Such bytes could select the slot
// in a cluster, or collide with the record of another client.
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
				require.Regexp(t, `^`+prefix+`\{[0-9a-f-]{36}\}$`, key)
			}
		}
	})
}

// A large record is staged under a second name in the slot of its key. Complete removes the staged record. If the owner
// disappears before that, the staged record expires after a minute.
func TestRedisStaging(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		client.Options().ContextTimeoutEnabled = true // so that the store uses this client, with its hooks
		client.AddHook(withoutIFEQHook{func(string) {}})
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		shortLease := testservice.AttemptFor(time.Hour)
		shortLease.Lease = time.Millisecond

		overtaken := testservice.MustClaim(t, store, testservice.NumberedKey(1), shortLease)
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

		// The connection of the owner breaks after the first of the two commands.
		cut := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		cut.AddHook(withoutIFEQHook{func(string) {}})
		cut.AddHook(firstCommandHook{func(string) {}})
		store = idempotency.NewRedisStore(cut, idempotency.RedisOptions{})
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, claim.Complete(t.Context(), testservice.Large(), time.Hour), errCut)
		staged := testservice.RedisKeys(t, client, "")
		require.Len(t, staged, 3)
		for _, key := range staged {
			require.Regexp(t, `^idempotency:\{[0-9a-f-]{36}\}([0-9a-f]{32})?$`, key, "the hash tag is the same")
			if !strings.HasSuffix(key, "}") {
				require.InDelta(t, time.Minute, client.PTTL(t.Context(), key).Val(), float64(10*time.Second))
			}
		}
	})
}

// Begin reads a running or released record a second time, in a script. Between both commands, the owner may complete or
// release the record, or the record may disappear.
func TestRedisRecordChangesBetweenTheSteps(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, test := range map[string]struct {
			changeRecord func(t *testing.T, owner idempotency.Claim)
			wantAttempt  int // 0 if Begin returns the answer instead of a claim
		}{
			"completed": {func(t *testing.T, owner idempotency.Claim) {
				require.NoError(t, owner.Complete(t.Context(), testservice.Large(), time.Hour))
			}, 0},
			"released": {func(t *testing.T, owner idempotency.Claim) {
				require.NoError(t, owner.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			}, 2},
			"forgotten": {func(t *testing.T, _ idempotency.Claim) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
			}, 1},
		} {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				ownerStore := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
				owner := testservice.MustClaim(t, ownerStore, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
				slow := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
				var once sync.Once
				slow.AddHook(testservice.BeforeEach(func(command string) {
					if command == "evalsha" {
						once.Do(func() { test.changeRecord(t, owner) })
					}
				}))
				store := idempotency.NewRedisStore(slow, idempotency.RedisOptions{})
				record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
				require.NoError(t, err)
				if test.wantAttempt == 0 {
					require.Equal(t, testservice.LargeBody, string(record.Response.Body))
					return
				}
				require.NotNil(t, claim)
				require.Equal(t, test.wantAttempt, record.Attempt)
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
		if cmds[0].Name() != "set" { // go-redis opens connections with other pipelines
			return next(ctx, cmds)
		}
		return errors.Join(next(ctx, cmds[:1]), errCut)
	}
}

// withoutIFEQHook is a hook that answers SET with IFEQ like a server that does not support IFEQ.
type withoutIFEQHook struct{ testservice.BeforeEach }

func (withoutIFEQHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isCompareAndSet(cmd) {
			cmd.SetErr(redisError("ERR syntax error"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

// isCompareAndSet reports whether cmd is a SET with IFEQ.
func isCompareAndSet(cmd redis.Cmder) bool { return cmd.Name() == "set" && cmd.Args()[3] == "ifeq" }

// redisError is an error that a server replies.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// abortingHook is a hook that aborts the first large completion, and keeps the record of this completion.
type abortingHook struct {
	testservice.BeforeEach
	supportsIFEQ bool   // as the server does
	record       []byte // in the arguments of the aborted command
	recordCopy   []byte // at the time of the abort
}

func (h *abortingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !isCompareAndSet(cmd) || !h.supportsIFEQ {
			return withoutIFEQHook{}.ProcessHook(next)(ctx, cmd)
		}
		if h.abortFirst(cmd) {
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (h *abortingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "set" && h.abortFirst(cmds[0]) { // go-redis opens connections with other pipelines
			return errCut
		}
		return next(ctx, cmds)
	}
}

// abortFirst reports whether cmd is the first large completion, and keeps the record of this completion.
func (h *abortingHook) abortFirst(cmd redis.Cmder) bool {
	if h.record != nil {
		return false
	}
	h.record = cmd.Args()[2].([]byte)
	h.recordCopy = bytes.Clone(h.record)
	return true
}

// A hook may abort a command while another goroutine is about to send the command. The record of an aborted completion
// must therefore not change, although the store reuses buffers for later records.
func TestRedisRecordOfACompletionThatWasGivenUp(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for _, supportsIFEQ := range []bool{false, true} {
			hooked := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
			hook := &abortingHook{BeforeEach: func(string) {}, supportsIFEQ: supportsIFEQ}
			hooked.AddHook(hook)
			store := idempotency.NewRedisStore(hooked, idempotency.RedisOptions{Prefix: fmt.Sprint(supportsIFEQ)})
			testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.Large())
			for i := range 10 {
				testservice.MustComplete(t, store, testservice.NumberedKey(i+1), testservice.Large())
			}
			require.NotEmpty(t, hook.recordCopy)
			require.Equal(t, hook.recordCopy, hook.record)
		}
	})
}

// A script in a Cluster needs all of its names in one slot. The store refuses a prefix that would put the names of a large
// answer into different slots.
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
				for i := range 20 { // in several slots
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
	"running":  func(record string) string { return headWithState(record, " running ") },
	"lapsed":   func(record string) string { return replaceWord("lease", "lease=1")(headWithState(record, " running ")) },
	"released": func(record string) string { return headWithState(record, " released ") },
}

// headWithState returns the head of a completed record, changed to the given state.
func headWithState(record, state string) string {
	head, _, _ := strings.Cut(record, "\n")
	return strings.Replace(head, " done ", state, 1) + "\n"
}

// executeOnce executes an operation, and returns its record and the name of the record.
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

// requireRecordUntouched sends requests whose key holds an invalid record. The store refuses the requests, the handler
// does not run, and the record stays as it is.
func requireRecordUntouched(t *testing.T, client redis.Cmdable, svc *testservice.Service, name, key, body string) {
	t.Helper()
	runs, before := svc.Runs.Load(), readRedisValue(t, client, name)
	for range 2 {
		testservice.RequireProblem(t, svc.Call(key, body), http.StatusServiceUnavailable, "store-unavailable")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
	}
	require.Equal(t, runs, svc.Runs.Load())
	require.Equal(t, before, readRedisValue(t, client, name))
}

// A record under the name of another record is neither replayed nor claimed.
func TestRedisRecordOfAnotherKey(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
			for state, changeState := range recordStates {
				t.Run(size+" "+state, func(t *testing.T) {
					prefix := fmt.Sprintf("%x:", t.Name())
					store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
					svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
					theirs, record := executeOnce(t, client, svc, prefix, "theirs", body)
					own, _ := executeOnce(t, client, svc, prefix, "own", body)
					require.NoError(t, client.Set(t.Context(), theirs, changeState(record), redis.KeepTTL).Err())
					require.EqualValues(t, 1, client.Copy(t.Context(), theirs, own, 0, true).Val())

					requireRecordUntouched(t, client, svc, own, "own", body)
				})
			}
		}
	})
}

// The owner of a claim does not overwrite the record of another key.
func TestRedisClaimFindsRecordOfAnotherKey(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for state, changeState := range recordStates {
			t.Run(state, func(t *testing.T) {
				prefix := fmt.Sprintf("%x:", t.Name())
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
				testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(1))
				theirs := testservice.RedisKeys(t, client, prefix)[0]
				record := client.Get(t.Context(), theirs).Val()
				require.NoError(t, client.Del(t.Context(), theirs).Err())
				claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
				own := testservice.RedisKeys(t, client, prefix)[0]
				require.NoError(t, client.Set(t.Context(), own, changeState(record), time.Hour).Err())
				before := readRedisValue(t, client, own)

				require.ErrorIs(t, claim.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(2), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.Large(), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
				require.Equal(t, before, readRedisValue(t, client, own))
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
	"empty ttl":                  replaceWord("ttl", "ttl="),
	"created at zeros and 1":     replaceWord("created", "created=00000000000001"),
	"attempt -1":                 replaceWord("attempt", "attempt=-1"),
	"attempt +1":                 replaceWord("attempt", "attempt=+1"),
	"attempt 1.5":                replaceWord("attempt", "attempt=1.5"),
	"attempt 1e3":                replaceWord("attempt", "attempt=1e3"),
	"attempt 0x1":                replaceWord("attempt", "attempt=0x1"),
	"empty attempt":              replaceWord("attempt", "attempt="),
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
	"empty lease":                replaceWord("lease", "lease="),
	"created at 14 digits":       replaceWord("created", "created=10000000000000"),
	"created at 25 digits":       replaceWord("created", "created="+many9s),
	"created at -1":              replaceWord("created", "created=-1"),
	"created at 1e3":             replaceWord("created", "created=1e3"),
	"created empty":              replaceWord("created", "created="),
	"created now":                replaceWord("created", "created=now"),
	"token too short":            replaceWord("token", "token=0"),
	"token too long":             replaceWord("token", "token="+digits),
	"token a pattern":            replaceWord("token", "token=%x+"),
	"token in upper case":        replaceWord("token", "token="+strings.ToUpper(digits[:32])),
	"no operation": func(record string) string {
		return replaceWord("operation", "")(strings.Replace(record, " operation", "operation", 1))
	},
	"operation too short": replaceWord("operation", "operation=0"),
	"operation too long":  replaceWord("operation", "operation="+digits),
	"another operation":   replaceWord("operation", "operation="+uuid.Nil.String()),
	"user too short":      replaceWord("user", "user="+digits[:31]),
	"user too long":       replaceWord("user", "user="+digits[:33]),
	"user in upper case":  replaceWord("user", "user="+strings.ToUpper(digits[:32])),
	"another user":        replaceWord("user", "user="+digits[:32]),
	"no user": func(record string) string {
		return replaceWord("user", "")(strings.Replace(record, " user", "user", 1))
	},
	"user a name":           replaceWord("user", "user=alice"),
	"fingerprint too short": replaceWord("fingerprint", "fingerprint=0"),
	"another word":          appendToHead(" more=1"),
	"a space at the end":    appendToHead(" "),
	"CR LF":                 appendToHead("\r"),
	"a zero byte":           appendToHead("\x00"),
	"magic in upper case":   func(record string) string { return strings.Replace(record, "idempotency", "Idempotency", 1) },
}

// headSuffixes are texts after a head. Only the head of a completed record may be followed by text.
var headSuffixes = map[string]string{"a digit": "0", "digits": "1763712000000", "a line": "line\n", "a response": goldenResponse}

// If no script can have written the head of a record, the store refuses requests with the key, and leaves the record
// unchanged.
func TestRedisMalformedHead(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
		name, record := executeOnce(t, client, svc, "", "key", "body")
		requireRefusal := func(t *testing.T, value string) {
			require.NotEqual(t, record, value)
			require.NoError(t, client.Set(t.Context(), name, value, time.Hour).Err())
			requireRecordUntouched(t, client, svc, name, "key", "body")
		}
		for state, changeState := range recordStates {
			if state != "released" { // a released record with attempt 0 is valid, and its key is free
				t.Run(state+", attempt 0", func(t *testing.T) { requireRefusal(t, replaceWord("attempt", "attempt=0")(changeState(record))) })
			}
			for fault, damage := range malformed {
				t.Run(state+", "+fault, func(t *testing.T) { requireRefusal(t, damage(changeState(record))) })
			}
			for suffixName, suffix := range headSuffixes {
				if state != "done" {
					t.Run(state+", "+suffixName+" after the head", func(t *testing.T) { requireRefusal(t, changeState(record)+suffix) })
				}
			}
		}
	})
}

// The attempt with the highest number runs like any other attempt, but no further attempt can follow.
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
	runSuite := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			newStore := func(*testing.T) idempotency.Store { return newScopedStore(client) }
			idempotencytest.RunInspector(t, newStore)
			idempotencytest.RunResolver(t, newStore)
		})
	}
	runSuite("miniredis", func(t *testing.T) redis.Cmdable {
		_, client := testservice.NewMiniredis(t)
		return client
	})
	runSuite("server", func(t *testing.T) redis.Cmdable {
		return testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	})
	runSuite("server with automatic pipelining that does not wait", func(t *testing.T) redis.Cmdable {
		pipeliner, err := testservice.NewRedisClient(t, servertest.Redis(t).Addr()).AsyncAutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	runSuite("server with the typed commands alone", func(t *testing.T) redis.Cmdable {
		return struct{ redis.Cmdable }{testservice.NewRedisClient(t, servertest.Redis(t).Addr())}
	})
	runSuite("cluster", func(t *testing.T) redis.Cmdable {
		return testservice.NewClusterClient(t, servertest.RedisCluster(t))
	})
	runSuite("server that forgets the scripts before each command", func(t *testing.T) redis.Cmdable {
		server := servertest.Redis(t)
		client := testservice.NewRedisClient(t, server.Addr(), testservice.WithContextTimeout)
		other := testservice.NewRedisClient(t, server.Addr())
		client.AddHook(testservice.BeforeEach(func(string) { other.ScriptFlush(t.Context()) }))
		return client
	})
}

// newScopedStore returns a store with its own prefix. Special characters in the prefix must not act as wildcards in SCAN.
func newScopedStore(client redis.Cmdable) *idempotency.RedisStore {
	return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: `*?[a]\` + uuid.NewString() + ":"})
}

// listedOperations returns the operations of a listing, in its order.
func listedOperations(listing idempotency.Listing) (all []uuid.UUID) {
	for _, e := range listing.Entries {
		all = append(all, e.Operation)
	}
	return all
}

// Another program may have stored a value under the name of a record. Inspect and List do not show such a value, and
// Forget does not remove the value. List still shows the other records.
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
		for what, value := range foreignValues {
			values[what] = value
		}
		for what, damage := range damages {
			values[what] = damage(client.Get(t.Context(), damaged).Val())
		}
		for what, value := range values {
			t.Run(what, func(t *testing.T) {
				replaceRedisValue(t, client, damaged, value)
				before := readRedisValue(t, client, damaged)

				entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Equal(t, testservice.NumberedKey(1).OperationID(), entry.Operation)
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
				require.Equal(t, before, readRedisValue(t, client, damaged))

				listing := testservice.MustList(t, store)
				if what == "with another byte" { // in the body, which List does not read
					require.Len(t, listing.Entries, 2)
					require.Zero(t, listing.Unreadable)
					return
				}
				require.Equal(t, []uuid.UUID{healthy.Operation}, listedOperations(listing))
				require.Equal(t, 1, listing.Unreadable)
				require.Equal(t, map[idempotency.State]idempotency.Total{
					idempotency.StateCompleted: {Records: 1, Bytes: healthy.Size},
				}, listing.Totals)
			})
		}
	})
}

// otherRecordName returns the name of the only record whose name differs from known.
func otherRecordName(t testing.TB, client redis.Cmdable, known string) string {
	t.Helper()
	for _, name := range testservice.RedisKeys(t, client, "") {
		if name != known {
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
		replaceRedisValue(t, client, name, damages["cut in its response"](client.Get(t.Context(), name).Val()))

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
		operation := name[len("a:{") : len(name)-1]
		for _, other := range []string{
			name + strings.Repeat("0", 32), "a:" + operation, "a:{" + operation[1:] + "}", "a:{" + operation + "0}", "b:{" + operation + "}",
			"a:{" + strings.Repeat("x", 36) + "}", "a:{" + strings.ToUpper(operation) + "}", "a:{urn:uuid:" + operation + "}",
			"a:{" + strings.ReplaceAll(operation, "-", "") + "}", "a:b:{" + operation + "}", "A:{" + operation + "}",
		} {
			require.NoError(t, client.Set(t.Context(), other, record, 0).Err())
		}
		for _, prefix := range []string{"*:", "?:", "[a-z]:", "a:{b}"} {
			otherStore := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
			testservice.MustComplete(t, otherStore, testservice.NumberedKey(1), testservice.BodyOf(1))
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
	mu           *sync.Mutex
	countsByName map[string]int
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
	c.countsByName[cmd.Name()]++
}

// List reads at most Scan records, and of each record only the start. A name that SCAN returns twice counts once.
func TestRedisListIsBounded(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		const n = 250
		watched := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		counter := commandCounter{new(sync.Mutex), make(map[string]int)}
		watched.AddHook(counter)
		store := idempotency.NewRedisStore(watched, idempotency.RedisOptions{})
		for i := range n {
			testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.Large())
		}
		for scan, isPartial := range map[int]bool{1: true, n - 1: true, n: false, n + 1: false, 0: false} {
			clear(counter.countsByName)
			listing, err := store.List(t.Context(), idempotency.ListRequest{Scan: scan, Limit: 7})
			require.NoError(t, err)
			want := n
			if isPartial {
				want = scan
			}
			require.Equal(t, isPartial, listing.Partial, scan)
			require.Equal(t, want, listing.Totals[idempotency.StateCompleted].Records, scan)
			require.Len(t, listing.Entries, min(want, 7))
			require.Zero(t, counter.countsByName["get"])
			require.Equal(t, want, counter.countsByName["getrange"], scan)
		}
	})
}

// List finds the records of a user by the digest in their heads, whatever the bytes of the user.
func TestRedisListsByUser(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		users := []string{"alice", "Alice", "alice ", "\x00", "é", strings.Repeat("a", 255), strings.Repeat("a", 257), ""}
		for i, user := range users {
			for n := range i + 1 {
				testservice.MustComplete(t, store, idempotency.Key{User: user, ID: strconv.Itoa(n)}, testservice.BodyOf(1))
			}
		}
		for i, user := range users[:len(users)-1] {
			listing, err := store.List(t.Context(), idempotency.ListRequest{User: user})
			require.NoError(t, err)
			require.Len(t, listing.Entries, i+1, "%q", user)
			require.Equal(t, i+1, listing.Totals[idempotency.StateCompleted].Records)
			require.Zero(t, listing.Entries[0].Key)
		}
		require.Len(t, testservice.MustList(t, store).Entries, 8*9/2)
	})
}

// The digest of the user stays in the record through all attempts, and after the record was freed or lost.
func TestRedisKeepsTheUser(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		key := testservice.NumberedKey(0)
		requireListed := func(state idempotency.State, attempt int) {
			t.Helper()
			listing, err := store.List(t.Context(), idempotency.ListRequest{User: key.User})
			require.NoError(t, err)
			require.Len(t, listing.Entries, 1)
			require.Equal(t, state, listing.Entries[0].State)
			require.Equal(t, attempt, listing.Entries[0].Attempt)
		}
		claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		requireListed(idempotency.StateRunning, 1)
		require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: 0}))
		claim = testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		requireListed(idempotency.StateRunning, 1)
		require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		requireListed(idempotency.StateReleased, 1)
		claim = testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
		requireListed(idempotency.StateRunning, 2)
		require.NoError(t, client.Del(t.Context(), testservice.RedisKeys(t, client, "")...).Err())
		require.ErrorIs(t, claim.Extend(t.Context(), time.Hour), idempotency.ErrRestored)
		requireListed(idempotency.StateRunning, 2)
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		requireListed(idempotency.StateCompleted, 2)
	})
}

func TestRedisEraseUser(t *testing.T) {
	t.Parallel()
	for name, newClient := range map[string]func(*testing.T) redis.Cmdable{
		"server":  func(t *testing.T) redis.Cmdable { return testservice.NewRedisClient(t, servertest.Redis(t).Addr()) },
		"cluster": func(t *testing.T) redis.Cmdable { return testservice.NewClusterClient(t, servertest.RedisCluster(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testservice.RequireErasure(t, newScopedStore(newClient(t)))
		})
	}
}

// List reports how many of the keys of all servers SCAN has passed, and ends with the first error of Each.
func TestRedisListProgress(t *testing.T) {
	t.Parallel()
	const n = 4000
	fill := func(t *testing.T, client redis.Cmdable) {
		_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for i := range n {
				pipe.Set(t.Context(), fmt.Sprint("other:", i), "", 0)
			}
			return nil
		})
		require.NoError(t, err)
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		for i := range 10 {
			testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(1))
		}
	}
	for name, newClient := range map[string]func(*testing.T) redis.Cmdable{
		"server":  func(t *testing.T) redis.Cmdable { return testservice.NewRedisClient(t, servertest.Redis(t).Addr()) },
		"cluster": func(t *testing.T) redis.Cmdable { return testservice.NewClusterClient(t, servertest.RedisCluster(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			fill(t, client)
			store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
			var reads []int64
			_, err := store.List(t.Context(), idempotency.ListRequest{User: "alice", Progress: func(read, total int64) {
				reads = append(reads, read)
				require.EqualValues(t, n+10, total)
			}})
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(reads), n/1000)
			require.True(t, slices.IsSorted(reads), reads)
			require.EqualValues(t, n+10, reads[len(reads)-1])

			errEach, calls := errors.New("the pipe is closed"), 0
			_, err = store.List(t.Context(), idempotency.ListRequest{
				Each: func(idempotency.Entry) error { calls++; return errEach },
			})
			require.Equal(t, errEach, err)
			require.Equal(t, 1, calls, "no other server is read after the error")
		})
	}
}

// A client without the right to DBSIZE lists, and does not know the number of keys.
func TestRedisProgressWithoutTotal(t *testing.T) {
	t.Parallel()
	admin := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	testservice.MustComplete(t, idempotency.NewRedisStore(admin, idempotency.RedisOptions{}), testservice.NumberedKey(0), testservice.BodyOf(1))
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "support", "on", ">secret", "~*", "+@all", "-dbsize").Err())
	options := *admin.Options()
	options.Username, options.Password = "support", "secret"
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	totals := []int64{}
	listing, err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).List(t.Context(), idempotency.ListRequest{
		Progress: func(_, total int64) { totals = append(totals, total) },
	})
	require.NoError(t, err)
	require.Len(t, listing.Entries, 1)
	require.Equal(t, []int64{0}, totals)
}

// Inspect and List treat a record without an expiry as Begin does: the lease begins now. Neither changes the record.
func TestRedisInspectsRecordWithoutExpiry(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScopedStore(client)
		testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
		name := testservice.RedisKeys(t, client, "")[0]
		require.NoError(t, client.Persist(t.Context(), name).Err())
		inspected, listed := testservice.MustInspect(t, store, testservice.NumberedKey(0)), testservice.MustList(t, store).Entries[0]
		for _, entry := range []idempotency.Entry{inspected, listed} {
			require.Equal(t, idempotency.StateRunning, entry.State)
			require.Equal(t, time.Minute, entry.LeaseLeft)
			require.Zero(t, entry.Remaining)
			require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrInProgress)
		}
		require.Equal(t, time.Duration(-1), client.TTL(t.Context(), name).Val())
	})
}

// If the reply to Forget is lost, the record may be removed already, so the repeated Forget succeeds.
func TestRedisForgetsThoughTheReplyIsLost(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		cut := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		store := idempotency.NewRedisStore(cut, idempotency.RedisOptions{})
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(1))
		entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		require.NoError(t, store.Forget(t.Context(), entry)) // loads the script
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(1))
		entry = testservice.MustInspect(t, store, testservice.NumberedKey(0))
		hook := &droppedReplyHook{}
		cut.AddHook(hook)
		require.NoError(t, store.Forget(t.Context(), entry))
		require.Equal(t, int64(2), hook.scriptCalls.Load())
		require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrNoRecord)
	})
}

// droppedReplyHook is a hook that drops the reply to the first script.
type droppedReplyHook struct {
	testservice.BeforeEach
	scriptCalls atomic.Int64
}

func (h *droppedReplyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && h.scriptCalls.Add(1) == 1 {
			cmd.SetErr(errCut)
			return errCut
		}
		return err
	}
}

func (h *droppedReplyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// List returns errors.ErrUnsupported for requests that the store cannot answer.
func TestRedisListUnsupported(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	for _, request := range []idempotency.ListRequest{{Endpoint: "POST /payments"}, {ID: "k"}, {User: "alice", ID: "k"}} {
		_, err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).List(t.Context(), request)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "list by User")
	}

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

// Inspect, List and Forget end with their context, and report faults in the options of the store.
func TestRedisInspectorFails(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		store     *idempotency.RedisStore
		ctx       context.Context
		wantError string
	}{
		"options": {idempotency.NewRedisStore(client, idempotency.RedisOptions{Replicas: -1}), t.Context(), "Replicas"},
		"context": {idempotency.NewRedisStore(client, idempotency.RedisOptions{}), ended, "canceled"},
		"context, and a client that ignores it": {idempotency.NewRedisStore(
			struct{ redis.Cmdable }{client}, idempotency.RedisOptions{}), ended, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := test.store.Inspect(test.ctx, testservice.NumberedKey(0))
			require.ErrorContains(t, err, test.wantError)
			_, err = test.store.List(test.ctx, idempotency.ListRequest{})
			require.ErrorContains(t, err, test.wantError)
			err = test.store.Forget(test.ctx, idempotency.Entry{State: idempotency.StateCompleted})
			require.ErrorContains(t, err, test.wantError)
		})
	}
}

// redisForm matches the head of a record in Redis, by the description in record.lua.
var redisForm = regexp.MustCompile(`^idempotency/1 (running|released|done) token=([^ \n]{32}) lease=([0-9]{1,13}) ` +
	`ttl=([0-9]{1,13}) attempt=([0-9]{1,10}) operation=([^ \n]+) user=([0-9a-f]{32}) ` +
	`fingerprint=([0-9a-f]{64}) created=([0-9]{1,13})\n`)

// hexToken matches the token of a running or released record.
var hexToken = regexp.MustCompile(`^[0-9a-f]{32}$`)

// redisEntry is a record in Redis, parsed independently of the package.
type redisEntry struct {
	state                  string
	isFree                 bool // the remainder of a record whose key was freed
	leaseMillis, ttlMillis int64
	record                 idempotency.Record
}

// aliceDigest is the digest of the user of testservice.NumberedKey.
const aliceDigest = "9516b3d00ae328291b352c1cb492c469"

// redisEntryOf parses the record of operation, whose user is alice. The result ok is false for a value that no script writes.
func redisEntryOf(value, operation string) (e redisEntry, ok bool) {
	m := redisForm.FindStringSubmatch(value)
	if m == nil || m[6] != operation || m[7] != aliceDigest || strings.ContainsAny(m[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		return e, false
	}
	parseNumber := func(text string) int64 {
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	rest, attempt := value[len(m[0]):], parseNumber(m[5])
	isFree := m[1] == "released" && m[5] == "0"
	if attempt < 1 && !isFree || attempt > math.MaxInt32 {
		return e, false
	}
	e = redisEntry{state: m[1], isFree: isFree, leaseMillis: parseNumber(m[3]), ttlMillis: parseNumber(m[4])}
	e.record.Attempt, e.record.Created = int(attempt), time.UnixMilli(parseNumber(m[9]))
	_, _ = hex.Decode(e.record.Fingerprint[:], []byte(m[8]))
	if e.state != "done" {
		return e, rest == "" && hexToken.MatchString(m[2])
	}
	resp, ok := testservice.ParseResponseByPattern([]byte(rest))
	e.record.Response = &resp
	return e, ok
}

// after returns the record that the store must show if the record expires in expiry milliseconds.
func (e redisEntry) after(expiry int64) idempotency.Record {
	if e.state == "running" {
		age := e.ttlMillis - expiry
		e.record.LeaseLeft = time.Duration(max(0, e.leaseMillis-age)) * time.Millisecond
	}
	return e.record
}

// FuzzRedisRecord stores any value under the name of a record, and calls Begin. The store must return the record that the
// independent parser finds, claim the key if the record permits a claim, and leave every other value as it is.
func FuzzRedisRecord(f *testing.F) {
	server := miniredis.RunT(f) // whose clock stands still
	server.RequireAuth(servertest.RedisPassword())
	client := testservice.NewRedisClient(f, server.Addr(), testservice.WithContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	testservice.MustComplete(f, store, testservice.NumberedKey(1), frozenResponse)
	name := server.Keys()[0]
	operation := testservice.NumberedKey(1).OperationID().String()
	done := client.Get(f.Context(), name).Val()
	const expiry = 3_600_000
	for _, changeState := range recordStates {
		for _, left := range []uint32{expiry, expiry - 59_999, expiry - 60_000, 1} {
			f.Add(changeState(done), left, true)
			f.Add(changeState(done), left, false)
		}
		f.Add(replaceWord("fingerprint", "fingerprint="+strings.Repeat("0", 64))(changeState(done)), uint32(1), true)
		f.Add(replaceWord("attempt", "attempt=2147483647")(changeState(done)), uint32(1), true)
		f.Add(replaceWord("attempt", "attempt=0")(changeState(done)), uint32(1), true)
		for _, damage := range malformed {
			f.Add(damage(changeState(done)), uint32(1), true)
		}
	}
	f.Fuzz(func(t *testing.T, value string, expiry uint32, takeOver bool) {
		expiry = max(expiry, 1)
		require.NoError(t, client.Set(t.Context(), name, value, time.Duration(expiry)*time.Millisecond).Err())
		request := testservice.AttemptFor(time.Hour)
		request.TakeOver = takeOver
		got, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
		entry, ok := redisEntryOf(value, operation)
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
			entry, ok = redisEntryOf(stored, operation)
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
		entry, ok = redisEntryOf(stored, operation)
		require.True(t, ok, "%q", stored)
		want.Remaining = 0
		require.Equal(t, want, entry.after(client.PTTL(t.Context(), name).Val().Milliseconds()))
	})
}
