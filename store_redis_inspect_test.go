package idempotency_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

func TestRedisInspectorConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			idempotencytest.RunInspector(t, func(*testing.T) idempotency.Store { return newScope(client) })
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

// newScope returns a store with a prefix of its own, all of whose characters stand for themselves.
func newScope(client redis.Cmdable) *idempotency.RedisStore {
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
		store := newScope(client)
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(10))
		healthy := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		name := testservice.RedisKeys(t, client, "")[0]
		record := client.Get(t.Context(), name).Val()
		testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(10))
		damaged := otherKey(t, client, name)

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

// otherKey returns the name of the only other record.
func otherKey(t testing.TB, client redis.Cmdable, than string) string {
	t.Helper()
	for _, name := range testservice.RedisKeys(t, client, "") {
		if name != than {
			return name
		}
	}
	require.Fail(t, "no other key")
	return ""
}

// A completed record whose answer is damaged can be forgotten, but only by whoever has inspected it.
func TestRedisForgetsDamagedAnswer(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := newScope(client)
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

// What is no record is not listed: what is staged, what other stores have, and whatever else has a name that begins alike.
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

// commands notes the commands that a client sends. It answers each SCAN with every name twice, as a server may.
type commands struct {
	mu   *sync.Mutex
	sent map[string]int
}

func (c commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.note(cmd)
		err := next(ctx, cmd)
		if scan, ok := cmd.(*redis.ScanCmd); ok && err == nil {
			names, cursor := scan.Val()
			scan.SetVal(slices.Concat(names, names), cursor)
		}
		return err
	}
}

func (c commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (c commands) note(cmd redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[cmd.Name()]++
}

// List reads the starts of as many records as it is asked to, and no whole record. A name that SCAN shows twice counts once.
func TestRedisListIsBounded(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		const n = 250
		watched := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
		sent := commands{new(sync.Mutex), make(map[string]int)}
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
		store := newScope(client)
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
		lost := &losingReply{}
		cut.AddHook(lost)
		require.NoError(t, store.Forget(t.Context(), entry))
		require.Equal(t, int64(2), lost.sent.Load())
		require.ErrorIs(t, store.Forget(t.Context(), entry), idempotency.ErrNoRecord)
	})
}

// losingReply is a hook that loses the reply to the first script.
type losingReply struct {
	testservice.BeforeEach
	sent atomic.Int64
}

func (l *losingReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && l.sent.Add(1) == 1 {
			cmd.SetErr(errCut)
			return errCut
		}
		return err
	}
}

func (l *losingReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What a store cannot list, it says.
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
