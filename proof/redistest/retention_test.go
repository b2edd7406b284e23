package redistest_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// slack is how much of its time a record may lose before PTTL is read, even on a slow machine.
const slack = 15 * time.Second

// remainingOf makes a record, changes its expiry, and returns the Remaining that the claim of the next attempt
// reports.
func remainingOf(
	t *testing.T, client redis.Cmdable, leave func(*testing.T, idempotency.Store), change func(name string) error,
) time.Duration {
	t.Helper()
	prefix := fmt.Sprintf("%x:", t.Name())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
	leave(t, store)
	require.NoError(t, change(testservice.RedisKeys(t, client, prefix)[0]))
	var next idempotency.Record
	testservice.Until(t, func() bool {
		record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
		next = record
		return err == nil && claim != nil
	})
	require.Equal(t, 2, next.Attempt)
	return next.Remaining
}

// makeReleased makes a released record with a TTL of an hour.
func makeReleased(t *testing.T, store idempotency.Store) {
	record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(2*time.Hour))
	require.NoError(t, err)
	require.Zero(t, record.Remaining, "nothing is replaced")
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
}

// makeLapsed makes a lapsed record with a TTL of an hour.
func makeLapsed(t *testing.T, store idempotency.Store) {
	brief := testservice.AttemptFor(time.Hour)
	brief.Lease = time.Millisecond
	testservice.MustClaim(t, store, testservice.NumberedKey(1), brief)
}

// The claim of a later attempt reports how long the record would have been kept.
func TestRedisRemaining(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		asItIs := func(string) error { return nil }
		for name, leave := range map[string]func(*testing.T, idempotency.Store){"released": makeReleased, "lapsed": makeLapsed} {
			t.Run(name, func(t *testing.T) {
				left := remainingOf(t, client, leave, asItIs)
				require.LessOrEqual(t, left, time.Hour)
				require.Greater(t, left, time.Hour-slack)
			})
		}
		t.Run("kept for ever", func(t *testing.T) {
			persist := func(name string) error { return client.Persist(t.Context(), name).Err() }
			require.Zero(t, remainingOf(t, client, makeReleased, persist), "not known")
		})
	})
}

func TestRedisRemainingIsLongerThanADuration(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	prolong := func(name string) error {
		return client.Do(t.Context(), "PEXPIRE", name, "100000000000000000").Err()
	}
	require.Greater(t, remainingOf(t, client, makeReleased, prolong), 290*365*24*time.Hour)
}

// The remaining time of a completed record is not reported for a newer record of the same key.
func TestRedisRemainingOfACompletedRecord(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		other := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		require.NoError(t, testservice.MustClaim(t, other, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)).Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		slow := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		meanwhile := func() {}
		slow.AddHook(testservice.BeforeEach(func(command string) {
			if command == "evalsha" {
				meanwhile()
			}
		}))
		store := idempotency.NewRedisStore(slow, idempotency.RedisOptions{})
		request := testservice.AttemptFor(time.Hour)
		request.Remaining = true
		left := func() time.Duration {
			record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), request)
			require.NoError(t, err)
			require.Nil(t, claim)
			require.Len(t, record.Response.Body, 1)
			return record.Remaining
		}
		require.LessOrEqual(t, left(), time.Hour)
		require.Greater(t, left(), time.Hour-slack)
		meanwhile = func() {
			require.NoError(t, client.FlushAll(t.Context()).Err())
			testservice.MustClaim(t, other, testservice.NumberedKey(1), testservice.AttemptFor(24*time.Hour))
		}
		require.Zero(t, left())
	})
}

// A claim that was granted before its reply was lost is granted again, but no longer replaces a record.
func TestRedisRemainingAfterALostReply(t *testing.T) {
	t.Parallel()
	n := newRedisNetwork(t)
	digests := n.loadScripts(t)
	store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
	require.NoError(t, testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	n.inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: digests["take over"]})
	record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Equal(t, 1, n.strikes(), "the fault did not strike")
	require.Equal(t, 2, record.Attempt)
	require.Zero(t, record.Remaining)
}

