package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// The store is the same whatever the settings of the driver and of the session. Each is in one of the rows.
func TestTxConformance(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"default": nil,
		"found rows, interpolated, serializable, another charset": {"clientFoundRows=true", "interpolateParams=true",
			"tx_isolation=%27SERIALIZABLE%27", "charset=latin1"},
		"read committed, snapshot isolation, local time, ANSI": {"tx_isolation=%27READ-COMMITTED%27",
			"innodb_snapshot_isolation=1", "multiStatements=true", "parseTime=true", "loc=Local",
			"time_zone=%27-03%3A30%27", "sql_mode=%27ANSI,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES%27"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings...)
			db := pool(t, server(t).DSN())
			t.Run("contract", func(t *testing.T) {
				idempotencytest.Run(t, func(*testing.T) idempotency.Store { return w.store })
			})
			idempotencytest.RunTx(t, func(*testing.T) idempotency.Store { return w.store }, w.act,
				func(ctx context.Context, name string) (n int, err error) {
					err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+w.effects+" WHERE name = ?", name).Scan(&n)
					return n, err
				})
		})
	}
}

// world is a store, a table for the effects of handlers, and one for them to meet in.
type world struct {
	db       *sql.DB
	store    *mysqlstore.TxStore
	dsn      string
	table    string
	effects  string
	accounts string // 1 and 2, with 100 each
}

func newWorld(t testing.TB, settings ...string) *world {
	t.Helper()
	return newWorldAt(t, server(t).DSN(), newOptions(), settings...)
}

func newWorldAt(t testing.TB, dsn string, opts mysqlstore.Options, settings ...string) *world {
	t.Helper()
	db := pool(t, dsn, settings...)
	require.NoError(t, mysqlstore.Migrate(context.Background(), db, opts))
	w := &world{db: db, store: mysqlstore.NewTx(db, opts), dsn: dsn, table: opts.Table, effects: opts.Table + "_fx",
		accounts: opts.Table + "_acc"}
	execute(t, db, "CREATE TABLE "+w.effects+" (name VARCHAR(50), KEY (name)) ENGINE = InnoDB")
	execute(t, db, "CREATE TABLE "+w.accounts+" (id INT PRIMARY KEY, balance INT NOT NULL) ENGINE = InnoDB")
	execute(t, db, "INSERT INTO "+w.accounts+" VALUES (1, 100), (2, 100)")
	return w
}

// act makes an effect in the transaction of a handler.
func (w *world) act(ctx context.Context, name string) error {
	tx, ok := mysqlstore.Tx(ctx)
	if !ok {
		return errors.New("no transaction")
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+w.effects+" (name) VALUES (?)", name)
	return err
}
