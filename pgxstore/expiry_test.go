package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// fill inserts records that expire at a time given as SQL, as if they had been completed. Their digests are in order,
// which makes it much faster.
func fill(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options, records int, expires string) {
	t.Helper()
	execute(t, pool, fmt.Sprintf(`INSERT INTO %s (digest, user_id, endpoint, key, operation, attempt, fingerprint, token,
			created_at, expires_at, expires_minute, completed_at, status, body)
		SELECT sha256($2::text::bytea) || int8send(i), 'user', 'POST /', i::text, gen_random_uuid(), 1,
			'\x00', gen_random_uuid(), %[2]s, %[2]s, date_bin('1 minute', %[2]s, 'epoch'), %[2]s, 201, repeat('x', 400)::bytea
		FROM generate_series(1, $1::bigint) i`, tableName(opts), expires), records, uuid.NewString())
}

// claiming completes operations until stop is called, which returns how many there were and the longest one.
func claiming(t testing.TB, store idempotency.Store) (stop func() (int64, time.Duration)) {
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

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	const old = 10_500 // not a multiple of what one statement deletes
	fill(t, pool, opts, old, "now() - interval '2 minutes'")
	fill(t, pool, opts, 700, "now() + interval '1 hour'")
	store := pgxstore.New(pool, opts)
	running, claim := begun(t, store)

	stop := claiming(t, store)
	var deleted atomic.Int64
	var instances sync.WaitGroup
	for range 4 {
		instances.Go(func() {
			n, err := store.DeleteExpired(ctx)
			if err != nil {
				t.Error(err)
			}
			deleted.Add(n)
		})
	}
	instances.Wait()
	completed, _ := stop()
	require.Equal(t, int64(old), deleted.Load(), "each once, by one of the instances")
	require.Equal(t, 701+completed, one[int64](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	require.NoError(t, claim.Complete(ctx, answer, time.Hour), running.ID)
}

// What has been claimed again since it was found expired is not deleted.
func TestDeleteExpiredLeavesWhatWasClaimedAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	key := completed(t, store)
	execute(t, pool, "UPDATE "+tableName(opts)+` SET expires_at = now() - interval '2 minutes',
		expires_minute = date_bin('1 minute', now() - interval '2 minutes', 'epoch')`)

	held, err := pool.Begin(ctx) // as a claim that has not committed yet
	require.NoError(t, err)
	defer func() { _ = held.Rollback(ctx) }()
	_, err = held.Exec(ctx, "UPDATE "+tableName(opts)+" SET expires_at = now() + interval '1 hour'")
	require.NoError(t, err)
	n, err := store.DeleteExpired(ctx)
	require.NoError(t, err)
	require.Zero(t, n, "a record in use is skipped, not waited for")
	require.NoError(t, held.Commit(ctx))
	n, err = store.DeleteExpired(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	_, claim, err := store.Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.Nil(t, claim)
}

// newClock returns SQL for a time that stands still where it is set.
func newClock(t testing.TB, pool *pgxpool.Pool) (now string, set func(string)) {
	name := fmt.Sprintf("clock_%d", tables.Add(1))
	execute(t, pool, fmt.Sprintf(`CREATE TABLE %[1]s AS SELECT now() AS time;
		CREATE FUNCTION %[1]s_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT time FROM %[1]s'`, name))
	return name + "_now()", func(at string) {
		execute(t, pool, fmt.Sprintf("UPDATE %s SET time = $1::text::timestamptz", name), at)
	}
}

// partitions returns the days of the partitions of a table.
func partitions(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) []string {
	return column[string](t, pool, `SELECT right(c.relname, 8) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
		WHERE i.inhparent = $1::text::regclass ORDER BY 1`, tableName(opts))
}

func TestMaintain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	now, set := newClock(t, pool)
	set("2030-01-30 23:00:00+00")
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 2}.At(now))
	store := pgxstore.New(pool, opts)
	require.Equal(t, []string{"20300130", "20300131", "20300201"}, partitions(t, pool, opts))
	day := idempotency.Attempt{Fingerprint: attempt.Fingerprint, Lease: time.Minute, TTL: 24 * time.Hour}
	_, claim, err := store.Begin(ctx, keyOf("1"), day)
	require.NoError(t, err)

	set("2030-01-31 01:00:00+00")
	_, err = store.DeleteExpired(ctx)
	require.ErrorContains(t, err, "Maintain")
	var instances sync.WaitGroup
	for range 4 {
		instances.Go(func() {
			if err := store.Maintain(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	instances.Wait()
	require.NoError(t, store.Maintain(ctx)) // should all others have left it to one that had not begun
	require.Equal(t, []string{"20300131", "20300201", "20300202"}, partitions(t, pool, opts))
	require.NoError(t, claim.Complete(ctx, answer, 25*time.Hour), "the record moves to the day on which it expires now")
	require.Equal(t, 1, one[int](t, pool, `SELECT count(*) FROM `+partitionName(opts, "20300201")))

	set("2030-02-01 01:30:00+00")
	require.NoError(t, store.Maintain(ctx))
	record, _, err := store.Begin(ctx, keyOf("1"), day)
	require.NoError(t, err)
	require.NotNil(t, record.Response, "kept for 25 hours, until 02:00")
	set("2030-02-02 00:00:01+00")
	require.NoError(t, store.Maintain(ctx))
	require.Zero(t, one[int](t, pool, "SELECT count(*) FROM pg_class WHERE relname = $1", opts.Table+"_20300201"), "dropped")
}

func partitionName(opts pgxstore.Options, day string) string {
	opts.Table += "_" + day
	return tableName(opts)
}

// What an interrupted call leaves behind is finished by the next one, and a table that only looks like a partition is
// left alone.
func TestMaintainGoesOn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	now, set := newClock(t, pool)
	set("2030-01-10 12:00:00+00")
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 2}.At(now))
	store := pgxstore.New(pool, opts)
	execute(t, pool, "ALTER TABLE "+tableName(opts)+" DETACH PARTITION "+partitionName(opts, "20300111"))
	execute(t, pool, "CREATE TABLE "+partitionName(opts, "20300101")+" (mine int)")

	reader, err := pool.Begin(ctx)
	require.NoError(t, err)
	_, err = reader.Exec(ctx, "SELECT FROM "+tableName(opts))
	require.NoError(t, err)
	set("2030-01-12 12:00:00+00")
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	require.Error(t, store.Maintain(short), "a transaction is still reading")
	completed(t, store) // meanwhile nobody else has to wait
	require.NoError(t, reader.Rollback(ctx))

	require.Eventually(t, func() bool { return store.Maintain(ctx) == nil }, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, []string{"20300112", "20300113", "20300114"}, partitions(t, pool, opts))
	require.Equal(t, []string{opts.Table + "_20300101"}, column[string](t, pool,
		"SELECT relname::text FROM pg_class WHERE starts_with(relname, $1) AND relkind = 'r' AND relname < $2",
		opts.Table+"_", opts.Table+"_20300112"))
}

