package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// insertRecords inserts completed records that expire at a time given as SQL. Their operations are in order, because
// this makes the insertion much faster.
func insertRecords(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, records int, expires string) {
	t.Helper()
	execStatement(t, pool, fmt.Sprintf(`INSERT INTO %s (operation, user_id, endpoint, key, attempt, fingerprint, token,
			created_at, expires_at, expires_minute, completed_at, status, body)
		SELECT (left($2::text, 16) || lpad(to_hex(i), 16, '0'))::uuid, 'user', 'POST /', i::text, 1,
			'\x00', gen_random_uuid(), %[2]s, %[2]s, date_bin('1 minute', %[2]s, 'epoch'), %[2]s, 201, repeat('x', 400)::bytea
		FROM generate_series(1, $1::bigint) i`, tableName(opts), expires), records, strings.ReplaceAll(uuid.NewString(), "-", ""))
}

// startClaiming completes operations until stop is called. stop returns their number and the duration of the longest
// one.
func startClaiming(t testing.TB, store idempotency.Store) (stop func() (int64, time.Duration)) {
	var over atomic.Bool
	var count, longest atomic.Int64
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for !over.Load() {
				began := time.Now()
				_, claim, err := store.Begin(context.Background(), keyOf(uuid.NewString()), attempt)
				if err == nil {
					err = claim.Complete(context.Background(), answer, time.Hour)
				}
				if err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
				longest.Store(max(longest.Load(), int64(time.Since(began))))
			}
		})
	}
	return func() (int64, time.Duration) {
		over.Store(true)
		group.Wait()
		return count.Load(), time.Duration(longest.Load())
	}
}

func TestMaintainDeletesExpiredRecords(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	const old = 10_500 // not a multiple of the batch size
	insertRecords(t, pool, opts, old, "now() - interval '2 minutes'")
	insertRecords(t, pool, opts, 700, "now() + interval '1 hour'")
	store := pgxstore.New(pool, opts)
	running, claim := claimNewKey(t, store)

	stop := startClaiming(t, store)
	maintainAtOnce(t, store)
	completed, _ := stop()
	require.Equal(t, 701+completed, queryValue[int64](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	require.NoError(t, claim.Complete(ctx, answer, time.Hour), running.ID)
}

// maintainAtOnce calls Maintain on four instances at the same time. It repeats this if all calls have left the work
// to an instance that had not begun.
func maintainAtOnce(t testing.TB, store *pgxstore.Store) {
	t.Helper()
	var instances sync.WaitGroup
	for range 4 {
		instances.Go(func() {
			if err := store.Maintain(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	instances.Wait()
	require.NoError(t, store.Maintain(context.Background()))
}

// Maintain keeps a record that was claimed again after Maintain had found it expired.
func TestMaintainLeavesWhatWasClaimedAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	execStatement(t, pool, "UPDATE "+tableName(opts)+` SET expires_at = now() - interval '2 minutes',
		expires_minute = date_bin('1 minute', now() - interval '2 minutes', 'epoch')`)

	held, err := pool.Begin(ctx) // acts as a claim that has not committed yet
	require.NoError(t, err)
	defer func() { _ = held.Rollback(ctx) }()
	_, err = held.Exec(ctx, "UPDATE "+tableName(opts)+" SET expires_at = now() + interval '1 hour'")
	require.NoError(t, err)
	require.NoError(t, store.Maintain(ctx), "a record in use is skipped, not waited for")
	require.NoError(t, held.Commit(ctx))
	require.NoError(t, store.Maintain(ctx))
	_, claim, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.Nil(t, claim)
}

// Other transactions lock more expired records than one search finds. Maintain still deletes the records that
// expired later.
func TestMaintainPassesByWhatIsLocked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	const locked = 50_100
	insertRecords(t, pool, opts, locked, "now() - interval '10 minutes'")
	insertRecords(t, pool, opts, 100, "now() - interval '5 minutes'")
	locker, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = locker.Rollback(ctx) }()
	_, err = locker.Exec(ctx, "SELECT FROM "+tableName(opts)+" WHERE expires_at < now() - interval '7 minutes' FOR UPDATE")
	require.NoError(t, err)
	store := pgxstore.New(pool, opts)
	require.NoError(t, store.Maintain(ctx))
	require.Equal(t, locked, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	require.NoError(t, locker.Rollback(ctx))
	require.NoError(t, store.Maintain(ctx))
	require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}

// Every statement writes the expiry twice: by the minute, by which Maintain finds the record, and exactly.
func TestMaintainFindsWhatEachStepWrote(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, c := range map[string]struct {
		step    func(t *testing.T, store idempotency.Store, set func(string))
		expires string
	}{
		"begin": {func(t *testing.T, store idempotency.Store, _ func(string)) { claimNewKey(t, store) }, "13:00"},
		"begin again": {func(t *testing.T, store idempotency.Store, set func(string)) {
			key, claim := claimNewKey(t, store)
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			set("2030-01-10 12:30:20+00")
			_, claim, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, claim)
		}, "13:30"},
		"extend": {func(t *testing.T, store idempotency.Store, _ func(string)) {
			_, claim := claimNewKey(t, store)
			require.NoError(t, claim.Extend(ctx, 2*time.Hour))
		}, "14:00"},
		"complete": {func(t *testing.T, store idempotency.Store, _ func(string)) {
			_, claim := claimNewKey(t, store)
			require.NoError(t, claim.Complete(ctx, answer, 10*time.Minute))
		}, "12:10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts, set := newTableAt(t, pool, pgxstore.Options{}, "2030-01-10 12:00:20+00")
			store := pgxstore.New(pool, opts)
			c.step(t, store, set)
			minute := queryValue[time.Time](t, pool, "SELECT expires_minute FROM "+tableName(opts))
			require.Equal(t, c.expires, minute.UTC().Format("15:04"))

			set("2030-01-10 " + c.expires + ":59+00")
			require.NoError(t, store.Maintain(ctx))
			require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)), "within the minute")
			set(minute.Add(time.Minute).Format(time.RFC3339))
			require.NoError(t, store.Maintain(ctx))
			require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
		})
	}
}

