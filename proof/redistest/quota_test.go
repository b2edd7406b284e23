package redistest_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// openBounded returns a function that opens stores with prefixes of their own.
func openBounded(client redis.Cmdable) testservice.OpenBounded {
	var opened atomic.Int64
	return func(_ *testing.T, bound int) idempotency.Store {
		prefix := fmt.Sprintf("store %d:", opened.Add(1))
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix, MaxUserRecords: bound})
	}
}

func TestRedisUserRecords(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		open := openBounded(client)
		testservice.RequireConcurrentBound(t, []idempotency.Store{open(t, 7)}, 7, 40, 0)
		open.TestUserRecords(t, idempotencytest.Run, idempotencytest.RunSteps)
	})
}

// An index that has lost touch with the records neither refuses for ever, nor stays for ever.
func TestRedisUserIndex(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		const bound = 100
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "lost:", MaxUserRecords: bound})
		claim := func(n int) (idempotency.Claim, error) {
			_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(n), testservice.AttemptFor(time.Hour))
			return claim, err
		}
		refuses := func(n int) bool {
			_, err := claim(n)
			return errors.Is(err, idempotency.ErrUserQuota)
		}
		for n := range bound {
			testservice.MustComplete(t, store, testservice.NumberedKey(n), testservice.BodyOf(10))
		}
		require.True(t, refuses(bound))
		index := testservice.RedisKeys(t, client, "lost:user:")
		require.Len(t, index, 1)
		require.InDelta(t, 2*time.Hour, client.PTTL(t.Context(), index[0]).Val(), float64(time.Minute))

		record := func(n int) string { return "lost:{" + testservice.NumberedKey(n).OperationID().String() + "}" }
		require.NoError(t, client.Del(t.Context(), record(7)).Err()) // as an eviction, or an operator
		require.False(t, refuses(7), "the key itself has no record")
		require.NoError(t, client.Del(t.Context(), record(8)).Err())
		for tries := 1; refuses(bound); tries++ {
			require.Less(t, tries, 500, "a sample finds a record of 100 in 16 of 100 tries")
		}
		require.True(t, refuses(bound+1))
		require.NoError(t, client.Persist(t.Context(), record(9)).Err())
		require.True(t, refuses(bound+1), "a record without an expiry counts")

		require.NoError(t, client.Del(t.Context(), index[0]).Err())
		lost, err := claim(bound + 1)
		require.NoError(t, err)
		require.NotNil(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response)
		require.NoError(t, lost.Complete(t.Context(), testservice.BodyOf(10), time.Hour))
		require.EqualValues(t, 1, client.ZCard(t.Context(), index[0]).Val(), "the count begins anew")
	})
}

// A release, an operator who removes a record, and one who ends an operation set the time at which the record stops to count.
func TestRedisUserIndexHasTimes(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "times:", MaxUserRecords: 10})
		lapsing := testservice.AttemptFor(time.Hour)
		lapsing.Lease = time.Millisecond
		release := func(end idempotency.Release) func(claim idempotency.Claim, key idempotency.Key) error {
			return func(claim idempotency.Claim, _ idempotency.Key) error { return claim.Release(t.Context(), end) }
		}
		resolve := func(r idempotency.Resolution) func(claim idempotency.Claim, key idempotency.Key) error {
			return func(_ idempotency.Claim, key idempotency.Key) error {
				return store.Resolve(t.Context(), testservice.MustInspect(t, store, key), r)
			}
		}
		answer := testservice.BodyOf(10)
		for n, test := range []struct {
			request idempotency.ClaimRequest
			end     func(claim idempotency.Claim, key idempotency.Key) error
			want    time.Duration
		}{
			{testservice.AttemptFor(time.Hour), release(idempotency.Release{TTL: 10 * time.Minute}), 10 * time.Minute},
			{testservice.AttemptFor(time.Hour), release(idempotency.Release{}), 2 * time.Minute},
			{testservice.AttemptFor(time.Hour), release(idempotency.Release{Abandoned: true}), time.Hour},
			{lapsing, resolve(idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: 5 * time.Minute}), 5 * time.Minute},
			{lapsing, resolve(idempotency.Resolution{Response: &answer, TTL: 5 * time.Minute}), 5 * time.Minute},
			{lapsing, func(_ idempotency.Claim, key idempotency.Key) error {
				return store.Forget(t.Context(), testservice.MustInspect(t, store, key))
			}, 0},
		} {
			key := testservice.NumberedKey(n)
			claim := testservice.MustClaim(t, store, key, test.request)
			testservice.Until(t, func() bool {
				return test.request.Lease > time.Second || testservice.MustInspect(t, store, key).State == idempotency.StateAbandoned
			})
			require.NoError(t, test.end(claim, key))
			index := testservice.RedisKeys(t, client, "times:user:")
			require.Len(t, index, 1)
			expiry := client.ZScore(t.Context(), index[0], key.OperationID().String()).Val()
			require.InDelta(t, time.Now().Add(test.want).UnixMilli(), expiry, float64(slack.Milliseconds()), n)
		}
	})
}

