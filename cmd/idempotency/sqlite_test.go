package main_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file is named in several ways. One that has no records is left as it is.
func TestFileOfSQLite(t *testing.T) {
	t.Parallel()
	b := newSQLite(t)
	complete(t, b.open(t), keyOfAlice, answer)
	path := strings.TrimPrefix(b.url(), "sqlite:")
	odd := filepath.Join(filepath.Dir(path), "a%20b?c#d e")
	require.NoError(t, os.Symlink(path, odd))
	for _, args := range [][]string{{"--store", path}, {"--store", "sqlite:" + path}, {"--store", "sqlite://" + path}, {"--store", odd}} {
		got := try(t, nil, with("show", args...)...)
		require.Zero(t, got.status, "%v: %s", args, got.stderr)
	}
	require.Zero(t, b.try(t, with("show", "--store", "sqlite")...).status)
	cmd := command(t.Context(), nil, with("show", "--store", "shop.db")...)
	cmd.Dir = filepath.Dir(path)
	require.NoError(t, cmd.Run())

	dir := t.TempDir()
	another, garbage := filepath.Join(dir, "another.db"), filepath.Join(dir, "garbage")
	db, err := sql.Open("sqlite", "file:"+another)
	require.NoError(t, err)
	_, err = db.Exec("CREATE TABLE accounts (id INTEGER)")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, os.WriteFile(garbage, []byte(strings.Repeat("no database ", 100)), 0o600))
	before, err := os.ReadFile(another)
	require.NoError(t, err)
	for address, want := range map[string]struct {
		status int
		says   string
	}{
		"sqlite:" + dir + "/none": {2, "no file"},
		dir + "/none":             {2, "a file that is there"},
		dir:                       {2, "a file that is there"},
		"sqlite:" + dir:           {2, "no file"},
		"sqlite:":                 {2, "no file"},
		another:                   {2, "no table idempotency_records"},
		garbage:                   {3, "not a database"},
	} {
		got := try(t, nil, with("show", "--store", address)...)
		require.Equal(t, want.status, got.status, "%s: %s", address, got.stdout+got.stderr)
		require.Contains(t, got.stderr, want.says, address)
	}
	after, err := os.ReadFile(another)
	require.NoError(t, err)
	require.Equal(t, before, after)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "nothing is made")
}
