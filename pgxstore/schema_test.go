package pgxstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

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
	opts := newTable(t, pool, pgxstore.Options{PartitionDays: 1})
	opts.PartitionDays = 0
	_, _, err := pgxstore.New(pool, opts).Begin(ctx, keyOf("1"), attempt)
	require.ErrorContains(t, err, "does not exist") // the function that claims
	require.ErrorContains(t, pgxstore.New(pool, opts).Check(ctx), "by day")
	require.ErrorContains(t, pgxstore.Migrate(ctx, pool, opts), "by day")

	opts = newTable(t, pool, pgxstore.Options{})
	opts.PartitionDays = 1
	_, _, err = pgxstore.New(pool, opts).Begin(ctx, keyOf("1"), attempt)
	require.ErrorContains(t, err, "does not exist")
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
