package sqlitestore_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// findUnsafeSettings returns the values of the settings that Check reports, by name.
func findUnsafeSettings(t *testing.T, store *sqlitestore.Store) map[string]string {
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
	disk := findUnsafeSettings(t, openStore(t, newPath(t), sqlitestore.Options{}))
	for _, setting := range []string{"synchronous", "permissions"} {
		require.NotContains(t, disk, setting)
	}
	normal := openStore(t, newPath(t), sqlitestore.Options{Synchronous: sqlitestore.Normal})
	require.Equal(t, "NORMAL", findUnsafeSettings(t, normal)["synchronous"])
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	require.NoError(t, os.Chmod(path, 0o644))
	require.Equal(t, "-rw-r--r--", findUnsafeSettings(t, store)["permissions"])
	require.NoError(t, store.ExecOnWriter("PRAGMA synchronous = OFF"))
	require.Equal(t, "OFF", findUnsafeSettings(t, store)["synchronous"])
}

func TestCheckOfAClosedStore(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	require.NoError(t, store.Close())
	require.ErrorIs(t, store.Check(t.Context()), sqlitestore.ErrClosed)
}
