package pgxstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// onlyFsync is what Check has to say of the server that the tests share.
const onlyFsync = "pgxstore: fsync is off: a crash of the machine loses records"

func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, opts := range map[string]pgxstore.Options{
		"own schema and table": {Schema: `own "schema"`, Table: "own table"},
		"partitions":           {Schema: `own "schema"`, Table: "by day", PartitionDays: 3},
	} {
		t.Run(name, func(t *testing.T) {
			var instances sync.WaitGroup
			for range 4 {
				instances.Go(func() {
					if err := pgxstore.Migrate(ctx, pool, opts); err != nil {
						t.Error(err)
					}
				})
			}
			instances.Wait()
			store := pgxstore.New(pool, opts)
			key := completed(t, store)

			require.NoError(t, pgxstore.Migrate(ctx, pool, opts), "again")
			for _, m := range pgxstore.Migrations(opts) {
				execute(t, pool, m.SQL) // as another tool would, a second time
			}
			record, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, record.Response, "the records are still there")
		})
	}
}

// Many instances start at once, whatever the isolation level of their sessions.
func TestMigrateOnSessionsOfAnotherLevel(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), repeatable)
	for i := range 5 {
		opts := pgxstore.Options{Table: fmt.Sprintf("start %d", i), PartitionDays: 10}
		var instances sync.WaitGroup
		for range 8 {
			instances.Go(func() {
				if err := pgxstore.Migrate(context.Background(), pool, opts); err != nil {
					t.Error(err)
				}
			})
		}
		instances.Wait()
	}
}

// What the server would refuse, or silently take for something else, is refused at once; all faults together.
func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	faulty := pgxstore.Options{
		Table: strings.Repeat("x", 60), PartitionDays: -1, Isolation: "SERIALIZABLE", IdleTimeout: 25 * 24 * time.Hour,
	}
	_, _, leased := pgxstore.New(pool, faulty).Begin(ctx, keyOf("1"), attempt)
	_, _, inTx := pgxstore.NewTx(pool, faulty).Begin(ctx, keyOf("1"), attempt)
	for what, err := range map[string]error{
		"migrate": pgxstore.Migrate(ctx, pool, faulty), "check": pgxstore.NewTable(pool, faulty).Check(ctx),
		"lease": leased, "transaction": inTx,
	} {
		for _, fault := range []string{
			"too long", "less than zero", `no isolation level "SERIALIZABLE"`, "needs the isolation level", "IdleTimeout is 600h0m0s",
		} {
			require.ErrorContains(t, err, fault, what)
		}
	}
	for _, timeout := range []time.Duration{-1, 25 * 24 * time.Hour} {
		require.Error(t, pgxstore.Migrate(ctx, pool, pgxstore.Options{IdleTimeout: timeout}), timeout)
	}
}

// A store that was given other options than the table was made with does nothing, rather than something unsafe.
func TestMismatchOfTableAndOptions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, days := range map[string][2]int{"divided": {1, 0}, "plain": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			made := newTable(t, pool, pgxstore.Options{PartitionDays: days[0]})
			told := made
			told.PartitionDays = days[1]
			_, _, err := pgxstore.New(pool, told).Begin(ctx, keyOf("1"), attempt)
			require.ErrorContains(t, err, "does not exist") // the function that claims
			require.ErrorContains(t, pgxstore.New(pool, told).Check(ctx), "PartitionDays")
			require.ErrorContains(t, pgxstore.Migrate(ctx, pool, told), "PartitionDays")
			for _, m := range pgxstore.Migrations(told) {
				_, err := pool.Exec(ctx, m.SQL) // as another tool would
				require.ErrorContains(t, err, "PartitionDays")
			}
			require.EqualError(t, pgxstore.New(pool, made).Check(ctx), onlyFsync, "nothing was changed")
			completed(t, pgxstore.New(pool, made))

			execute(t, pool, "ALTER TABLE "+tableName(made)+` RENAME TO "former `+made.Table+`"`)
			require.NoError(t, pgxstore.Migrate(ctx, pool, told), "a new table, with the other options")
			completed(t, pgxstore.New(pool, told))
			_, _, err = pgxstore.New(pool, made).Begin(ctx, keyOf("1"), attempt)
			require.ErrorContains(t, err, "does not exist", "what still has the former options is stopped")
		})
	}
}

// The function that claims is made again where it is missing: beside the table, wherever the table is found.
func TestMissingFunction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, days := range map[string]int{"plain": 0, "partitions": 2} {
		for where, lose := range map[string]string{
			"dropped":           `DROP FUNCTION "%[1]s_claim%[2]s"`,
			"table moved":       `ALTER TABLE "%[1]s" SET SCHEMA later`,
			"in a later schema": `ALTER TABLE "%[1]s" SET SCHEMA later`,
		} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t))
				opts := newTable(t, pool, pgxstore.Options{PartitionDays: days})
				execute(t, pool, "CREATE SCHEMA IF NOT EXISTS later")
				key := completed(t, pgxstore.New(pool, opts))
				execute(t, pool, fmt.Sprintf(lose, opts.Table, map[int]string{0: "", 2: "_day"}[days]))
				switch where {
				case "table moved":
					opts.Schema = "later"
				case "in a later schema":
					pool = newPool(t, serverURL(t), func(c *pgxpool.Config) {
						c.ConnConfig.RuntimeParams["search_path"] = "public, later"
					})
				}
				store := pgxstore.New(pool, opts)
				require.ErrorContains(t, store.Check(ctx), "call Migrate")
				require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
				require.EqualError(t, store.Check(ctx), onlyFsync)
				record, _, err := store.Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.NotNil(t, record.Response, "it is the same table")
				completed(t, store)
				if days != 0 {
					opts.PartitionDays++
					require.NoError(t, pgxstore.Migrate(ctx, pool, opts))
					require.Equal(t, one[string](t, pool, "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = $1",
						opts.Table), one[string](t, pool, `SELECT relnamespace::regnamespace::text FROM pg_class
						WHERE relkind = 'r' AND starts_with(relname, $1) ORDER BY relname DESC LIMIT 1`, opts.Table+"_"))
				}
			})
		}
	}
}