// newClock returns the SQL of a clock that stands still at the time that set has set.
func newClock(t testing.TB, pool *pgxpool.Pool) (now string, set func(string)) {
	name := fmt.Sprintf("clock_%d", tableCount.Add(1))
	execStatement(t, pool, fmt.Sprintf(`CREATE TABLE %[1]s AS SELECT now() AS time;
		CREATE FUNCTION %[1]s_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT time FROM %[1]s'`, name))
	return name + "_now()", func(at string) {
		execStatement(t, pool, fmt.Sprintf("UPDATE %s SET time = $1::text::timestamptz", name), at)
	}
}

// newTableAt creates a table with its own clock, which stands still at when until set is called.
func newTableAt(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, when string) (_ pgxstore.Options, set func(string)) {
	t.Helper()
	now, set := newClock(t, pool)
	set(when)
	return newTable(t, pool, opts.WithClock(now)), set
}

// listPartitionDays returns the days of a table's partitions.
func listPartitionDays(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) []string {
	return queryColumn[string](t, pool, `SELECT right(c.relname, 8) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
		WHERE i.inhparent = $1::text::regclass ORDER BY 1`, tableName(opts))
}

func TestMaintainDropsDays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 2, SpareDays: 1}, "2030-01-30 23:00:00+00")
	store := pgxstore.New(pool, opts)
	require.Equal(t, []string{"20300130", "20300131", "20300201", "20300202"}, listPartitionDays(t, pool, opts))
	day := idempotency.ClaimRequest{Fingerprint: attempt.Fingerprint, Lease: time.Minute, TTL: 24 * time.Hour}
	_, claim, err := store.Begin(ctx, keyOf("1"), day)
	require.NoError(t, err)

	set("2030-01-31 01:00:00+00")
	maintainAtOnce(t, store)
	require.Equal(t, []string{"20300131", "20300201", "20300202", "20300203"}, listPartitionDays(t, pool, opts))
	require.NoError(t, claim.Complete(ctx, answer, 25*time.Hour), "the record moves to the day on which it expires now")
	require.Equal(t, 1, queryValue[int](t, pool, `SELECT count(*) FROM `+partitionName(opts, "20300201")))

	set("2030-02-01 01:30:00+00")
	require.NoError(t, store.Maintain(ctx))
	record, _, err := store.Begin(ctx, keyOf("1"), day)
	require.NoError(t, err)
	require.NotNil(t, record.Response, "kept for 25 hours, until 02:00")
	set("2030-02-02 00:59:59+00")
	require.NoError(t, store.Maintain(ctx))
	require.Contains(t, listPartitionDays(t, pool, opts), "20300201", "the day has been over for less than an hour")
	set("2030-02-02 01:00:00+00")
	require.NoError(t, store.Maintain(ctx))
	require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM pg_class WHERE relname = $1", opts.Table+"_20300201"), "dropped")
}

