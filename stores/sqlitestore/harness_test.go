package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
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

func keyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}

var (
	request  = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1, 2, 3}, Lease: time.Minute, TTL: time.Hour}
	takeover = idempotency.ClaimRequest{
		Fingerprint: request.Fingerprint, Lease: request.Lease, TTL: request.TTL, TakeOver: true,
	}
	answer = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("receipt 1")}
)

// begun claims a key.
func begun(t testing.TB, store idempotency.Store, key string) (idempotency.Record, idempotency.Claim) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return record, claim
}

// completed claims and completes a key.
func completed(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	require.NoError(t, complete(store, key))
}

// complete does so in any goroutine.
func complete(store idempotency.Store, key string) error {
	_, claim, err := store.Begin(context.Background(), keyOf(key), request)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return fmt.Errorf("%s is held", key)
	default:
		return claim.Complete(context.Background(), answer, time.Hour)
	}
}

// requireReplay asks for a key whose answer is stored.
func requireReplay(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	require.Equal(t, answer, *record.Response)
}

// requireFree asks for a key that nobody has claimed before.
func requireFree(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	record, claim := begun(t, store, key)
	require.Equal(t, 1, record.Attempt)
	require.NoError(t, claim.Release(context.Background(), time.Hour))
}

// requireStatus asks for a key whose answer is stored.
func requireStatus(t testing.TB, store idempotency.Store, key string, status int) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	require.Equal(t, status, record.Response.Status)
}
