package sqlitestore_test

import (
	"context"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

var deaths = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// Processes that share a file are killed at random. Whatever was acknowledged stays, and an operation is executed again
// only if its attempt was killed, or overtaken, before it was acknowledged. It is charged once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	said, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, said, provider.Env(), mortalPath+"="+path))

	store := open(t, path, sqlitestore.Options{}) // nobody holds a lock any more
	repeated, err := said.Explain(t.Context(), store, path+".effects")
	require.NoError(t, err)
	require.Equal(t, "ok", one[string](t, foreign(t, path), "PRAGMA integrity_check"))
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	t.Logf("%d processes were killed, %d operations acknowledged, %d executed again; %s",
		*deaths, len(said.Acknowledged()), repeated, provider)
}

const mortalPath = "SQLITESTORE_MORTAL"

// live executes operations until the process is killed.
func live(path string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		return killtest.Execute(store, path+".effects")
	})
}
