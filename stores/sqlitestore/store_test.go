package sqlitestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Acknowledged changes are there when the file is opened again.
func TestRecordsSurviveRestart(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	completeKey(t, store, "completed")
	running, _ := claimKey(t, store, "running")
	_, released := claimKey(t, store, "released")
	require.NoError(t, released.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	require.NoError(t, store.Close())

	store = openStore(t, path, sqlitestore.Options{})
	requireReplay(t, store, "completed")
	record, claim, err := store.Begin(t.Context(), keyOf("running"), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.WithinDuration(t, running.Created, record.Created, 0)
	require.Positive(t, record.LeaseLeft)
	record, _ = claimKey(t, store, "released")
	require.Equal(t, 2, record.Attempt)
}

// Open waits until its context ends while another process writes. The store stays open after this context has ended.
func TestOpenHasAContext(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := openConn(t, path)
	for _, statement := range []string{"PRAGMA journal_mode = WAL", "BEGIN IMMEDIATE"} {
		_, err := other.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 9*time.Second, "without one it waits for ten seconds")

	_, err = other.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	store, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	require.NoError(t, err)
	defer store.Close()
	cancel()
	completeKey(t, store, "completed")
}

func TestOpenReportsAllFaults(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	_, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{Synchronous: 7, MaxBytes: 5})
	require.ErrorContains(t, err, "Synchronous is 7")
	require.ErrorContains(t, err, "MaxBytes is 5")
	require.NoFileExists(t, path)
}

// Open leaves a file that is not a database unchanged.
func TestOpenRefusesWhatIsNoDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	content := make([]byte, 8192)
	copy(content, "not a database")
	require.NoError(t, os.WriteFile(text, content, 0o600))
	table := filepath.Join(dir, "table")
	execStatement(t, openConn(t, table), "CREATE TABLE idempotency_records (id INTEGER PRIMARY KEY)")
	for name, path := range map[string]string{
		"empty": "", "memory": ":memory:", "directory": dir, "no directory": filepath.Join(dir, "none", "a.db"),
		"NUL": filepath.Join(dir, "a\x00b"), "text": text, "another program's table": table,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
			require.ErrorContains(t, err, "sqlitestore: ")
		})
	}
	kept, err := os.ReadFile(text)
	require.NoError(t, err)
	require.Equal(t, content, kept)
}

// Open refuses a table of another version or another program, and leaves the table unchanged. Check of an open store
// reports the same error.
func TestOpenRefusesAnotherVersion(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	other := openConn(t, path)
	text := queryValue[string](t, other, "SELECT sql FROM sqlite_schema WHERE name = 'idempotency_records'")
	for says, text := range map[string]string{
		"idempotency records, version 99": strings.Replace(text, "version 1", "version 99", 1),
		"":                                strings.Replace(text, "/* ", "/*", 1),
	} {
		execStatement(t, other, "DROP TABLE idempotency_records")
		execStatement(t, other, text)
		want := fmt.Sprintf(`the version of the table idempotency_records is %q, not "idempotency records, version 1"`, says)
		_, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, store.Check(t.Context()), want)
	}
}

// If the table is gone, the error says how to create the table again.
func TestTableIsGone(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	_, claim := claimKey(t, store, "key")
	execStatement(t, openConn(t, path), "DROP TABLE idempotency_records")
	for _, err := range []error{
		tryComplete(store, "other"), claim.Complete(t.Context(), answer, time.Hour),
		store.Check(t.Context()),
	} {
		require.ErrorContains(t, err, "the table idempotency_records is gone: open the store again")
	}
	completeKey(t, openStore(t, path, sqlitestore.Options{}), "other")
	completeKey(t, store, "key")
}

// Several processes may open a file at the same time before the file exists. One of them creates the table.
func TestOpenAtTheSameTime(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, tryComplete(store, strconv.Itoa(i)))
			assert.NoError(t, store.Close())
		})
	}
	callers.Wait()
	store := openStore(t, path, sqlitestore.Options{})
	for i := range 8 {
		requireReplay(t, store, strconv.Itoa(i))
	}
}

// Open takes a path literally, not as a URL, and follows symbolic links.
func TestPaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a b.db", "a?b=c&d", "a#b", "a%2Fb", "ä", "file:x"} {
		path := filepath.Join(dir, name)
		completeKey(t, openStore(t, path, sqlitestore.Options{}), name)
		require.FileExists(t, path)
		link := filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(path, link))
		requireReplay(t, openStore(t, link, sqlitestore.Options{}), name)
	}
}

// Only the owner of the file can read the file and its log, because the log has answers too.
func TestFilesAreOfTheOwner(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	completeKey(t, openStore(t, path, sqlitestore.Options{}), "key")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		is, err := os.Stat(path + suffix)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), is.Mode().Perm(), suffix)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	_, claim := claimKey(t, store, "claimed")
	committing, proceed := make(chan struct{}), make(chan struct{})
	require.NoError(t, store.OnCommit(func() int32 {
		close(committing)
		<-proceed
		return 0
	}))
	finished, closed := make(chan error, 1), make(chan error, 1)
	go func() { finished <- claim.Complete(context.Background(), answer, time.Hour) }()
	<-committing
	go func() { closed <- store.Close() }()
	require.Eventually(t, func() bool {
		_, _, err := store.Begin(t.Context(), keyOf("late"), request)
		return err != nil
	}, time.Minute, time.Millisecond)
	_, _, err := store.Begin(t.Context(), keyOf("late"), request)
	require.ErrorIs(t, err, sqlitestore.ErrClosed)
	require.ErrorIs(t, claim.Extend(t.Context(), time.Minute), sqlitestore.ErrClosed)
	select {
	case <-closed:
		t.Fatal("Close has not waited")
	default:
	}
	close(proceed)
	require.NoError(t, <-finished)
	require.NoError(t, <-closed)
	require.NoError(t, store.Close()) // a second Close succeeds
	require.NoFileExists(t, path+"-wal")
	requireReplay(t, openStore(t, path, sqlitestore.Options{}), "claimed")
}

// The file may also have tables of the service.
func TestOtherTables(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := openConn(t, path)
	execStatement(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
	execStatement(t, other, "PRAGMA user_version = 12")
	completeKey(t, openStore(t, path, sqlitestore.Options{}), "key")
	execStatement(t, other, "INSERT INTO orders VALUES (1)")
	require.Equal(t, 12, queryValue[int](t, other, "PRAGMA user_version"))
}

// If a completion is repeated after it has taken effect, the repetition succeeds although the record has expired
// since.
func TestRepetitionAfterExpiry(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
	_, claim := claimKey(t, store, "key")
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	clock.advance(2 * time.Hour)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireFree(t, store, "key")
}

var _ idempotency.Store = (*sqlitestore.Store)(nil)