func partitionName(opts pgxstore.Options, day string) string {
	opts.Table += "_" + day
	return tableName(opts)
}

// Maintain leaves alone tables that only look like partitions, and the partitions of other tables.
func TestMaintainLeavesOtherTables(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}, "2030-01-10 12:00:00+00")
	former := opts
	former.Table = "former " + opts.Table
	execStatement(t, pool, "ALTER TABLE "+tableName(opts)+" RENAME TO "+tableName(former))
	require.ErrorContains(t, pgxstore.Migrate(ctx, pool, opts), "already exists", "the names of its days are taken")
	execStatement(t, pool, "CREATE TABLE "+partitionName(opts, "20300101")+" (mine int)")

	set("2030-01-20 12:00:00+00")
	require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
	require.Equal(t, []string{"20300120", "20300121", "20300122"}, listPartitionDays(t, pool, opts))
	require.Equal(t, []string{"20300110", "20300111", "20300112"}, listPartitionDays(t, pool, former))
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM pg_class WHERE relname = $1", opts.Table+"_20300101"))
	require.NoError(t, pgxstore.Migrate(ctx, pool, former), "and its own days are known by whatever name")
	require.Equal(t, []string{"20300120", "20300121", "20300122"}, listPartitionDays(t, pool, former))
}

// Maintain also compares the bounds of a partition with its day, in every date style of the session. A partition
// that was attached with other bounds is kept.
func TestMaintainLooksAtBorders(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["datestyle"], c.ConnConfig.RuntimeParams["timezone"] = "SQL, DMY", "Asia/Kolkata"
	})
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}, "2030-01-10 12:00:00+00")
	archive := partitionName(opts, "20200101")
	execStatement(t, pool, fmt.Sprintf(`CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('2040-01-01 00:00:00+00')
		TO ('2041-01-01 00:00:00+00')`, archive, tableName(opts)))
	set("2030-01-12 12:00:00+00")
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	require.Equal(t, []string{"20200101", "20300112", "20300113", "20300114"}, listPartitionDays(t, pool, opts))
}

