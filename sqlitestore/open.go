package sqlitestore

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Open opens the store in the file at path. It makes the file, for its owner only, and the table in it if there is
// none. The directory must exist. A database that holds other tables may be used too.
//
// [Store.Close] closes it. Several stores, also of several processes, may have the same file open.
func Open(path string, opts Options) (*Store, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	path, err := create(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	s := &Store{path: path, opts: opts, closed: make(chan struct{})}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", path, errors.Join(err, s.disconnect()))
	}
	go s.writer.run()
	return s, nil
}

// create makes the file if there is none, and returns its full path. It never opens one that exists: to close that
// would end the locks that another store of this process has on it (POSIX).
func create(path string) (string, error) {
	if path == "" || path == ":memory:" {
		return "", fmt.Errorf("%q is no file: a MemoryStore needs none", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	creating.Lock()
	defer creating.Unlock()
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
	return filepath.EvalSymlinks(path) // SQLite looks for the log beside the file itself
}

// creating keeps another Open of the process from the file until the one that has made it has closed it.
var creating sync.Mutex

func (s *Store) open() (err error) {
	synchronous := "synchronous(" + s.opts.Synchronous.String() + ")"
	if s.writing, err = sql.Open("sqlite", source(s.path, synchronous)); err != nil {
		return err
	}
	if err := patiently(func() error { return makeTable(s.writing) }); err != nil {
		return err
	}
	writer, err := s.newWriter()
	if err != nil {
		return err
	}
	s.writer = writer
	if s.reading, err = sql.Open("sqlite", source(s.path, synchronous, "query_only(1)")); err != nil {
		return err
	}
	readers, err := newReaders(s.reading, max(4, runtime.GOMAXPROCS(0)), s.closed)
	if err != nil {
		return err
	}
	s.readers = readers
	return nil
}

// patiently repeats what other processes are in the way of. SQLite does not wait for them where two that wait would
// wait for each other, as when both switch to a write-ahead log.
func patiently(do func() error) error {
	for began := time.Now(); ; pause() {
		if err := do(); !isBusy(err) || time.Since(began) > settleIn {
			return err
		}
	}
}

// makeTable switches to a write-ahead log, and makes what is missing.
func makeTable(db *sql.DB) error {
	db.SetMaxOpenConns(1)
	var mode string
	if err := db.QueryRowContext(untouched, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("no write-ahead log is possible here: the journal mode is %s", mode)
	}
	for _, text := range []string{"BEGIN IMMEDIATE", statement("records"), statement("records_expires"), "COMMIT"} {
		if _, err := db.ExecContext(untouched, text); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) newWriter() (*writer, error) {
	w := &writer{
		transaction: transaction{sql: new(statements), now: s.opts.now, limit: s.opts.MaxBytes},
		steps:       make(chan *step), closed: s.closed, ended: make(chan struct{}),
	}
	if w.now == nil {
		w.now = time.Now
	}
	var err error
	if w.files, err = watch(s.path); err != nil {
		return nil, err
	}
	w.conn, err = connect(s.writing, w.sql.texts())
	return w, err
}

// disconnect closes what has been opened, when nothing is to run any more. It waits for those who read. The last
// connection to the file empties its log.
func (s *Store) disconnect() (err error) {
	if s.readers != nil {
		err = s.readers.close()
	}
	if s.writer != nil {
		err = errors.Join(err, s.writer.conn.Close())
	}
	for _, db := range []*sql.DB{s.reading, s.writing} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}