// Whatever PostgreSQL takes for a name works as one.
func TestNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for _, name := range []string{
		"a$$b", "a%sb", "\u00fc\"x'", "{now}", "q$1", "a.b", `a\b`, "x_claim", strings.Repeat("x", 53),
	} {
		for _, days := range []int{0, 1} {
			opts := pgxstore.Options{Schema: fmt.Sprintf("names '%d'", days), Table: name, PartitionDays: days}
			require.NoError(t, pgxstore.Migrate(ctx, pool, opts), name)
			for _, m := range pgxstore.Migrations(opts) {
				execute(t, pool, m.SQL)
			}
			store := pgxstore.New(pool, opts)
			require.EqualError(t, store.Check(ctx), onlyFsync, name)
			completed(t, store)
			if days == 0 {
				_, err := store.DeleteExpired(ctx)
				require.NoError(t, err, name)
			}
		}
	}
}

// Without its index DeleteExpired would read the whole table, so the name of the index must not be taken.
func TestNameOfTheIndexIsTaken(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := pgxstore.Options{Schema: "taken", Table: "records"}
	execute(t, pool, "DROP SCHEMA IF EXISTS taken CASCADE; CREATE SCHEMA taken; CREATE TABLE taken.records_expires ()")
	require.ErrorContains(t, pgxstore.Migrate(context.Background(), pool, opts), "records_expires")
	execute(t, pool, "DROP TABLE taken.records_expires")
	require.NoError(t, pgxstore.Migrate(context.Background(), pool, opts))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := servertest.Postgres(t, "fsync=on")
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.New(pool, opts)
	require.NoError(t, store.Check(ctx))

	require.ErrorContains(t, pgxstore.NewTable(pool, pgxstore.Options{Table: "missing"}).Check(ctx), "call Migrate")
	days := newTable(t, pool, pgxstore.Options{PartitionDays: 2})
	require.NoError(t, pgxstore.NewTx(pool, days).Check(ctx))
	days.PartitionDays = 9
	require.ErrorContains(t, pgxstore.NewTx(pool, days).Check(ctx), "only 3 partitions")

	readOnly := newPool(t, db.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	require.ErrorContains(t, pgxstore.New(readOnly, opts).Check(ctx), "read_only")

	execute(t, pool, "ALTER TABLE "+tableName(opts)+" SET UNLOGGED")
	require.ErrorContains(t, store.Check(ctx), "unlogged")
	unsafe := servertest.Postgres(t, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	pool = newPool(t, unsafe.URL())
	store = pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	err := store.Check(ctx)
	for _, setting := range []string{"fsync is off", "synchronous_commit is off", "full_page_writes is off"} {
		require.ErrorContains(t, err, setting)
	}
	require.NoError(t, unsafe.Standby())
	pool.Reset()
	require.ErrorContains(t, store.Check(ctx), "standby")
}

// Check reports that the days to come are running out, before they are at an end.
func TestCheckOfPartitions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts, set := newTableAt(t, pool, pgxstore.Options{PartitionDays: 2}, "2030-01-10 12:00:00+00")
	store := pgxstore.New(pool, opts)
	set("2030-01-11 12:00:00+00")
	require.EqualError(t, store.Check(ctx), onlyFsync)
	set("2030-01-12 12:00:00+00")
	require.ErrorContains(t, store.Check(ctx), "only 1 partitions are ready")
	set("2030-01-10 12:00:00+00")
	execute(t, pool, "DROP TABLE "+partitionName(opts, "20300111"))
	require.ErrorContains(t, store.Check(ctx), "only 1 partitions are ready", "what comes after a gap does not count")
}

func TestCheckOfPrivileges(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	role := strings.ReplaceAll(opts.Table, " ", "_")
	execute(t, pool, "CREATE ROLE "+role+" LOGIN PASSWORD '"+pool.Config().ConnConfig.Password+"'")
	store := pgxstore.New(newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.User = strings.ToLower(role) }), opts)
	require.ErrorContains(t, store.Check(ctx), "the role may not")
	for _, privilege := range []string{"INSERT", "SELECT", "UPDATE", "DELETE"} {
		require.ErrorContains(t, store.Check(ctx), privilege)
		execute(t, pool, "GRANT "+privilege+" ON "+tableName(opts)+" TO "+role)
	}
	require.EqualError(t, store.Check(ctx), onlyFsync)
	completed(t, store)
	execute(t, pool, `REVOKE EXECUTE ON FUNCTION "`+opts.Table+`_claim" FROM PUBLIC`)
	require.ErrorContains(t, store.Check(ctx), "EXECUTE")
}
