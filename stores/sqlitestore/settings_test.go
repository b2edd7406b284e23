package sqlitestore_test

import (
	"context"
	"database/sql"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/idempotency-go/idempotency/stores/internal/settingtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// hookedStatements has the statements for new connections, by the path of the file. A hook of the driver runs them.
var hookedStatements sync.Map

func init() {
	sqlite.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, source string) error {
		name, err := url.Parse(source)
		if err != nil {
			return nil // the connection of another test
		}
		statements, found := hookedStatements.Load(name.Path)
		if !found {
			return nil
		}
		_, err = conn.ExecContext(context.Background(), statements.(string), nil)
		return err
	})
}

// requireContract requires that a store on the file keeps its contract. The store does not wait for the disk. Check
// must report exactly the settings in unsafe, and the relaxed synchronous setting.
func requireContract(t *testing.T, path string, unsafe map[string]string) {
	t.Helper()
	store := openStore(t, path, sqlitestore.Options{Synchronous: sqlitestore.Normal})
	require.NoError(t, settingtest.CheckContract(t.Context(), settingtest.Subject{Store: store}))
	found := findUnsafeSettings(t, store)
	delete(found, "file system") // depends on the machine of the tests
	delete(found, "free space")
	want := map[string]string{"synchronous": "NORMAL"}
	maps.Copy(want, unsafe)
	require.Equal(t, want, found)
}

// The service may have created the file with settings that the store would not use.
func TestSettingsOfFiles(t *testing.T) {
	t.Parallel()
	for _, pragma := range []string{
		"encoding = 'UTF-16le'", "encoding = 'UTF-16be'", "page_size = 512", "page_size = 65536", "auto_vacuum = FULL",
		"auto_vacuum = INCREMENTAL", "journal_mode = PERSIST", "journal_mode = MEMORY", "journal_mode = WAL",
		"locking_mode = EXCLUSIVE", "user_version = 7", "legacy_file_format = 1",
	} {
		t.Run(pragma, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			db, err := sql.Open("sqlite", "file:"+path)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), "PRAGMA "+pragma+"; CREATE TABLE payments (amount)")
			require.NoError(t, err)
			require.NoError(t, db.Close())
			require.NoError(t, os.Chmod(path, 0o600))
			requireContract(t, path, nil)
		})
	}
}

// The service may configure all connections of the driver by a hook, including the connections of the store.
func TestSettingsOfConnections(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pragmas    string
		wantUnsafe map[string]string
	}{
		"text": {pragmas: "case_sensitive_like = 1; reverse_unordered_selects = 1; full_column_names = 1;" +
			"short_column_names = 0; empty_result_callbacks = 1; count_changes = 1"},
		"rules": {pragmas: "foreign_keys = 1; recursive_triggers = 1; ignore_check_constraints = 1; trusted_schema = 0;" +
			"defer_foreign_keys = 1; legacy_alter_table = 1; cell_size_check = 1; read_uncommitted = 1; secure_delete = 1"},
		"memory": {pragmas: "temp_store = MEMORY; cache_size = 1; cache_spill = 0; mmap_size = 1000000; automatic_index = 0;" +
			"threads = 2; busy_timeout = 0; journal_size_limit = 0; soft_heap_limit = 1000000; analysis_limit = 1"},
		"files":        {pragmas: "temp_store = FILE; wal_autocheckpoint = 1; fullfsync = 0; locking_mode = NORMAL"},
		"log":          {pragmas: "wal_autocheckpoint = 0", wantUnsafe: map[string]string{"wal_autocheckpoint": "0"}},
		"asynchronous": {pragmas: "synchronous = OFF", wantUnsafe: map[string]string{"synchronous": "OFF"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			hookedStatements.Store(path, "PRAGMA "+strings.ReplaceAll(tt.pragmas, ";", "; PRAGMA "))
			requireContract(t, path, tt.wantUnsafe)
		})
	}
}

// Open fails if the connection cannot write.
func TestConnectionsThatCannotWrite(t *testing.T) {
	t.Parallel()
	for _, pragma := range []string{"query_only = 1", "max_page_count = 1"} {
		path := newPath(t)
		hookedStatements.Store(path, "PRAGMA "+pragma)
		_, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
		require.Error(t, err, pragma)
	}
}

// Parameters may be any parameters of the driver, except those that the store sets itself.
func TestParameters(t *testing.T) {
	t.Parallel()
	for parameters, want := range map[string]string{
		"mode=ro":                            "mode is reserved for the store",
		"_journal_mode=OFF":                  "_journal_mode is reserved",
		"_pragma=synchronous(OFF)":           "synchronous(OFF) is reserved",
		"_pragma=wal_autocheckpoint(0)":      "wal_autocheckpoint(0) is reserved",
		"_pragma=+/**/Journal_mode%3DDELETE": "is reserved for the store",
		"_pragma=main.synchronous(0)":        "is reserved for the store",
		"_pragma=foreign_keys(1)%3Bselect+1": "is reserved for the store",
		"%zz":                                "invalid URL escape",
	} {
		_, err := sqlitestore.Open(t.Context(), newPath(t), sqlitestore.Options{Parameters: parameters})
		require.ErrorContains(t, err, "sqlitestore: Parameters: ", parameters)
		require.ErrorContains(t, err, want, parameters)
	}
}
