package sqlitestore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestCheckKnowsFileSystems(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "sqlitestore")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	store := openStore(t, filepath.Join(dir, "a.db"), sqlitestore.Options{})
	require.Equal(t, "tmpfs", findUnsafeSettings(t, store)["file system"])
	large := openStore(t, newPath(t), sqlitestore.Options{MaxBytes: 1 << 60})
	require.Contains(t, findUnsafeSettings(t, large), "free space")
}
