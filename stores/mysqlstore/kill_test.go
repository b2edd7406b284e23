package mysqlstore_test

import (
	"database/sql"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

var deaths = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// Processes that share a database are killed at random. Whatever was acknowledged stays, and an operation is executed
// again only if its attempt was killed, or overtaken, before it was acknowledged. It is charged once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	db := pool(t, m.DSN())
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	effects := filepath.Join(t.TempDir(), "effects")
	said, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, said, provider.Env(), mortalDSN+"="+m.DSN(), mortalEffects+"="+effects))

	store := mysqlstore.New(db, mysqlstore.Options{}) // nobody holds a lock any more
	repeated, err := said.Explain(t.Context(), store, effects)
	require.NoError(t, err)
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	t.Logf("%d processes were killed, %d operations acknowledged, %d executed again; %s",
		*deaths, len(said.Acknowledged()), repeated, provider)
}

const (
	mortalDSN     = "MYSQLSTORE_MORTAL"
	mortalEffects = "MYSQLSTORE_MORTAL_EFFECTS"
)

// live executes operations until the process is killed.
func live(dsn string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(8)
		return killtest.Execute(mysqlstore.New(db, mysqlstore.Options{}), os.Getenv(mortalEffects))
	})
}
