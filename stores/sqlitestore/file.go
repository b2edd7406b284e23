package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// createFile creates the file at path if the file is missing, and returns the full path. createFile never opens an
// existing file, because closing the file would end the locks of every store of the process on the file (POSIX).
func createFile(path string) (string, error) {
	if path == "" || path == ":memory:" {
		return "", fmt.Errorf("%q is not a file: use a MemoryStore for records in memory", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	createMutex.Lock()
	defer createMutex.Unlock()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		err = file.Close()
	case errors.Is(err, fs.ErrExist):
		err = nil
	}
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path) // SQLite looks for the log beside the target of a link
}

// createMutex stops a concurrent Open from using a new file before createFile has closed the file.
var createMutex sync.Mutex

// openConnections opens the connections of the store, and makes the table if the table is missing.
func (s *Store) openConnections(ctx context.Context) (err error) {
	parameters, _ := s.opts.parseParameters() // Open has validated the parameters
	synchronous := "synchronous(" + s.opts.Synchronous.String() + ")"
	if s.writeDB, err = sql.Open("sqlite", dataSourceName(s.filePath, parameters, synchronous)); err != nil {
		return err
	}
	if err := retryWhileBusy(ctx, func() error { return makeTable(ctx, s.writeDB, s.opts.MaxUserRecords > 0) }); err != nil {
		return err
	}
	if s.writer, err = s.newWriter(); err != nil {
		return err
	}
	if s.readDB, err = sql.Open("sqlite", dataSourceName(s.filePath, nil, synchronous, "query_only(1)")); err != nil {
		return err
	}
	if s.readers, err = newReaders(s.readDB, max(4, runtime.GOMAXPROCS(0)), s.closeStarted); err != nil {
		return err
	}
	s.listReaders, err = newReaders(s.readDB, 1, s.closeStarted)
	return err
}

// retryWhileBusy repeats do while other processes have the lock. SQLite does not wait for a lock if the wait would be a
// deadlock, for example when two processes switch to a write-ahead log.
func retryWhileBusy(ctx context.Context, do func() error) error {
	for began := time.Now(); ; pauseBriefly() {
		if err := do(); !isBusy(err) || time.Since(began) > setupTimeout || ctx.Err() != nil {
			return err
		}
	}
}

// makeTable switches the file to a write-ahead log, and makes the table and the indexes if they are missing.
func makeTable(ctx context.Context, db *sql.DB, countsUsers bool) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file cannot have a write-ahead log: the journal mode is %s", mode)
	}
	made, err := verifyTable(conn)
	if err != nil && !errors.Is(err, errNoTable) {
		return err
	}
	var texts []string
	if made < 2 { // a complete table needs no wait for writers
		texts = []string{"BEGIN IMMEDIATE", statement("records"), statement("records_expires"), "COMMIT"}
	}
	if countsUsers { // writes nothing if there is the index
		texts = append(texts, statement("records_user"))
	}
	for _, text := range texts {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

var errNoTable = errors.New("the table idempotency_records is gone: open the store again, which creates the table")

// verifyTable counts the table and the index in made. verifyTable returns an error if the table is missing or of a
// different version.
func verifyTable(conn *sql.Conn) (made int, err error) {
	var text string
	if err := conn.QueryRowContext(statementContext, statement("made")).Scan(&text, &made); err != nil {
		return 0, err
	}
	const version = "idempotency records, version 1"
	_, says, _ := strings.Cut(text, "/* ")
	says, _, _ = strings.Cut(says, " */")
	switch {
	case text == "":
		err = errNoTable
	case says != version:
		err = fmt.Errorf("the version of the table idempotency_records is %q, not %q", says, version)
	}
	return made, err
}

// newWriter returns the writer with an open connection.
func (s *Store) newWriter() (*writer, error) {
	w := &writer{
		transaction: transaction{
			space: space{limitBytes: s.opts.MaxBytes}, maxUserRecords: s.opts.MaxUserRecords,
			statements: new(statements), now: s.opts.now,
		},
		writeDB: s.writeDB,
		queue: queue{
			pendingWrites: make(chan *pendingWrite), stepTurns: make(chan *turn),
			closeStarted: s.closeStarted, runEnded: make(chan struct{}),
		},
	}
	if w.now == nil {
		w.now = time.Now
	}
	var err error
	if w.watchedFiles, err = watchFiles(s.filePath); err != nil {
		return nil, err
	}
	err = w.connectWriter()
	s.writeDB.SetMaxIdleConns(-1) // from now on, an abandoned connection is closed
	return w, err
}

// readCurrentRow returns the record of operation, with the current time, without waiting for writers.
func (s *Store) readCurrentRow(ctx context.Context, operation uuid.UUID) (*sqlstore.Row, error) {
	seen, err := s.readers.readRow(ctx, operation)
	if err == nil {
		seen.Now = s.writer.nowMicros()
	}
	return seen, err
}

// Close waits for running steps, including steps in transactions, and then closes the file. Later steps return
// [ErrClosed]. A repeated Close returns the result of the first.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closeStarted)
		<-s.writer.runEnded
		s.closeErr = s.closeConnections()
	})
	return s.closeErr
}

// closeConnections waits for running reads, and closes all connections. The writer must have ended. Closing the last
// connection to the file empties the log.
func (s *Store) closeConnections() (err error) {
	for _, readers := range []*readers{s.readers, s.listReaders} {
		if readers != nil {
			err = errors.Join(err, readers.closeAll())
		}
	}
	if s.writer != nil {
		err = errors.Join(err, s.writer.disconnectWriter())
	}
	for _, db := range []*sql.DB{s.readDB, s.writeDB} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

// watchedFiles are the files of a database at the time of opening: the database, the log, and the memory shared by
// processes. A deleted file lives on for processes that have the file open, and writes to the deleted file are lost.
type watchedFiles struct {
	paths []string
	infos []os.FileInfo
}

// watchFiles returns the current files of the database at path.
func watchFiles(path string) (*watchedFiles, error) {
	w := &watchedFiles{paths: []string{path, path + "-wal", path + "-shm"}}
	for _, path := range w.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		w.infos = append(w.infos, info)
	}
	return w, nil
}

// checkReplaced returns an error wrapping ErrReplaced if any file is missing or was replaced. checkReplaced does not open
// the files, because closing a file would end the locks of the process (POSIX).
func (w *watchedFiles) checkReplaced() error {
	for i, path := range w.paths {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		}
		if !os.SameFile(info, w.infos[i]) {
			return fmt.Errorf("%w: %s", ErrReplaced, path)
		}
	}
	return nil
}
