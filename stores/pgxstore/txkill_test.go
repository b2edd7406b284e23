package pgxstore_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var processesToKill = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// transfersLevelEnv names the environment variable with the isolation level of a child process.
const transfersLevelEnv = "PGXSTORE_MORTAL"

// transfersURLEnv names the environment variable with the URL of the server.
const transfersURLEnv = "PGXSTORE_MORTAL_URL"

// Processes that charge, and then move money between accounts in a step, are killed at random while other processes
// send the same keys. Each transfer is made once, is charged once, and has one answer.
func TestTransfersSurviveKills(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			url := servertest.Postgres(t).URL()
			pool, opts := newPool(t, url), pgxstore.Options{Isolation: level}
			require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts))
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			ledger := killtest.Ledger{DB: db}
			require.NoError(t, ledger.Create(t.Context()))
			transfers := killtest.NewTransfers(t)
			require.NoError(t, transfers.Kill(*processesToKill, transfersLevelEnv+"="+string(level), transfersURLEnv+"="+url))
			require.NoError(t, transfers.Explain(t.Context(), pgxstore.New(pool, opts), bookIn(pool), ledger))
			t.Logf("%d processes were killed: %s", *processesToKill, transfers)
		})
	}
}

// runTransfers makes transfers until the process is killed.
func runTransfers(level pgx.TxIsoLevel) {
	killtest.RunProcess(func() (killtest.Work, error) {
		pool, err := pgxpool.New(context.Background(), os.Getenv(transfersURLEnv))
		if err != nil {
			return nil, err
		}
		return killtest.ExecuteTransfers(pgxstore.New(pool, pgxstore.Options{Isolation: level}), bookIn(pool))
	})
}

// bookIn books in a transaction of the store, or of the handler with pgx or package database/sql, in turn.
func bookIn(pool *pgxpool.Pool) killtest.Book {
	exec := func(ctx context.Context, tx pgx.Tx) func(statement string) error {
		return func(statement string) error {
			_, err := tx.Exec(ctx, statement)
			return err
		}
	}
	return killtest.Alternate(
		killtest.BookTx(pgxstore.DoSQLTx[string]),
		killtest.BookInTx(stdlib.OpenDBFromPool(pool), pgxstore.DoInSQLTx[string]),
		func(ctx context.Context, receipt string) (string, error) {
			return pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
				return killtest.WriteRows(ctx, receipt, exec(ctx, tx))
			})
		},
		func(ctx context.Context, receipt string) (entry string, err error) {
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				entry, err = pgxstore.DoInTx(ctx, tx, "book", func() (string, error) {
					return killtest.WriteRows(ctx, receipt, exec(ctx, tx))
				})
				return err
			})
			return entry, err
		},
	)
}
