package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// Processes that charge, and then move money between accounts in a step, are killed at random while other processes
// send the same keys. Each transfer is made once, is charged once, and has one answer.
func TestTransfersSurviveKills(t *testing.T) {
	t.Parallel()
	dsn := servertest.MariaDB(t).DSN()
	db := openPool(t, dsn)
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	ledger := killtest.Ledger{DB: db}
	require.NoError(t, ledger.Create(t.Context()))
	transfers := killtest.NewTransfers(t)
	require.NoError(t, transfers.Kill(*processesToKill, transfersDSNEnv+"="+dsn))
	require.NoError(t, transfers.Explain(t.Context(), mysqlstore.New(db, mysqlstore.Options{}), bookIn(db), ledger))
	t.Logf("%d processes were killed: %s", *processesToKill, transfers)
}

const transfersDSNEnv = "MYSQLSTORE_MORTAL_TX"

// runTransfers makes transfers until the process is killed.
func runTransfers(dsn string) {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	killtest.RunProcess(func() (killtest.Work, error) {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
		return killtest.ExecuteTransfers(mysqlstore.New(db, mysqlstore.Options{}), bookIn(db))
	})
}

// bookIn books in a transaction of the store or of the handler, alternately.
func bookIn(db *sql.DB) killtest.Book {
	return killtest.Alternate(killtest.BookTx(mysqlstore.DoTx[string]), killtest.BookInTx(db, mysqlstore.DoInTx[string]))
}
