package sqlitestore_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// findings returns the settings that Check reports, by name, apart from those of the disk that the tests run on.
func findings(t *testing.T, store *sqlitestore.Store) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := store.Check(t.Context())
	if err == nil {
		return found
	}
	for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
		var unsafe *idempotency.UnsafeSetting
		require.True(t, errors.As(err, &unsafe), "%v", err)
		require.NotEmpty(t, unsafe.Node)
		require.NotEmpty(t, unsafe.Risk)
		found[unsafe.Setting] = unsafe.Value
	}
	return found
}

func TestCheck(t *testing.T) {
	t.Parallel()
	disk := findings(t, open(t, newPath(t), sqlitestore.Options{}))
	for _, setting := range []string{"synchronous", "permissions"} {
		require.NotContains(t, disk, setting)
	}
	normal := open(t, newPath(t), sqlitestore.Options{Synchronous: sqlitestore.Normal})
	require.Equal(t, "NORMAL", findings(t, normal)["synchronous"])
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	require.NoError(t, os.Chmod(path, 0o644))
	require.Equal(t, "-rw-r--r--", findings(t, store)["permissions"])
	require.NoError(t, store.Execute("PRAGMA synchronous = OFF"))
	require.Equal(t, "OFF", findings(t, store)["synchronous"])
}

func TestCheckOfAClosedStore(t *testing.T) {
	t.Parallel()
	store := open(t, newPath(t), sqlitestore.Options{})
	require.NoError(t, store.Close())
	require.ErrorIs(t, store.Check(t.Context()), sqlitestore.ErrClosed)
}
