package pgxstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestStoreConformance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode  pgx.QueryExecMode
		level pgx.TxIsoLevel // isolation level of the sessions
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

func TestSealedAndCachedStoreConforms(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	cached := cache.New(mustSeal(t, pgxstore.New(pool, newTable(t, pool, pgxstore.Options{})), nil), cache.Options{})
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return cached })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return cached })
}

// mustSeal returns store sealed with cipher, or store itself if cipher is nil.
func mustSeal(t testing.TB, store idempotency.Store, cipher seal.Cipher) idempotency.Store {
	t.Helper()
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32), Cipher: cipher}},
	})
	require.NoError(t, err)
	return sealed
}
