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

var processesToKill = flag.Int("deaths", 10, "how many processes each test kills that kills processes at random")

// Processes that share a database are killed at random. Every acknowledged change stays, and an operation runs again
// only if its attempt was killed or taken over before it was acknowledged. The provider charges each operation once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	db := openPool(t, m.DSN())
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	effects := filepath.Join(t.TempDir(), "effects")
	operations, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*processesToKill, operations, provider.Env(), operationsDSNEnv+"="+m.DSN(),
		effectsPathEnv+"="+effects))

	store := mysqlstore.New(db, mysqlstore.Options{}) // the killed processes hold no locks
	repeated, err := operations.Explain(t.Context(), store, effects)
	require.NoError(t, err)
	require.NoError(t, provider.Explain(operations.Acknowledged()...))
	t.Logf("%d processes were killed, %d operations acknowledged, %d executed again; %s",
		*processesToKill, len(operations.Acknowledged()), repeated, provider)
}

const (
	operationsDSNEnv = "MYSQLSTORE_MORTAL"
	effectsPathEnv   = "MYSQLSTORE_MORTAL_EFFECTS"
)

// runOperations executes operations until the process is killed.
func runOperations(dsn string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(8)
		return killtest.Execute(mysqlstore.New(db, mysqlstore.Options{}), os.Getenv(effectsPathEnv))
	})
}