// No key is claimed twice on the two sides of midnight, where records go to different partitions.
func TestBorderOfDays(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	now, set := newClock(t, pool)
	for name, open := range map[string]func(pgxstore.Options) idempotency.Store{
		"lease":       func(o pgxstore.Options) idempotency.Store { return pgxstore.New(pool, o) },
		"transaction": func(o pgxstore.Options) idempotency.Store { return pgxstore.NewTx(pool, o) },
	} {
		set("2030-05-01 11:59:59+00")
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: 3}.At(now))
		// For half of the sessions the time is later by two seconds, so that their records expire on the next day.
		late := opts.At(now + " + interval '2 seconds'")
		stores := []idempotency.Store{open(opts), open(late)}
		var sides [2]atomic.Int64
		for i := range 30 {
			key := keyOf(fmt.Sprintf("%s %d", name, i))
			day := idempotency.Attempt{Fingerprint: attempt.Fingerprint, Lease: 12 * time.Hour, TTL: 12 * time.Hour}
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
						if name == "lease" {
							err = checkDay(ctx, pool, opts, key, "2030050"+[]string{"1", "2"}[n%2])
						}
						err = errors.Join(err, claim.Complete(ctx, answer, 12*time.Hour))
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			crowd.Wait()
			require.Equal(t, int64(1), executed.Load())
			require.Equal(t, 1, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE key = $1", key.ID))
		}
		require.NotZero(t, sides[0].Load(), "claims were won before midnight")
		require.NotZero(t, sides[1].Load(), "and after it")
		require.Equal(t, 2, one[int](t, pool, "SELECT count(DISTINCT tableoid) FROM "+tableName(opts)))
	}
}

// checkDay reports that a record is in the partition of another day.
func checkDay(ctx context.Context, pool *pgxpool.Pool, opts pgxstore.Options, key idempotency.Key, want string) error {
	var day string
	err := pool.QueryRow(ctx, "SELECT right(relname, 8) FROM pg_class WHERE oid = (SELECT tableoid FROM "+tableName(opts)+
		" WHERE key = $1)", key.ID).Scan(&day)
	if err == nil && day != want {
		return fmt.Errorf("the record is in the partition of %s, not %s", day, want)
	}
	return err
}

// Dropping a day costs the same however many records it has.
func TestMaintainCost(t *testing.T) {
	t.Parallel()
	pool := newPool(t, servertest.Postgres(t, "autovacuum=off").URL())
	now, set := newClock(t, pool)
	drop := func(records int) (written int64) {
		set("2030-01-01 12:00:00+00")
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1}.At(now))
		fill(t, pool, opts, records, "'2030-01-01 13:00:00+00'::timestamptz")
		set("2030-01-02 12:00:00+00")
		execute(t, pool, "CHECKPOINT")
		before := walPosition(t, pool)
		require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(context.Background()))
		return walPosition(t, pool) - before
	}
	few, many := drop(100), drop(50_000)
	require.Less(t, many, few+few/2, "bytes of WAL for 50,000 and for 100 records (%d)", few)
}

func TestIsolationWithPartitions(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	store := pgxstore.NewTx(pool, pgxstore.Options{PartitionDays: 1, Isolation: "serializable"})
	_, _, err := store.Begin(context.Background(), keyOf("1"), attempt)
	require.ErrorContains(t, err, "read committed")
	require.ErrorContains(t, store.Check(context.Background()), "read committed")
}
