package guarantees_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var (
	timeLimit = flag.Duration("limit", time.Minute, "after how long no further histories are made with a store")
	firstSeed = flag.Uint64("seed", rand.Uint64N(1e9), "the first history is made with it, the next with one more")
)

// workerCount is the number of histories that are made at a time. It exceeds the number of processors because most clients sleep.
const workerCount = 16

// exploreHistories makes up to count histories with the subjects in turn, and returns the first violation, or "".
func exploreHistories(t *testing.T, count int, subjects ...subject) (violation string) {
	var next, calls, unknown, made, undecided atomic.Int64
	var found atomic.Pointer[string]
	start := time.Now()
	var all sync.WaitGroup
	for i := range workerCount {
		all.Go(func() {
			for found.Load() == nil && time.Since(start) < *timeLimit {
				n := next.Add(1)
				if n > int64(count) {
					return
				}
				h := recordHistory(subjects[i%len(subjects)], *firstSeed+uint64(n))
				text, decided := h.findViolation()
				if text != "" {
					found.CompareAndSwap(nil, &text)
				}
				if decided {
					made.Add(1)
				} else {
					undecided.Add(1)
				}
				calls.Add(int64(len(h.operations)))
				unknown.Add(int64(h.unknownCount))
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d histories with %d calls, of which %d have an unknown outcome, in %v",
		made.Load(), count, calls.Load(), unknown.Load(), time.Since(start).Round(time.Millisecond))
	effort.Count(t, "histories", made.Load())
	effort.Count(t, "histories that could not be decided", undecided.Load())
	effort.Count(t, "calls", calls.Load())
	require.Less(t, 3*unknown.Load(), calls.Load(), "calls fail, so the histories prove little")
	require.LessOrEqual(t, undecided.Load(), 1+made.Load()/100, "histories that could not be decided")
	if text := found.Load(); text != nil {
		return *text
	}
	return ""
}

// requireLinearizable fails the test if one of the histories is a violation.
func requireLinearizable(t *testing.T, count int, subjects ...subject) {
	t.Helper()
	if violation := exploreHistories(t, effort.Of(count), subjects...); violation != "" {
		t.Fatal(violation)
	}
}

func TestMemoryStoreIsLinearizable(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	requireLinearizable(t, 20_000, subject{store: store, timeUnit: time.Millisecond})
}

func TestRedisStoreIsLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	proxy := servertest.NewProxy(t, server.Addr())
	newSubject := func(addr string) subject {
		client := redis.NewClient(&redis.Options{
			Addr: addr, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, MaxRetries: -1,
		})
		t.Cleanup(func() { _ = client.Close() })
		client.AddHook(countFailedTries{})
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		return subject{store: store, timeUnit: 4 * time.Millisecond, clockError: 2 * time.Millisecond}
	}
	direct, faulty := newSubject(server.Addr()), newSubject(proxy.Addr())
	runDuringTest(t, func(ctx context.Context) error { return breakConnections(ctx, proxy) })
	requireLinearizable(t, 10_000, direct, faulty)
}

// countFailedTries is a hook that counts the tries of a call without an answer.
type countFailedTries struct{}

func (countFailedTries) countTry(ctx context.Context, err error) error {
	_, answered := errors.AsType[redis.Error](err)
	if tries, ok := ctx.Value(failedTriesKey{}).(*failedTries); ok && err != nil && !answered {
		tries.Add(1)
	}
	return err
}

func (countFailedTries) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h countFailedTries) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h.countTry(ctx, next(ctx, cmd)) }
}

func (h countFailedTries) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.countTry(ctx, next(ctx, cmds)) }
}

// runDuringTest calls do, and cancels its context at the end of the test.
func runDuringTest(t *testing.T, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// breakConnections loses requests and replies, and holds requests until their client has given up.
func breakConnections(ctx context.Context, proxy *servertest.Proxy) error {
	faults := []servertest.Fault{servertest.LoseReply, servertest.LoseRequest, servertest.HoldRequest}
	for ctx.Err() == nil {
		rule := servertest.Rule{
			Fault: faults[rand.IntN(len(faults))], Pattern: "idempotency", Skip: rand.IntN(60), Times: 1 + rand.IntN(6),
		}
		proxy.Inject(rule)
		for proxy.Strikes() < rule.Times && ctx.Err() == nil {
			pauseBriefly(ctx)
			proxy.Release()
		}
	}
	proxy.Inject(servertest.Rule{})
	proxy.Release()
	return nil
}

func pauseBriefly(ctx context.Context) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
	}
}

// All keys are in one slot, and this slot moves from server to server all the time. A move prolongs the life of the records by the
// duration of the move.
func TestRedisClusterIsLinearizable(t *testing.T) {
	t.Parallel()
	masters := servertest.RedisCluster(t)
	opts := &redis.ClusterOptions{Password: servertest.RedisPassword(), ContextTimeoutEnabled: true}
	var nodes []*redis.Client
	for _, master := range masters {
		opts.Addrs = append(opts.Addrs, master.Addr())
		nodes = append(nodes, redis.NewClient(&redis.Options{Addr: master.Addr(), Password: servertest.RedisPassword()}))
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() {
		for _, node := range nodes {
			_ = node.Close()
		}
		_ = client.Close()
	})
	const tag = "{one slot}:"
	slot := int(client.ClusterKeySlot(t.Context(), tag).Val())
	var moves atomic.Int64
	var calls sync.RWMutex
	runDuringTest(t, func(ctx context.Context) error {
		for at := slot * len(nodes) / 16384; ctx.Err() == nil; {
			if !isSlotSettled(ctx, nodes, slot, at) {
				pauseBriefly(ctx)
				continue
			}
			to := (at + 1) % len(nodes)
			if err := moveSlot(slot, nodes, at, to, &calls); err != nil {
				return err
			}
			at = to
			moves.Add(1)
		}
		return nil
	})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: tag})
	requireLinearizable(t, 500, subject{
		store: store, timeUnit: 20 * time.Millisecond, clockError: 20 * time.Millisecond, callLock: calls.RLocker(),
	})
	effort.Count(t, "slot moves", moves.Load())
}

