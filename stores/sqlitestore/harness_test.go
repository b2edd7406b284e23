package sqlitestore_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(operationsPathEnv); path != "" {
		runOperations(path)
		return
	}
	if path := os.Getenv(transfersPathEnv); path != "" {
		runTransfers(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// newPath returns the path of a file that does not exist yet.
func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "idempotency.db")
}

// openStore opens a store, and closes the store at the end of the test.
func openStore(t testing.TB, path string, opts sqlitestore.Options) *sqlitestore.Store {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// openConn returns a connection to the file, as another program would have.
func openConn(t testing.TB, path string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	conn, err := db.Conn(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		require.NoError(t, db.Close())
	})
	return conn
}

func execStatement(t testing.TB, conn *sql.Conn, statement string, args ...any) {
	t.Helper()
	_, err := conn.ExecContext(context.Background(), statement, args...)
	require.NoError(t, err)
}

func queryValue[T any](t testing.TB, conn *sql.Conn, query string) (value T) {
	t.Helper()
	require.NoError(t, conn.QueryRowContext(context.Background(), query).Scan(&value))
	return value
}

// The stores in databases share these helpers.
var (
	keyOf         = rowtest.KeyOf
	request       = rowtest.Request
	takeover      = rowtest.Takeover
	answer        = rowtest.Answer
	happened      = rowtest.Happened
	notHappened   = rowtest.NotHappened
	claimKey      = rowtest.MustBegin
	completeKey   = rowtest.MustComplete
	tryComplete   = rowtest.Complete
	requireReplay = rowtest.RequireReplay
	inspectKey    = rowtest.MustInspect
)

// newSubject returns two stores on one file, as the two stores of twoStores.
func newSubject(t testing.TB) rowtest.Subject {
	t.Helper()
	path := newPath(t)
	store := twoStores{openStore(t, path, sqlitestore.Options{}), openStore(t, path, sqlitestore.Options{})}
	return newRowSubject(store, openConn(t, path))
}

// twoStores are two stores on one file. Operators use the embedded store, and requests claim their keys in
// claimStore.
type twoStores struct {
	*sqlitestore.Store
	claimStore *sqlitestore.Store
}

func (s twoStores) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.claimStore.Begin(ctx, key, request)
}

func newRowSubject(store rowtest.Store, other *sql.Conn) rowtest.Subject {
	return rowtest.Subject{
		Store: store,
		Set: func(t testing.TB, key, set string) {
			operation := keyOf(key).OperationID()
			execStatement(t, other, "UPDATE idempotency_records SET "+set+" WHERE operation = ?", operation[:])
		},
		Dump: func(t testing.TB, key string) (row string) {
			operation := keyOf(key).OperationID()
			require.NoError(t, other.QueryRowContext(t.Context(), "SELECT coalesce(max(quote(token) || attempt || created || "+
				"quote(lease) || expires || quote(response)), '') FROM idempotency_records WHERE operation = ?", operation[:]).Scan(&row))
			return row
		},
		Lapse: "lease = lease - 3600000000",
	}
}

// requireFree requires that the first attempt of key is granted, and releases the claim.
func requireFree(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	record, claim := claimKey(t, store, key)
	require.Equal(t, 1, record.Attempt)
	require.NoError(t, claim.Release(context.Background(), idempotency.Release{TTL: time.Hour}))
}