// Release ends the claim once. A repetition leaves the expiry of the record unchanged.
func TestRedisRepeatedRelease(t *testing.T) {
	t.Parallel()
	n := newRedisNetwork(t)
	digests := n.loadScripts(t)
	store := idempotency.NewRedisStore(n.client, idempotency.RedisOptions{})
	for name, test := range map[string]struct{ first, again time.Duration }{
		"longer": {time.Hour, 2 * time.Hour}, "shorter": {time.Hour, time.Minute}, "no time": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, n.client.FlushAll(t.Context()).Err())
			claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(24*time.Hour))
			n.inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: digests["release"]})
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: test.first}))
			require.Equal(t, 1, n.strikes(), "the fault did not strike")
			key := testservice.RedisKeys(t, n.client, "")[0]
			record, left := n.client.Get(t.Context(), key).Val(), n.client.PTTL(t.Context(), key).Val()

			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: test.again}))
			require.Equal(t, record, n.client.Get(t.Context(), key).Val())
			now := n.client.PTTL(t.Context(), key).Val()
			require.LessOrEqual(t, now, left)
			require.Greater(t, now, test.first-slack)
		})
	}
}

// A repeated Complete does not prolong the life of the record, even in its last millisecond.
func TestRedisRepeatedComplete(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	server.RequireAuth(servertest.RedisPassword())
	client := testservice.NewRedisClient(t, server.Addr())
	claim := testservice.MustClaim(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{}), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
	key := testservice.RedisKeys(t, client, "")[0]
	for _, left := range []time.Duration{time.Minute, time.Millisecond, time.Millisecond / 2} {
		server.SetTTL(key, left)
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		require.Equal(t, left, server.TTL(key))
	}
}

// redisMemory returns the server's used memory in bytes, and the number of records.
func redisMemory(t *testing.T, client redis.Cmdable) (bytes, records int64) {
	t.Helper()
	_, rest, _ := strings.Cut(client.Info(t.Context(), "memory").Val(), "used_memory:")
	number, _, _ := strings.Cut(rest, "\r\n")
	bytes, err := strconv.ParseInt(number, 10, 64)
	require.NoError(t, err)
	records, err = client.DBSize(t.Context()).Result()
	require.NoError(t, err)
	return bytes, records
}

// A refused request costs the server less than a kilobyte for two leases, and nothing afterwards.
func TestRedisMemoryOfRefusedRequests(t *testing.T) {
	t.Parallel()
	const requests = 1000
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	refuse := func(lease time.Duration, keys string) {
		opts := idempotency.Options{Lease: lease, StoreTimeout: lease}
		svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, testservice.Status(http.StatusTooManyRequests))
		for i := range requests {
			require.Equal(t, http.StatusTooManyRequests, svc.Call(fmt.Sprint(keys, i), "").Status)
		}
	}
	refuse(5*time.Second, "warm") // loads scripts, and grows buffers
	testservice.Until(t, func() bool { _, records := redisMemory(t, client); return records == 0 })
	before, _ := redisMemory(t, client)

	refuse(time.Minute, "kept")
	after, records := redisMemory(t, client)
	require.EqualValues(t, requests, records)
	each := float64(after-before) / requests
	t.Logf("%.0f bytes for each request that was refused", each)
	require.Less(t, each, 1024.0)

	require.NoError(t, client.FlushAll(t.Context()).Err())
	refuse(5*time.Second, "brief")
	testservice.Until(t, func() bool { _, records := redisMemory(t, client); return records == 0 })
	var left int64
	testservice.Until(t, func() bool {
		now, _ := redisMemory(t, client)
		left = now - before
		return left < requests*64
	})
	t.Logf("%.0f bytes for each after two leases", float64(left)/requests)
}