// isSlotSettled reports whether all nodes agree that owner has the slot, and have the same current epoch and different epochs of
// their own, so that the order of their messages is clear.
func isSlotSettled(ctx context.Context, nodes []*redis.Client, slot, owner int) bool {
	current, own, owners := map[string]bool{}, map[string]bool{}, map[string]int{}
	id := nodes[owner].ClusterMyID(ctx).Val()
	for _, node := range nodes {
		for _, line := range strings.Fields(node.ClusterInfo(ctx).Val()) {
			switch name, epoch, _ := strings.Cut(line, ":"); name {
			case "cluster_current_epoch":
				current[epoch] = true
			case "cluster_my_epoch":
				own[epoch] = true
			}
		}
		for _, shard := range node.ClusterShards(ctx).Val() {
			if slices.ContainsFunc(shard.Slots, func(s redis.SlotRange) bool {
				return int(s.Start) <= slot && slot <= int(s.End)
			}) {
				owners[shard.Nodes[0].ID]++
			}
		}
	}
	return len(current) == 1 && len(own) == len(nodes) && owners[id] == len(nodes)
}

// moveSlot moves a slot with all its keys, as an operator does. It waits for the end of all calls before the slot starts to move,
// because the importing server would serve a client that an earlier move has redirected there, although the key is on the other
// server.
func moveSlot(slot int, nodes []*redis.Client, from, to int, calls sync.Locker) error {
	ctx := context.Background()
	id := func(i int) string { return nodes[i].ClusterMyID(ctx).Val() }
	calls.Lock()
	importing := nodes[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)).Err()
	migrating := nodes[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)).Err()
	calls.Unlock()
	if err := errors.Join(importing, migrating); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(nodes[to].Options().Addr)
	if err != nil {
		return err
	}
	for {
		keys, err := nodes[from].ClusterGetKeysInSlot(ctx, slot, 20).Result()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		move := []any{"MIGRATE", host, port, "", 0, 5000, "AUTH", servertest.RedisPassword(), "KEYS"}
		for _, key := range keys {
			move = append(move, key)
		}
		if err := nodes[from].Do(ctx, move...).Err(); err != nil {
			return err
		}
	}
	for i := range nodes {
		node := nodes[(to+i)%len(nodes)] // starting with the new owner
		if err := node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id(to)).Err(); err != nil {
			return err
		}
	}
	return nil
}

func TestPostgresIsLinearizable(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	config, err := pgxpool.ParseConfig(server.URL())
	require.NoError(t, err)
	config.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	table, err := newPostgresTable(t.Context(), pool)
	require.NoError(t, err)
	var subjects []subject
	for _, opts := range []pgxstore.Options{{Table: "whole"}, {Table: "divided", PartitionDays: 1}} {
		require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts))
		subjects = append(subjects, subject{
			store: pgxstore.New(pool, opts), timeUnit: 6 * time.Millisecond, clockError: time.Millisecond, rowTable: table,
		})
	}
	requireLinearizable(t, 1_000, subjects...)
}

// The histories find each of these bugs, and find no violation in the same store without a bug.
func TestLinearizableHistoriesFindBugs(t *testing.T) {
	t.Parallel()
	for _, bug := range []string{
		"", "get, then set", "takeover ignores the lease", "takeover ignores the fingerprint", "takeover without TakeOver",
		"completed record is taken over", "the attempt number stays", "a release forgets the operation",
		"a lease lasts too long", "completed records stay", "running records stay",
		"Extend is not fenced", "Complete is not fenced", "Release is not fenced",
		"Extend acts, then checks", "Complete acts, then checks", "Release acts, then checks",
		"Extend after Complete cuts the retention", "Extend brings a released record back", "Extend leaves the TTL",
		"Extend restores what was settled", "released claim is completed",
		"a repeated Complete changes the response", "Release undoes Complete", "a freed key is only released",
		"a restored record overwrites another", "restoring is not reported",
		"running operations are resolved", "completed operations are resolved", "Resolve ignores the attempt",
		"Resolve leaves the claim", "Resolve checks, then acts",
		"rows are not fenced", "rows are lost", "second rows are committed", "the result of a step is lost",
		"the result of a step is stored too late",
	} {
		t.Run(strings.TrimSpace("store "+bug), func(t *testing.T) {
			t.Parallel()
			count := 5_000
			if bug != "" {
				count = 100_000 // exploreHistories stops at the first violation
			}
			store := newFlawedStore(bug)
			s := subject{store: store, timeUnit: time.Millisecond}
			if bug == "" || strings.Contains(bug, "row") || strings.Contains(bug, "step") {
				s.rowTable = store
			}
			violation := exploreHistories(t, count, s)
			require.Equal(t, bug != "", violation != "", violation)
		})
	}
}
