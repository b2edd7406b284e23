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
	if path := os.Getenv(mortalPath); path != "" {
		live(path)
		return
	}
	if path := os.Getenv(clerkPath); path != "" {
		clerk(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// newPath returns the path of a file that is not there yet.
func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "idempotency.db")
}

// open opens a store, and closes it at the end of the test.
func open(t testing.TB, path string, opts sqlitestore.Options) *sqlitestore.Store {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// foreign returns a connection that another program has to the file.
func foreign(t testing.TB, path string) *sql.Conn {
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

func execute(t testing.TB, conn *sql.Conn, statement string, args ...any) {
	t.Helper()
	_, err := conn.ExecContext(context.Background(), statement, args...)
	require.NoError(t, err)
}

func one[T any](t testing.TB, conn *sql.Conn, query string) (value T) {
	t.Helper()
	require.NoError(t, conn.QueryRowContext(context.Background(), query).Scan(&value))
	return value
}

// What the stores in databases have in common.
var (
	keyOf         = rowtest.KeyOf
	request       = rowtest.Request
	takeover      = rowtest.Takeover
	answer        = rowtest.Answer
	happened      = rowtest.Happened
	notHappened   = rowtest.NotHappened
	begun         = rowtest.MustBegin
	completed     = rowtest.MustComplete
	complete      = rowtest.Complete
	requireReplay = rowtest.RequireReplay
	inspected     = rowtest.MustInspect
)

// newSubject returns a store on a file that another store has open, too.
func newSubject(t testing.TB) rowtest.Subject {
	t.Helper()
	path := newPath(t)
	store := twoStores{open(t, path, sqlitestore.Options{}), open(t, path, sqlitestore.Options{})}
	return subject(store, foreign(t, path))
}

// twoStores of one file: operators look and change by one, and the other one claims.
type twoStores struct {
	*sqlitestore.Store
	claims *sqlitestore.Store
}

func (s twoStores) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.claims.Begin(ctx, key, request)
}

func subject(store rowtest.Store, other *sql.Conn) rowtest.Subject {
	return rowtest.Subject{
		Store: store,
		Set: func(t testing.TB, key, set string) {
			digest := keyOf(key).Digest()
			execute(t, other, "UPDATE idempotency_records SET "+set+" WHERE digest = ?", digest[:])
		},
		Dump: func(t testing.TB, key string) (row string) {
			digest := keyOf(key).Digest()
			require.NoError(t, other.QueryRowContext(t.Context(), "SELECT coalesce(max(quote(token) || attempt || created || "+
				"quote(lease) || expires || quote(response)), '') FROM idempotency_records WHERE digest = ?", digest[:]).Scan(&row))
			return row
		},
		Lapse: "lease = lease - 3600000000",
	}
}

// requireFree asks for a key that nobody has claimed before.
func requireFree(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	record, claim := begun(t, store, key)
	require.Equal(t, 1, record.Attempt)
	require.NoError(t, claim.Release(context.Background(), time.Hour))
}
