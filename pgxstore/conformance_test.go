package pgxstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func TestStoreConformance(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared":        pgx.QueryExecModeCacheStatement,
		"unprepared":      pgx.QueryExecModeExec,
		"simple protocol": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run("sessions that are "+string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level)
			})
			store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
	t.Run("partitions", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, serverURL(t))
		store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{PartitionDays: 3}))
		idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	})
}

func TestTxStoreConformance(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			store := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{Isolation: level}))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
	t.Run("partitions", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, serverURL(t))
		store := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{PartitionDays: 3}))
		idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	})
}

func TestSealedStoresConform(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	leased := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	transactional := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{}))
	for name, store := range map[string]idempotency.Store{"leased": leased, "transactional": transactional} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sealed := seal(t, store, nil)
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
		})
	}
}

func TestCachedStoresConform(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	leased := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	transactional := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{}))
	for name, store := range map[string]idempotency.Store{"leased": leased, "transactional": transactional} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := idempotency.NewCache(store, idempotency.CacheOptions{})
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return cache })
		})
	}
}

// seal seals a store, with cipher if it is not nil.
func seal(t testing.TB, store idempotency.Store, cipher idempotency.Cipher) idempotency.Store {
	t.Helper()
	sealed, err := idempotency.Seal(store, idempotency.SealOptions{
		Keys: []idempotency.SealKey{{ID: "1", Secret: make([]byte, 32), Cipher: cipher}},
	})
	require.NoError(t, err)
	return sealed
}
