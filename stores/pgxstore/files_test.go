package pgxstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/golden"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// TestFiles compares the files for readers with their sources: the migrations and statements for both forms of the
// table, with the default options.
func TestFiles(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for form, opts := range map[string]pgxstore.Options{"plain": {}, "partitioned": {PartitionDays: 1}} {
		for name, text := range migrationFiles(t, opts) {
			want[filepath.Join("migrations", form, name)] = text
		}
		for name, text := range opts.Statements() {
			want[filepath.Join("testdata/statements", form, name+".sql")] = text
		}
	}
	if *golden.Update {
		writeFiles(t, want)
	}
	for name, text := range want {
		have, err := os.ReadFile(name)
		require.NoError(t, err, "go test -run TestFiles -update . writes the files")
		require.True(t, text == string(have), "%s: go test -run TestFiles -update . writes the files", name)
	}
	for _, dir := range []string{"migrations", "testdata/statements"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				require.Contains(t, want, path)
			}
			return err
		}))
	}
}

// migrationFiles returns the files for golang-migrate and psql, and the file for goose in its own directory.
func migrationFiles(t testing.TB, opts pgxstore.Options) map[string]string {
	t.Helper()
	migrations := pgxstore.Migrations(opts)
	require.Len(t, migrations, 1)
	up, down := migrations[0].SQL, migrations[0].Down
	const name = "0001_idempotency_records"
	goose := func(direction, sql string) string {
		return "-- +goose " + direction + "\n-- +goose StatementBegin\n" + sql + "-- +goose StatementEnd\n"
	}
	return map[string]string{
		name + ".up.sql":         up,
		name + ".down.sql":       down,
		"goose/" + name + ".sql": goose("Up", up) + "\n" + goose("Down", down),
	}
}

func writeFiles(t testing.TB, files map[string]string) {
	t.Helper()
	for _, dir := range []string{"migrations", "testdata/statements"} {
		require.NoError(t, os.RemoveAll(dir))
	}
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
}

// psql makes the same table from the files as Migrate does, and the way down removes all of it.
func TestFilesForPsql(t *testing.T) {
	t.Parallel()
	db, err := startSharedServer()
	require.NoError(t, err)
	for form, days := range map[string]int{"plain": 0, "partitioned": 2} {
		t.Run(form, func(t *testing.T) {
			opts := pgxstore.Options{PartitionDays: days}
			admin := newPool(t, db.URL())
			database := "files_" + form
			execStatement(t, admin, "CREATE DATABASE "+database)
			pool := newPool(t, strings.Replace(db.URL(), "/postgres?", "/"+database+"?", 1))
			files := migrationFiles(t, opts)

			for range 2 { // the second run has nothing to do
				require.NoError(t, db.Psql(database, files["0001_idempotency_records.up.sql"]))
			}
			if days > 0 {
				require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
			}
			store := pgxstore.New(pool, opts)
			require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
			completeNewKey(t, store)
			for range 2 {
				require.NoError(t, db.Psql(database, files["0001_idempotency_records.down.sql"]))
			}
			left := queryColumn[string](t, pool, `SELECT relname::text FROM pg_class WHERE relname LIKE 'idempotency%'
				UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'idempotency%'`)
			require.Empty(t, left)
		})
	}
}
