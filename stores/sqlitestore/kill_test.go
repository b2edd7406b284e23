package sqlitestore_test

import (
	"context"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

var processesToKill = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// Processes that share a file are killed at random. Every acknowledged change stays, and an operation runs again
// only if its attempt was killed or taken over before it was acknowledged. The provider charges each operation once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	operations, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*processesToKill, operations, provider.Env(), operationsPathEnv+"="+path))

	store := openStore(t, path, sqlitestore.Options{}) // the killed processes hold no locks
	repeated, err := operations.Explain(t.Context(), store, path+".effects")
	require.NoError(t, err)
	require.Equal(t, "ok", queryValue[string](t, openConn(t, path), "PRAGMA integrity_check"))
	require.NoError(t, provider.Explain(operations.Acknowledged()...))
	t.Logf("%d processes were killed, %d operations acknowledged, %d executed again; %s",
		*processesToKill, len(operations.Acknowledged()), repeated, provider)
}

const operationsPathEnv = "SQLITESTORE_MORTAL"

// runOperations executes operations until the process is killed.
func runOperations(path string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		return killtest.Execute(store, path+".effects")
	})
}