// interruptDetach interrupts the detachment of a day.
func interruptDetach(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, day string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	finish := startReading(t, pool, opts)
	defer finish()
	detach := "ALTER TABLE " + tableName(opts) + " DETACH PARTITION " + partitionName(opts, day) + " CONCURRENTLY"
	interrupted := make(chan error, 1)
	go func() {
		_, err := pool.Exec(ctx, detach)
		interrupted <- err
	}()
	awaitPending(t, pool, opts)
	interrupt()
	require.Error(t, <-interrupted)
	require.Eventually(t, func() bool {
		return queryValue[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = $1", detach) == 0
	}, 10*time.Second, time.Millisecond)
}

// startReading keeps a transaction open that has read a table, until finish is called.
func startReading(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) (finish func()) {
	t.Helper()
	reader, err := pool.Begin(context.Background())
	require.NoError(t, err)
	finish = func() { _ = reader.Rollback(context.Background()) }
	t.Cleanup(finish) // even if the test fails, because the pool waits for its connections
	_, err = reader.Exec(context.Background(), "SELECT FROM "+tableName(opts), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return finish
}

// isPending reports whether the detachment of a day has begun but not ended.
func isPending(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) bool {
	t.Helper()
	return queryValue[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_inherits
		WHERE inhparent = $1::text::regclass AND inhdetachpending)`, tableName(opts))
}

func awaitPending(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	require.Eventually(t, func() bool { return isPending(t, pool, opts) }, 10*time.Second, time.Millisecond)
}

// The next call of Maintain finishes an interrupted detachment before it drops any other day.
func TestMaintainGoesOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	plain := newPool(t, serverURL(t))
	for name, pool := range map[string]*pgxpool.Pool{
		"read committed": plain, "repeatable read": newPool(t, serverURL(t), withRepeatableRead),
	} {
		t.Run(name, func(t *testing.T) {
			now, set := newClock(t, plain)
			set("2030-01-10 12:00:00+00")
			opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}.WithClock(now))
			store := pgxstore.New(pool, opts)
			set("2030-01-12 12:00:00+00")
			interruptDetach(t, plain, opts, "20300111")
			completeNewKey(t, store) // claims need not wait meanwhile
			require.NoError(t, store.Maintain(ctx))
			require.Equal(t, []string{"20300112", "20300113", "20300114"}, listPartitionDays(t, pool, opts))

			set("2030-01-13 12:00:00+00")
			interruptDetach(t, plain, opts, "20300112")
			finish := startReading(t, plain, opts)
			require.NoError(t, store.Maintain(ctx), "nor need it wait for those who do not know that day any more")
			finish()
			require.Equal(t, []string{"20300113", "20300114", "20300115"}, listPartitionDays(t, pool, opts))

			set("2030-01-14 12:00:00+00")
			execStatement(t, plain, "ALTER TABLE "+tableName(opts)+" DETACH PARTITION "+partitionName(opts, "20300113"))
			require.NoError(t, store.Maintain(ctx))
			require.Zero(t, queryValue[int](t, plain, "SELECT count(*) FROM pg_class WHERE relname = $1", opts.Table+"_20300113"))
		})
	}
}

// A day that was detached too early is attached again with its records.
func TestMaintainAttachesAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, _ := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	key := completeNewKey(t, store)
	for _, day := range []string{"20300110", "20300112"} {
		execStatement(t, pool, "ALTER TABLE "+tableName(opts)+" DETACH PARTITION "+partitionName(opts, day))
	}
	require.ErrorContains(t, store.Check(ctx), "has partitions for only 0 days")
	require.NoError(t, store.Maintain(ctx))
	require.Equal(t, []string{"20300110", "20300111", "20300112"}, listPartitionDays(t, pool, opts))
	record, _, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.NotNil(t, record.Response)
}

// While one instance waits to drop a day, other instances skip the drop, and create the missing days.
func TestMaintainWhileAnotherWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool := newPool(t, serverURL(t))
	impatient := newPool(t, serverURL(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "1000"
		c.ConnConfig.RuntimeParams["application_name"] = t.Name()
	})
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}, "2030-01-10 12:00:00+00")
	set("2030-01-11 12:00:00+00")
	finish := startReading(t, pool, opts)
	dropped := make(chan error, 1)
	go func() { dropped <- pgxstore.NewTable(impatient, opts).Maintain(ctx) }()
	awaitPending(t, pool, opts)
	require.Eventually(t, func() bool {
		return queryValue[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1
			AND state = 'idle in transaction' AND clock_timestamp() > state_change + interval '1500 ms')`, t.Name())
	}, 10*time.Second, 10*time.Millisecond, "its turn lasts longer than its sessions may idle")

	set("2030-01-13 12:00:00+00")
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(short))
	require.Equal(t, []string{"20300110", "20300111", "20300112", "20300113", "20300114", "20300115"},
		listPartitionDays(t, pool, opts), "all is left to the first one")
	completeNewKey(t, pgxstore.New(pool, opts))
	finish()
	require.NoError(t, <-dropped)
	require.NotContains(t, listPartitionDays(t, pool, opts), "20300110")
}

