package main_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Paths and URLs name a file. The program does not change a file without records.
func TestFileOfSQLite(t *testing.T) {
	t.Parallel()
	b := newSQLite(t)
	completeRecord(t, b.openStore(t), keyOfAlice, answer)
	path := strings.TrimPrefix(b.url(), "sqlite:")
	odd := filepath.Join(filepath.Dir(path), "a%20b?c#d e")
	require.NoError(t, os.Symlink(path, odd))
	for _, address := range []string{path, "sqlite:" + path, "sqlite://" + path, odd} {
		got := runProcess(t, nil, commandForAlice("show", "--store", address)...)
		require.Zero(t, got.status, "%s: %s", address, got.stderr)
	}
	require.Zero(t, b.run(t, commandForAlice("show", "--store", "sqlite")...).status)
	cmd := newCommand(t.Context(), nil, commandForAlice("show", "--store", "shop.db")...)
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
	for address, test := range map[string]struct {
		wantStatus int
		wantError  string
	}{
		"sqlite:" + dir + "/none": {2, "no file"},
		dir + "/none":             {2, "a file that is there"},
		dir:                       {2, "a file that is there"},
		"sqlite:" + dir:           {2, "no file"},
		"sqlite:":                 {2, "no file"},
		another:                   {2, "no table idempotency_records"},
		garbage:                   {3, "not a database"},
	} {
		got := runProcess(t, nil, commandForAlice("show", "--store", address)...)
		require.Equal(t, test.wantStatus, got.status, "%s: %s", address, got.stdout+got.stderr)
		require.Contains(t, got.stderr, test.wantError, address)
	}
	after, err := os.ReadFile(another)
	require.NoError(t, err)
	require.Equal(t, before, after)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "the program has made no file")
}
