package main_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// With --json, each command prints one document. The documentation of the command contains all names in the document.
func TestJSON(t *testing.T) {
	t.Parallel()
	documentation, err := os.ReadFile("main.go")
	require.NoError(t, err)
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		completeRecord(t, store, keyOfAlice, idempotency.Response{
			Status: 201, Header: "Content-Type: text/plain\n", Trailer: "X-Sum: 1\n", Body: []byte("\xff"), Note: "payment pay_1",
		})
		bob := idempotency.Key{User: "bob", Endpoint: "POST /payments", ID: "1"}
		_, err := claimKey(t, store, bob, claimRequest).(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", nil)
		require.NoError(t, err)
		carol := idempotency.Key{User: "carol", Endpoint: "POST /payments", ID: "1"}
		abandonAttempt(t, b, carol)
		for _, args := range [][]string{
			commandForAlice("inspect", "--body"), {"list"}, {"list", "--limit", "1"}, {"stats"}, {"check"},
			commandForAlice("forget", "--yes"), commandForAlice("inspect"),
			append([]string{"inspect"}, keyFlags(bob)...),
			resolveCommand(carol, "--happened", "--status", "200", "--header", "A: b", "--yes"), {"erase", "--user", "carol", "--yes"},
		} {
			got := b.run(t, append(args, "--json")...)
			if event := map[string]string{"forget": "forgotten", "resolve": "happened", "erase": "erased the records of a user"}[args[0]]; event != "" {
				require.Regexp(t, `^time=\S+ level=INFO msg="idempotency: `+event+`" .*\n$`, got.stderr)
			} else {
				require.Empty(t, got.stderr)
			}
			var document map[string]any
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &document), got.stdout)
			require.Contains(t, document, "store")
			requireNames(t, string(documentation), document)
			if args[0] != "inspect" || args[2] != keyOfAlice.User || got.status != 0 {
				continue
			}
			entry := document["entry"].(map[string]any)
			response := entry["response"].(map[string]any)
			require.Equal(t, "payment pay_1", entry["note"])
			require.Equal(t, map[string]any{"Content-Type": []any{"text/plain"}}, response["header"])
			require.Equal(t, map[string]any{"X-Sum": []any{"1"}}, response["trailer"])
			require.Equal(t, "/w==", response["bodyBase64"])
		}
	})
}

// requireNames requires that the documentation contains all names in value.
func requireNames(t testing.TB, documentation string, value any) {
	t.Helper()
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			requireNames(t, documentation, element)
		}
	case map[string]any:
		for name, member := range value {
			require.Contains(t, documentation, "`"+name+"`")
			if name != "header" && name != "trailer" {
				requireNames(t, documentation, member)
			}
		}
	}
}

// Flags name the table of PostgreSQL, if the table is not the default.
func TestTableOfTheService(t *testing.T) {
	t.Parallel()
	url := postgresURL(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	opts := pgxstore.Options{Schema: "of shop", Table: "Keys", PartitionDays: 2}
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts))
	completeRecord(t, pgxstore.New(pool, opts), keyOfAlice, answer)
	env, flags := []string{"DATABASE_URL=" + url}, []string{"--schema", "of shop", "--table", "Keys", "--partition-days", "2"}
	for _, args := range [][]string{
		commandForAlice("inspect"), {"list", "--user", "alice"}, {"stats"}, commandForAlice("forget", "--yes"),
	} {
		got := runProcess(t, env, append(args, flags...)...)
		require.Zero(t, got.status, got.stderr)
	}
	require.NotContains(t, runProcess(t, env, append([]string{"check"}, flags...)...).stdout, "broken")
	got := runProcess(t, env, "check", "--schema", "of shop", "--table", "Keys")
	require.Equal(t, 1, got.status)
	require.Contains(t, got.stdout, "a different PartitionDays")
	require.Contains(t, got.stdout, "broken")
	got = runProcess(t, env, commandForAlice("inspect")...)
	require.Equal(t, 3, got.status, "the default table does not exist")
	require.Contains(t, got.stderr, "idempotency_records")
}