// createStall is a tracer of pgx. It holds the second of two calls before its CREATE until the first call may drop.
type createStall struct{ secondArrived, firstDropping chan struct{} }

type isSecond struct{}

func (s createStall) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if ctx.Value(isSecond{}) != nil && strings.Contains(q.SQL, "pg_advisory_xact_lock") {
		close(s.secondArrived)
		select {
		case <-s.firstDropping:
		case <-ctx.Done():
		}
	}
	return ctx
}

func (s createStall) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Two calls on a pool of two connections do not block each other.
func TestMaintainOnASmallPool(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s := createStall{make(chan struct{}), make(chan struct{})}
	direct := newPool(t, serverURL(t))
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.Tracer = 2, s },
		withApplicationName(t.Name()))
	table := pgxstore.NewTable(pool, newTable(t, direct, pgxstore.Options{PartitionDays: 1}))
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { second <- table.Maintain(context.WithValue(ctx, isSecond{}, true)) }()
	<-s.secondArrived
	go func() { first <- table.Maintain(ctx) }()
	awaitCondition(t, direct, `SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'idle in transaction'
		AND query LIKE '%pg_try_advisory_xact_lock%' AND application_name = '`+t.Name()+`'`)
	close(s.firstDropping)
	require.NoError(t, <-first)
	require.NoError(t, <-second)
}

// A completion moves a record to another day, and still commits when midnight has passed. Meanwhile, requests must
// find the record in one of the two days.
func TestCompletionAcrossMidnight(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 2, SpareDays: 1}, "2030-01-10 23:59:59.9+00")
	store := pgxstore.New(pool, opts)
	key := keyOf("1")
	brief := attempt
	brief.Lease, brief.TTL = 50*time.Millisecond, 50*time.Millisecond
	_, claim, err := store.Begin(ctx, key, brief)
	require.NoError(t, err)

	gate, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = gate.Rollback(context.Background()) }()
	_, err = gate.Exec(ctx, "SELECT pg_advisory_xact_lock(20300112)")
	require.NoError(t, err)
	execStatement(t, pool, fmt.Sprintf(`CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN PERFORM pg_advisory_xact_lock(20300112); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON %s DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.status IS NOT NULL) EXECUTE FUNCTION gate()`, partitionName(opts, "20300112")))
	completion := make(chan error, 1)
	go func() { completion <- claim.Complete(ctx, answer, 30*time.Hour) }()
	require.Eventually(t, func() bool {
		return queryValue[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_locks WHERE objid = 20300112 AND NOT granted)")
	}, 10*time.Second, time.Millisecond)

	set("2030-01-11 00:00:00.1+00")
	maintained := make(chan error, 1)
	go func() { maintained <- store.Maintain(ctx) }()
	require.Eventually(t, func() bool {
		return len(maintained) == 1 || isPending(t, pool, opts)
	}, 10*time.Second, time.Millisecond)
	type outcome struct {
		record idempotency.Record
		err    error
	}
	second := make(chan outcome, 1)
	go func() {
		record, _, err := store.Begin(ctx, key, attempt)
		second <- outcome{record, err}
	}()
	require.Eventually(t, func() bool {
		return len(second) == 1 || queryValue[bool](t, pool, `SELECT EXISTS (
			SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE NOT l.granted AND a.query LIKE '%"' || $1 || '\_claim%')`, opts.Table)
	}, 10*time.Second, time.Millisecond, "it waits for the completion")
	require.NoError(t, gate.Rollback(ctx))
	require.NoError(t, <-completion)
	require.NoError(t, <-maintained)
	got := <-second
	require.NoError(t, got.err)
	require.NotNil(t, got.record.Response, "it was not executed again")
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}

