package pgxstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/cache"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/seal"
)

func TestStoreConformance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode  pgx.QueryExecMode
		level pgx.TxIsoLevel // of the sessions
		opts  pgxstore.Options
	}{
		"prepared": {pgx.QueryExecModeCacheStatement, pgx.ReadCommitted, pgxstore.Options{}},
		"unprepared, repeatable read, in a divided table": {
			pgx.QueryExecModeExec, pgx.RepeatableRead, pgxstore.Options{PartitionDays: 3},
		},
		"simple protocol, serializable": {pgx.QueryExecModeSimpleProtocol, pgx.Serializable, pgxstore.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = test.mode
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(test.level)
			})
			store := pgxstore.New(pool, newTable(t, pool, test.opts))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
			idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
		})
	}
}

func TestTxStoreConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]pgxstore.Options{
		"read committed, divided table": {PartitionDays: 3},
		"repeatable read":               {Isolation: pgx.RepeatableRead},
		"serializable":                  {Isolation: pgx.Serializable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			store := pgxstore.NewTx(pool, newTable(t, pool, opts))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
}

func TestTxStoreConformanceOfEffects(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts   pgxstore.Options
		effect func(ctx context.Context, sql, name string) error
	}{
		"pgx, divided table":            {pgxstore.Options{PartitionDays: 3}, actByPgx},
		"database/sql, repeatable read": {pgxstore.Options{Isolation: pgx.RepeatableRead}, actBySQL},
		"serializable":                  {pgxstore.Options{Isolation: pgx.Serializable}, actByPgx},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			observer := newPool(t, serverURL(t), func(config *pgxpool.Config) { config.MaxConns = 2 })
			opts := newTable(t, pool, test.opts)
			effects := pgx.Identifier{opts.Table + " effects"}.Sanitize()
			execute(t, pool, "CREATE TABLE "+effects+" (name text NOT NULL)")
			effect := func(ctx context.Context, name string) error {
				return test.effect(ctx, "INSERT INTO "+effects+" VALUES ($1)", name)
			}
			count := func(ctx context.Context, name string) (n int, err error) {
				err = observer.QueryRow(ctx, "SELECT count(*) FROM "+effects+" WHERE name = $1", name).Scan(&n)
				return n, err
			}
			store := pgxstore.NewTx(pool, opts)
			idempotencytest.RunTx(t, func(*testing.T) idempotency.Store { return store }, effect, count)
		})
	}
}

func actByPgx(ctx context.Context, sql, name string) error {
	tx, ok := pgxstore.Tx(ctx)
	if !ok {
		return errNoTx
	}
	_, err := tx.Exec(ctx, sql, name)
	return err
}

func actBySQL(ctx context.Context, sql, name string) error {
	tx, ok := pgxstore.SQLTx(ctx)
	if !ok {
		return errNoTx
	}
	_, err := tx.ExecContext(ctx, sql, name)
	return err
}

var errNoTx = errors.New("no transaction in this context")

func TestSealedAndCachedStoresConform(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	leased := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	transactional := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{}))
	for name, store := range map[string]idempotency.Store{"leased": leased, "transactional": transactional} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cached := cache.New(mustSeal(t, store, nil), cache.Options{})
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return cached })
			if name == "leased" {
				idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return cached })
			}
		})
	}
}

// mustSeal seals a store, with cipher if it is not nil.
func mustSeal(t testing.TB, store idempotency.Store, cipher seal.Cipher) idempotency.Store {
	t.Helper()
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32), Cipher: cipher}},
	})
	require.NoError(t, err)
	return sealed
}
