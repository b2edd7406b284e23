package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/killtest"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// Processes that transfer money between accounts are killed at random, while others ask for the same keys. Each
// transfer that was answered has been made once, and no other has been made in part. None is charged twice, however often
// it was rolled back.
func TestTransfersSurviveKills(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1").DSN(), newOptions())
	execute(t, w.db, "CREATE TABLE "+w.table+"_transfers "+
		"(transfer VARCHAR(50), answer VARCHAR(50), origin INT, target INT, amount INT) ENGINE = InnoDB")
	for id := 3; id <= mortalAccounts; id++ {
		execute(t, w.db, "INSERT INTO "+w.accounts+" VALUES (?, 100)", id)
	}
	said, provider := killtest.NewTransfers(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, said, provider.Env(), mortalTxDSN+"="+w.dsn, mortalTxTable+"="+w.table))
	eventually(t, "the end of all sessions", func() bool {
		return one[int](t, w.db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB IS NOT NULL") <=
			w.db.Stats().OpenConnections
	})
	made := w.transfersMade(t)
	require.NoError(t, said.Explain(t.Context(), w.store, made))
	const wrong = `SELECT COUNT(*) FROM {acc} WHERE balance <> 100
		- (SELECT COALESCE(SUM(amount), 0) FROM {transfers} WHERE origin = id)
		+ (SELECT COALESCE(SUM(amount), 0) FROM {transfers} WHERE target = id)`
	names := strings.NewReplacer("{acc}", w.accounts, "{transfers}", w.table+"_transfers")
	require.Zero(t, one[int](t, w.db, names.Replace(wrong)), "accounts whose balance is not that of their transfers")
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	t.Logf("%d processes were killed, %d transfers made, %d acknowledged, 0 double, 0 lost; %s",
		*deaths, len(made), len(said.Acknowledged()), provider)
}

// transfersMade returns the answers of the transfers that were made, by key.
func (w *world) transfersMade(t *testing.T) map[string][]string {
	t.Helper()
	rows, err := w.db.Query("SELECT transfer, answer FROM " + w.table + "_transfers")
	require.NoError(t, err)
	defer rows.Close()
	made := make(map[string][]string)
	for rows.Next() {
		var key, answer string
		require.NoError(t, rows.Scan(&key, &answer))
		made[key] = append(made[key], answer)
	}
	require.NoError(t, rows.Err())
	return made
}

const (
	mortalTxDSN   = "MYSQLSTORE_MORTAL_TX"
	mortalTxTable = "MYSQLSTORE_MORTAL_TABLE"

	mortalAccounts = 10
)

// liveTx makes transfers until the process is killed.
func liveTx(dsn, table string) {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	killtest.Live(func() (killtest.Work, error) {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
		store := mysqlstore.NewTx(db, mysqlstore.Options{Table: table})
		runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		return func(key idempotency.Key) error { return transfer(runner, table, key) }, nil
	})
}

// transfer charges for a transfer and makes it, or has its answer replayed, and says so. Some handlers run into a deadlock:
// they take the accounts in another order.
func transfer(runner *idempotency.Runner, table string, key idempotency.Key) error {
	resp, _, err := runner.Do(context.Background(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
		if err := killtest.Charge(ctx); err != nil {
			return idempotency.Response{}, err
		}
		tx, ok := mysqlstore.Tx(ctx)
		if !ok {
			return idempotency.Response{}, errors.New("no transaction")
		}
		amount, from, to := rand.IntN(5)+1, rand.IntN(mortalAccounts)+1, rand.IntN(mortalAccounts)+1
		answer := uuid.NewString()
		insert := "INSERT INTO " + table + "_transfers VALUES (?, ?, ?, ?, ?)"
		if _, err := tx.ExecContext(ctx, insert, key.ID, answer, from, to, amount); err != nil {
			return idempotency.Response{}, err
		}
		for _, change := range [][2]int{{from, -amount}, {to, amount}} {
			_, err := tx.ExecContext(ctx, "UPDATE "+table+"_acc SET balance = balance + ? WHERE id = ?", change[1], change[0])
			if err != nil && rand.IntN(2) == 0 { // the others ignore it
				return idempotency.Response{}, err
			}
		}
		return idempotency.Response{Status: 201, Body: []byte(answer)}, nil
	})
	switch {
	case err == nil:
		killtest.SayAnswered(key, resp.Body)
	case errors.Is(err, idempotency.ErrInProgress), errors.Is(err, idempotency.ErrRolledBack):
	case errors.As(err, new(*mysql.MySQLError)):
	default:
		return err
	}
	return nil
}