// The same table, and the same key, may be named with its schema or found by the search path.
func TestSpellingOfTheSchema(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1})
	key, _ := claimNewKey(t, pgxstore.New(pool, opts))
	opts.Schema = "public"
	record, second, err := pgxstore.New(pool, opts).Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.Nil(t, second)
	require.NotZero(t, record.LeaseLeft, "it is running")
}

// No key is claimed twice around midnight, although its records go to different partitions.
func TestBorderOfDays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), withRepeatableRead) // a claim that has waited must see the changes of the others
	now, set := newClock(t, pool)
	set("2030-05-01 11:59:59+00")
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 3}.WithClock(now))
	// For half of the sessions the clock is two seconds ahead, so their records expire on the next day.
	late := opts.WithClock(now + " + interval '2 seconds'")
	stores := []*pgxstore.Store{pgxstore.New(pool, opts), pgxstore.New(pool, late)}
	var sides [2]atomic.Int64
	for i := range 30 {
		key := keyOf(fmt.Sprint(i))
		day := idempotency.ClaimRequest{Fingerprint: attempt.Fingerprint, Lease: 12 * time.Hour, TTL: 12 * time.Hour}
		var executed atomic.Int64
		var crowd sync.WaitGroup
		for n := range 16 {
			crowd.Go(func() {
				record, claim, err := stores[n%2].Begin(ctx, key, day)
				for err == nil && claim == nil && record.Response == nil {
					record, claim, err = stores[n%2].Begin(ctx, key, day)
				}
				if err == nil && claim != nil {
					executed.Add(1)
					sides[n%2].Add(1)
					err = errors.Join(checkPartition(ctx, pool, opts, key, "2030050"+[]string{"1", "2"}[n%2]),
						claim.Complete(ctx, answer, 12*time.Hour))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		crowd.Wait()
		require.Equal(t, int64(1), executed.Load())
		require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE key = $1", key.ID))
	}
	require.NotZero(t, sides[0].Load(), "claims were won before midnight")
	require.NotZero(t, sides[1].Load(), "and after it")
	require.Equal(t, 2, queryValue[int](t, pool, "SELECT count(DISTINCT tableoid) FROM "+tableName(opts)))
}

// checkPartition returns an error if a record is in the partition of another day.
func checkPartition(ctx context.Context, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key, want string) error {
	var day string
	err := pool.QueryRow(ctx, "SELECT right(relname, 8) FROM pg_class WHERE oid = (SELECT tableoid FROM "+tableName(opts)+
		" WHERE key = $1)", key.ID).Scan(&day)
	if err == nil && day != want {
		return fmt.Errorf("the record is in the partition of %s, not %s", day, want)
	}
	return err
}

// Dropping a day costs the same for any number of records.
func TestMaintainCost(t *testing.T) {
	t.Parallel()
	pool := newPool(t, servertest.Postgres(t, "autovacuum=off").URL())
	now, set := newClock(t, pool)
	drop := func(records int) (written int64) {
		set("2030-01-01 12:00:00+00")
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1, SpareDays: 1}.WithClock(now))
		insertRecords(t, pool, opts, records, "'2030-01-01 13:00:00+00'::timestamptz")
		set("2030-01-02 12:00:00+00")
		execStatement(t, pool, "CHECKPOINT")
		before := readWALPosition(t, pool)
		require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(context.Background()))
		return readWALPosition(t, pool) - before
	}
	few, many := drop(100), drop(50_000)
	require.Less(t, many, few+few/2, "bytes of WAL for 50,000 and for 100 records (%d)", few)
}

func TestIsolationWithPartitions(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	store := pgxstore.New(pool, pgxstore.Options{PartitionDays: 1, Isolation: "serializable"})
	_, _, err := store.Begin(context.Background(), keyOf("1"), attempt)
	require.ErrorContains(t, err, "read committed")
	require.ErrorContains(t, store.Check(context.Background()), "read committed")
}
