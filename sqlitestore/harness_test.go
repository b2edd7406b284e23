package sqlitestore_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newPath returns the path of a file that is not there yet.
func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "idempotency.db")
}

// open opens a store, and closes it at the end of the test.
func open(t testing.TB, path string, opts sqlitestore.Options) *sqlitestore.Store {
	t.Helper()
	store, err := sqlitestore.Open(path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

func keyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}

var (
	request = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1, 2, 3}, Lease: time.Minute, TTL: time.Hour}
	answer  = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("receipt 1")}
)
