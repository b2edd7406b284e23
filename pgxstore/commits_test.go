package pgxstore_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func TestWhatCommits(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"COMMIT": true, "commit;": true, "  ;\t;\r\n\f\vCommit": true, "COMMIT WORK": true, "commit transaction": true,
		"COMMIT AND CHAIN": true, "commit and no chain": true, "COMMIT PREPARED 'x'": true, "COMMIT; SELECT 1": true,
		"END": true, "end;": true, "END /* a */ WORK": true, "end--\n": true, "END/**/": true,
		"PREPARE TRANSACTION 'x'": true, "prepare\n--\n/**/transaction 'x'": true,
		"-- a\nCOMMIT": true, "-- a\rCOMMIT": true, "/* a */ COMMIT": true, "/* /* nested */ */ COMMIT": true,
		"/* a */ /* b */COMMIT": true, "/**/;/***/--\n;COMMIT": true, "/*/ */COMMIT": true, "/* -- */COMMIT": true,
		"-- /*\nCOMMIT": true, "/*/**/*/COMMIT": true,

		// What a statement behind another does is noticed when it is done: see TestHandlerInTransaction.
		"SELECT 1; COMMIT": false, "SELECT 1; PREPARE TRANSACTION 'x'": false,

		"": false, ";": false, " -- COMMIT": false, "/* COMMIT": false, "/* /* */ COMMIT": false, "/": false, "-": false,
		"SELECT 1": false, "'COMMIT'": false, "(COMMIT)": false, `"commit"`: false,
		"/* a */ SELECT CASE WHEN true THEN 1 /* b */ END":              false,
		"-- name: A :one\n/* a */ SELECT CASE WHEN true THEN 1 --\nEND": false,
		"/* a */ DO $$ BEGIN NULL; /* done */ END $$":                   false,
		"/* a */ SELECT 'x /* y */ commit'":                             false,
		"end-of-day":                                                    false, "end of day": false, "commit-order": false, "commit_order": false, "commits": false,
		"end#": false, "#\nCOMMIT": false, "ending": false, "end2": false, "end$": false, "endé": false, "end.day": false, "commit workers": false, "commit worké": false,
		"PREPARE transactions AS SELECT 1": false, "prepare": false, "prepare transaction_log": false,
		"ROLLBACK": false, "ABORT": false, "ROLLBACK TO a": false, "/* a */ BEGIN": false,
	} {
		assert.Equal(t, want, pgxstore.Commits(sql), "%q", sql)
	}
}

// What commits is what the server takes for it: after any other statement the transaction goes on, or has failed.
func TestWhatCommitsInTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := newPool(t, serverURL(t), alone).Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	pieces := []string{
		"commit", "COMMIT", "end", "End", "work", "transaction", "and", "no", "chain", "prepare", "select 1", "'x'",
		"case when true then 1", "-of-day", "_", "2", " ", "\t", "\n", "\r", "\f", ";",
		"--", "-", "/*", "*/", "/", "*", "/* a */", "/* /* */ */", "-- a\n",
		"select ", "#", "$$", "a",
	}
	random := rand.New(rand.NewPCG(1, 2))
	commits := 0
	for range 20_000 {
		var b strings.Builder
		for range 1 + random.IntN(7) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		sql := b.String()
		results, err := runInTransaction(ctx, conn.Conn().PgConn(), sql)
		want := len(results) > 0 && results[0] == "COMMIT"
		got := pgxstore.Commits(sql)
		if want {
			commits++
			require.True(t, got, "%q is taken for no commit", sql)
		}
		if err == nil && len(results) > 0 { // else the server does not know what it is, or does not say
			require.Equal(t, want, got, "%q", sql)
		}
	}
	require.Greater(t, commits, 100)
}

// What is valid and commits nothing is not refused.
func TestStatementsLikeCommits(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	h := newMiddleware(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{})), idempotency.Options{},
		func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			tx, _ := pgxstore.Tx(ctx)
			_, err := tx.Prepare(ctx, "end-of-day", "SELECT 1")
			assert.NoError(t, err)
			for _, sql := range []string{
				"end-of-day",
				"/* a */ SELECT CASE WHEN true THEN 1 /* b */ END",
				"/* a */ DO $$ BEGIN NULL; /* b */ END $$",
			} {
				_, err := tx.Exec(ctx, sql)
				assert.NoError(t, err, sql)
			}
			w.WriteHeader(http.StatusCreated)
		})
	require.Equal(t, http.StatusCreated, post(h, "1").Code)
}

// runInTransaction runs sql in a transaction, which it ends. It returns what the server says of each statement.
func runInTransaction(ctx context.Context, conn *pgconn.PgConn, sql string) (tags []string, err error) {
	if _, err := conn.Exec(ctx, "begin").ReadAll(); err != nil {
		return nil, err
	}
	results, err := conn.Exec(ctx, sql).ReadAll()
	for _, result := range results {
		tags = append(tags, result.CommandTag.String())
	}
	if conn.TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, "rollback").ReadAll()
	}
	return tags, err
}
