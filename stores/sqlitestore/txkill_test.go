package sqlitestore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Processes that charge, and then move money between accounts in a step, are killed at random, while others ask for the same
// keys. Every transfer is made once and charged once, and has one answer.
func TestTransfersSurviveKills(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	db, err := openLedger(path)
	require.NoError(t, err)
	defer db.Close()
	ledger := killtest.Ledger{DB: db}
	require.NoError(t, ledger.Create(t.Context()))
	said := killtest.NewTransfers(t)
	require.NoError(t, said.Kill(*deaths, clerkPath+"="+path))
	require.NoError(t, said.Explain(t.Context(), store, bookIn(db), ledger))
	require.Equal(t, "ok", one[string](t, foreign(t, path), "PRAGMA integrity_check"))
	t.Logf("%d processes were killed: %s", *deaths, said)
}

const clerkPath = "SQLITESTORE_CLERK"

// clerk makes transfers until its process is killed.
func clerk(path string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		db, err := openLedger(path)
		if err != nil {
			return nil, err
		}
		return killtest.ExecuteTransfers(store, bookIn(db))
	})
}

// openLedger opens the file besides the store.
func openLedger(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_txlock=immediate")
}

// bookIn writes rows in a transaction of the store, or in one of the handler.
func bookIn(db *sql.DB) killtest.Book {
	return killtest.Alternate(killtest.BookTx(sqlitestore.DoTx[string]), killtest.BookInTx(db, sqlitestore.DoInTx[string]))
}