// With the option, each step still takes one round trip. A claim and a replay are a script each.
func TestRedisUserRecordsTakeNoRoundTrip(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		own := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		store := idempotency.NewRedisStore(own, idempotency.RedisOptions{MaxUserRecords: 2})
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(10)) // loads the scripts
		sent := &sentCommands{}
		own.AddHook(sent)
		begins := func(n int, want error) idempotency.Claim {
			sent.sent = nil
			_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(n), testservice.AttemptFor(time.Hour))
			require.ErrorIs(t, err, want)
			require.Len(t, sent.sent, 1)
			require.Equal(t, "evalsha", sent.sent[0][0])
			return claim
		}
		first := begins(1, nil)
		require.Nil(t, begins(1, nil), "in progress")
		sent.sent = nil
		require.NoError(t, first.Complete(t.Context(), testservice.BodyOf(10), time.Hour))
		require.Len(t, sent.sent, 1)
		require.Nil(t, begins(1, nil), "a replay")
		require.Nil(t, begins(2, idempotency.ErrUserQuota))
	})
}

// A claim whose reply was lost is not refused because of its own record.
func TestRedisUserRecordsAfterALostReply(t *testing.T) {
	t.Parallel()
	n := newRedisNetwork(t)
	scripts, open := n.loadScripts(t), openBounded(n.client)
	for _, fault := range []servertest.Fault{servertest.LoseRequest, servertest.LoseReply} {
		store := open(t, 1)
		n.inject(servertest.Rule{Fault: fault, Pattern: scripts["counted claim"]})
		testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(10))
		require.Equal(t, 1, n.strikes())
		_, _, err := store.Begin(t.Context(), testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, err, idempotency.ErrUserQuota)
	}
}

// wrappedClient is a client of a service, with methods of its own.
type wrappedClient struct{ redis.UniversalClient }

func TestRedisUserRecordsOptions(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"localhost:1"}})
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	client := redis.NewClient(&redis.Options{Addr: "localhost:1"})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	for name, test := range map[string]struct {
		client     redis.Cmdable
		opts       idempotency.RedisOptions
		wantFaults []string
		wantKind   error
	}{
		"negative": {client, idempotency.RedisOptions{MaxUserRecords: -1, Prefix: "{}"},
			[]string{"RedisOptions.MaxUserRecords -1 is negative", "RedisOptions.Prefix"}, nil},
		"Cluster": {cluster, idempotency.RedisOptions{MaxUserRecords: 1},
			[]string{"RedisOptions.MaxUserRecords is 1 with a Redis Cluster"}, errors.ErrUnsupported},
		"wrapped Cluster": {&wrappedClient{cluster}, idempotency.RedisOptions{MaxUserRecords: 1},
			[]string{"RedisOptions.MaxUserRecords is 1 with a Redis Cluster"}, errors.ErrUnsupported},
		"Cluster without the option": {cluster, idempotency.RedisOptions{}, nil, nil},
		"wrapped client":             {&wrappedClient{client}, idempotency.RedisOptions{MaxUserRecords: 1}, nil, nil},
	} {
		store := idempotency.NewRedisStore(test.client, test.opts)
		fault := store.Validate(idempotency.RunnerOptions{})
		if test.wantFaults == nil {
			require.NoError(t, fault, name)
			continue
		}
		_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
		_, claim, beginErr := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		require.Nil(t, claim, name)
		for _, err := range []error{err, fault, beginErr, store.Check(t.Context())} {
			for _, want := range test.wantFaults {
				require.ErrorContains(t, err, want, name)
			}
			if test.wantKind != nil {
				require.ErrorIs(t, err, test.wantKind, name)
			}
		}
	}
}

// A client of one server may be connected to a Cluster, which then refuses the script.
func TestRedisUserRecordsOnANodeOfACluster(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.RedisCluster(t)[0].Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{MaxUserRecords: 1})
	_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.ErrorContains(t, err, "same slot")
	require.Nil(t, claim)
}

// Check names each right that the option needs and the user lacks.
func TestRedisUserRecordsRights(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	admin := testservice.NewRedisClient(t, server.Addr())
	limited := testservice.NewRedisClient(t, server.Addr(), func(o *redis.Options) {
		o.Username, o.Password, o.DisableIdentity = "service", "secret", true
	})
	store := idempotency.NewRedisStore(limited, idempotency.RedisOptions{MaxUserRecords: 1})
	commands := []string{"zcard", "zadd", "zrem", "zrangebyscore", "zrandmember"}
	for _, missing := range append(commands, "") {
		rule := []any{"ACL", "SETUSER", "service", "reset", "on", ">secret", "~idempotency:*", "+@all", "-@sortedset"}
		for _, command := range commands {
			if command != missing {
				rule = append(rule, "+"+command)
			}
		}
		require.NoError(t, admin.Do(t.Context(), rule...).Err())
		err := store.Check(t.Context())
		if missing == "" {
			require.NoError(t, err)
			continue
		}
		require.Len(t, idempotency.Findings(err), 1)
		require.ErrorContains(t, err, "right +"+missing+" is not given to user service")
	}
	testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(10))
	require.Len(t, testservice.RedisKeys(t, admin, "idempotency:"), 2, "Check leaves nothing behind")
}

func BenchmarkRedisUserRecords(b *testing.B) {
	client := testservice.NewRedisClient(b, servertest.Redis(b).Addr(), testservice.WithContextTimeout)
	testservice.CompareUserRecords(b, idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "plain:"}),
		idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "counted:", MaxUserRecords: 1000}))
}
