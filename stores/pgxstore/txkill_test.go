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

var deaths = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// mortal has the isolation level of a process that is to be killed.
const mortal = "PGXSTORE_MORTAL"

// mortalURL has the address of its server.
const mortalURL = "PGXSTORE_MORTAL_URL"

// Processes that charge, and then move money between accounts in a step, are killed at random, while others ask for the same
// keys. Every transfer is made once and charged once, and has one answer.
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
			said := killtest.NewTransfers(t)
			require.NoError(t, said.Kill(*deaths, mortal+"="+string(level), mortalURL+"="+url))
			require.NoError(t, said.Explain(t.Context(), pgxstore.New(pool, opts), bookIn(pool), ledger))
			t.Logf("%d processes were killed: %s", *deaths, said)
		})
	}
}

// live makes transfers until the process is killed.
func live(level pgx.TxIsoLevel) {
	killtest.RunProcess(func() (killtest.Work, error) {
		pool, err := pgxpool.New(context.Background(), os.Getenv(mortalURL))
		if err != nil {
			return nil, err
		}
		return killtest.ExecuteTransfers(pgxstore.New(pool, pgxstore.Options{Isolation: level}), bookIn(pool))
	})
}

// bookIn writes rows in a transaction of the store, or in one of the handler, of pgx and of package database/sql.
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
