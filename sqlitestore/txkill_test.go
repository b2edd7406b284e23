package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/killtest"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// accounts that money is moved between, and what each has at first.
const accounts, balance = 10, 1_000_000

// Processes that move money in their transactions are killed at random. Whatever was acknowledged has happened, nothing
// has happened twice, and no money is lost. None is charged twice, however often it was rolled back.
func TestTransfersOfKilledProcesses(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openTx(t, path, sqlitestore.Options{}) // stays open: two processes and this one
	other := foreign(t, path)
	execute(t, other, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
	execute(t, other, "CREATE TABLE transfers (key TEXT NOT NULL, attempt TEXT NOT NULL, amount INTEGER NOT NULL)")
	for id := range accounts {
		execute(t, other, "INSERT INTO accounts VALUES (?, ?)", id, balance)
	}
	said, provider := killtest.NewTransfers(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, said, provider.Env(), clerkPath+"="+path))

	made := transfersMade(t, other)
	require.NoError(t, said.Explain(t.Context(), store, made))
	require.Equal(t, accounts*balance, one[int](t, other, "SELECT sum(balance) FROM accounts"))
	const completed = "SELECT count(*) FROM idempotency_records WHERE response IS NOT NULL"
	require.Equal(t, len(made), one[int](t, other, completed))
	require.Equal(t, "ok", one[string](t, other, "PRAGMA integrity_check"))
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	t.Logf("%d processes were killed, %d transfers made, %d acknowledged, 0 double, 0 lost, %d overtaken; %s",
		*deaths, len(made), len(said.Acknowledged()), said.Overtaken(), provider)
}

// transfersMade returns the attempts by key that have taken effect.
func transfersMade(t *testing.T, db *sql.Conn) map[string][]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT key, attempt FROM transfers")
	require.NoError(t, err)
	defer rows.Close()
	made := make(map[string][]string)
	for rows.Next() {
		var key, attempt string
		require.NoError(t, rows.Scan(&key, &attempt))
		made[key] = append(made[key], attempt)
	}
	require.NoError(t, rows.Err())
	return made
}

const clerkPath = "SQLITESTORE_CLERK"

// clerk moves money until its process is killed.
func clerk(path string) {
	killtest.Live(func() (killtest.Work, error) {
		store, err := sqlitestore.OpenTx(context.Background(), path, sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			Lease: time.Minute, StoreTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
		return func(key idempotency.Key) error { return transfer(runner, key) }, nil
	})
}

// transfer charges and moves money, or has the answer replayed, and says so. The answer is the name of the attempt.
func transfer(runner *idempotency.Runner, key idempotency.Key) error {
	attempt := uuid.NewString()
	resp, _, err := runner.Do(context.Background(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
		if err := killtest.Charge(ctx); err != nil {
			return idempotency.Response{}, err
		}
		return idempotency.Response{Status: 201, Body: []byte(attempt)}, move(ctx, key.ID, attempt)
	})
	switch {
	case errors.Is(err, idempotency.ErrInProgress):
	case errors.Is(err, idempotency.ErrClaimLost):
		killtest.SayOvertaken(attempt)
	case err != nil:
		return err
	default:
		killtest.SayAnswered(key, resp.Body)
	}
	return nil
}

// move moves money by three statements.
func move(ctx context.Context, key, attempt string) error {
	tx, _ := sqlitestore.Tx(ctx)
	amount, from := 1+rand.N(100), rand.N(accounts)
	to := (from + 1 + rand.N(accounts-1)) % accounts
	const change = "UPDATE accounts SET balance = balance + ? WHERE id = ?"
	if _, err := tx.ExecContext(ctx, change, -amount, from); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, change, amount, to); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO transfers VALUES (?, ?, ?)", key, attempt, amount)
	return err
}
