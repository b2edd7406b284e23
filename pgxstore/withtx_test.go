package pgxstore_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// A handler has the transaction of its test by either interface, and whoever has none is told so.
func TestWithTx(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	l := newLedger(t, pool, newTable(t, pool, pgxstore.Options{}))
	begin := func() pgx.Tx {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}
	key := keyOf("1")

	tx := begin()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inTx := pgxstore.WithTx(ctx, tx)
	found, ok := pgxstore.Tx(inTx)
	require.True(t, ok)
	require.Equal(t, tx, found)
	_, err := found.Exec(ctx, l.insert(), key.ID)
	require.NoError(t, err)
	bySQL, ok := pgxstore.SQLTx(inTx)
	require.True(t, ok)
	var count int
	require.NoError(t, bySQL.QueryRow("SELECT count(*) FROM "+l.table).Scan(&count))
	require.Equal(t, 1, count, "it is the same transaction")
	require.False(t, pgxstore.KeepEffects(inTx), "there is no answer to keep them with")
	cancel()
	require.Eventually(t, func() bool { _, err := bySQL.Exec("SELECT 1"); return err != nil }, 10*time.Second, time.Millisecond)
	_, err = tx.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err, "the transaction is the test's to end")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, l.effects(t, key))

	tx = begin()
	bySQL, _ = pgxstore.SQLTx(pgxstore.WithTx(t.Context(), tx))
	_, err = bySQL.Exec(l.insert(), key.ID)
	require.NoError(t, err)
	require.NoError(t, bySQL.Commit())
	require.Equal(t, 1, l.effects(t, key))
	require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed)

	tx = begin()
	bySQL, _ = pgxstore.SQLTx(pgxstore.WithTx(t.Context(), tx))
	require.NoError(t, bySQL.Rollback())
	require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed)

	_, ok = pgxstore.Tx(t.Context())
	require.False(t, ok)
}

// transactor is what code asks for that begins a transaction: a pool, or a transaction.
type transactor interface {
	Begin(context.Context) (pgx.Tx, error)
}

// How programs are written that begin and commit for themselves. In the transaction of a handler they work if they begin,
// and if they are given it to commit they are told what to write instead.
func TestCodeThatCommits(t *testing.T) {
	t.Parallel()
	insert := func(ctx context.Context, tx pgx.Tx, l ledger, fail bool) error {
		if _, err := tx.Exec(ctx, l.insert(), "1"); err != nil {
			return err
		}
		if fail {
			return errHandler
		}
		return nil
	}
	beginFunc := func(ctx context.Context, db transactor, work func(pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, db, work)
	}
	begins := func(ctx context.Context, db transactor, work func(pgx.Tx) error) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if err := work(tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	commits := func(ctx context.Context, _ transactor, work func(pgx.Tx) error) error {
		tx, _ := pgxstore.Tx(ctx)
		defer func() { _ = tx.Rollback(ctx) }()
		if err := work(tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	commitsBySQL := func(ctx context.Context, _ transactor, work func(pgx.Tx) error) error {
		bridged, _ := pgxstore.SQLTx(ctx)
		defer func() { _ = bridged.Rollback() }()
		tx, _ := pgxstore.Tx(ctx)
		if err := work(tx); err != nil {
			return err
		}
		return bridged.Commit()
	}
	leavesItOut := func(ctx context.Context, _ transactor, work func(pgx.Tx) error) error {
		tx, _ := pgxstore.Tx(ctx)
		return work(tx)
	}
	pool := newPool(t, serverURL(t))
	for name, c := range map[string]struct {
		code    func(context.Context, transactor, func(pgx.Tx) error) error
		refused bool
	}{
		"BeginFunc":                    {beginFunc, false},
		"begins, defers and commits":   {begins, false},
		"leaves the commit out":        {leavesItOut, false},
		"defers and commits":           {commits, true},
		"defers and commits, in SQLTx": {commitsBySQL, true},
	} {
		for _, fail := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, fail), func(t *testing.T) {
				t.Parallel()
				opts := newTable(t, pool, pgxstore.Options{})
				l := newLedger(t, pool, opts)
				var got error
				h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					tx, _ := pgxstore.Tx(r.Context())
					got = c.code(r.Context(), tx, func(tx pgx.Tx) error { return insert(r.Context(), tx, l, fail) })
					if got != nil {
						http.Error(w, got.Error(), http.StatusInternalServerError)
						return
					}
					w.WriteHeader(http.StatusCreated)
				})
				status := post(h, "1").Code
				switch {
				case fail:
					require.ErrorIs(t, got, errHandler)
				case c.refused:
					require.ErrorIs(t, got, pgxstore.ErrCommit)
					require.ErrorContains(t, got, "leave Commit out")
					require.ErrorContains(t, got, "tx.Begin")
				default:
					require.NoError(t, got)
					require.Equal(t, http.StatusCreated, status)
					require.Equal(t, 1, l.effects(t, keyOf("1")))
					return
				}
				require.Equal(t, http.StatusInternalServerError, status)
				require.Zero(t, l.effects(t, keyOf("1")))
			})
		}
	}
}
