package sqlitestore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Processes that charge, and then move money between accounts in a step, are killed at random while other processes
// send the same keys. Each transfer is made once, is charged once, and has one answer.
func TestTransfersSurviveKills(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	db, err := openLedger(path)
	require.NoError(t, err)
	defer db.Close()
	ledger := killtest.Ledger{DB: db}
	require.NoError(t, ledger.Create(t.Context()))
	transfers := killtest.NewTransfers(t)
	require.NoError(t, transfers.Kill(*processesToKill, transfersPathEnv+"="+path))
	require.NoError(t, transfers.Explain(t.Context(), store, bookIn(db), ledger))
	require.Equal(t, "ok", queryValue[string](t, openConn(t, path), "PRAGMA integrity_check"))
	t.Logf("%d processes were killed: %s", *processesToKill, transfers)
}

const transfersPathEnv = "SQLITESTORE_CLERK"

// runTransfers makes transfers until the process is killed.
func runTransfers(path string) {
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

// openLedger opens the file with connections of the handler, besides those of the store.
func openLedger(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_txlock=immediate")
}

// bookIn books in a transaction of the store or of the handler, alternately.
func bookIn(db *sql.DB) killtest.Book {
	return killtest.Alternate(killtest.BookTx(sqlitestore.DoTx[string]), killtest.BookInTx(db, sqlitestore.DoInTx[string]))
}
