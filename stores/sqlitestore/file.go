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

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

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

func (s *Store) open(ctx context.Context) (err error) {
	parameters, _ := s.opts.parameters() // valid
	synchronous := "synchronous(" + s.opts.Synchronous.String() + ")"
	if s.writing, err = sql.Open("sqlite", source(s.path, parameters, synchronous)); err != nil {
		return err
	}
	if err := patiently(ctx, func() error { return makeTable(ctx, s.writing) }); err != nil {
		return err
	}
	if s.writer, err = s.newWriter(); err != nil {
		return err
	}
	if s.reading, err = sql.Open("sqlite", source(s.path, nil, synchronous, "query_only(1)")); err != nil {
		return err
	}
	if s.readers, err = newReaders(s.reading, max(4, runtime.GOMAXPROCS(0)), s.closed); err != nil {
		return err
	}
	s.lister, err = newReaders(s.reading, 1, s.closed)
	return err
}

// patiently repeats what other processes are in the way of. SQLite does not wait for them where two that wait would
// wait for each other, as when both switch to a write-ahead log.
func patiently(ctx context.Context, do func() error) error {
	for began := time.Now(); ; pause() {
		if err := do(); !isBusy(err) || time.Since(began) > settleIn || ctx.Err() != nil {
			return err
		}
	}
}

// makeTable switches to a write-ahead log, and makes what is missing.
func makeTable(ctx context.Context, db *sql.DB) error {
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
		return fmt.Errorf("no write-ahead log is possible here: the journal mode is %s", mode)
	}
	made, err := verify(conn)
	if err != nil && !errors.Is(err, errNoTable) || made == 2 { // which needs no wait for those who write
		return err
	}
	for _, text := range []string{"BEGIN IMMEDIATE", statement("records"), statement("records_expires"), "COMMIT"} {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

var errNoTable = errors.New("the table idempotency_records is gone: open the store again, which makes it")

// verify returns how much there is of the table and its index, or an error if the table is missing or of another version.
func verify(conn *sql.Conn) (made int, err error) {
	var text string
	if err := conn.QueryRowContext(untouched, statement("made")).Scan(&text, &made); err != nil {
		return 0, err
	}
	const version = "idempotency records, version 1"
	_, says, _ := strings.Cut(text, "/* ")
	says, _, _ = strings.Cut(says, " */")
	switch {
	case text == "":
		err = errNoTable
	case says != version:
		err = fmt.Errorf("the table idempotency_records says %q, not %q", says, version)
	}
	return made, err
}

func (s *Store) newWriter() (*writer, error) {
	w := &writer{
		transaction: transaction{space: space{limit: s.opts.MaxBytes}, sql: new(statements), now: s.opts.now},
		db:          s.writing,
		queue: queue{
			steps: make(chan *pendingWrite), turns: make(chan *turn), closed: s.closed, ended: make(chan struct{}),
		},
	}
	if w.now == nil {
		w.now = time.Now
	}
	var err error
	if w.files, err = watch(s.path); err != nil {
		return nil, err
	}
	err = w.connect()
	s.writing.SetMaxIdleConns(-1) // from now on, a connection that is given up is closed
	return w, err
}

// look returns the record with a digest as it is now. It does not wait for those who write.
func (s *Store) look(ctx context.Context, digest []byte) (*sqlstore.Row, error) {
	seen, err := s.readers.read(ctx, digest)
	if err == nil {
		seen.Now = s.writer.micros()
	}
	return seen, err
}

// Close waits for the steps that run, those in transactions included. Then it closes the file. A step that comes later returns
// [ErrClosed]. Close may be called again, and returns the same then.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.closed)
		<-s.writer.ended
		s.failed = s.disconnect()
	})
	return s.failed
}

// disconnect closes what has been opened, when nothing is to run any more. It waits for those who read. The last
// connection to the file empties its log.
func (s *Store) disconnect() (err error) {
	for _, readers := range []*readers{s.readers, s.lister} {
		if readers != nil {
			err = errors.Join(err, readers.close())
		}
	}
	if s.writer != nil {
		err = errors.Join(err, s.writer.disconnect())
	}
	for _, db := range []*sql.DB{s.reading, s.writing} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

// watched are the files of a database as they were when it was opened: it, its log, and what processes share of that. A
// file that was deleted goes on to exist for those who have it open, and what they write ends with them.
type watched struct {
	paths []string
	are   []os.FileInfo
}

func watch(path string) (*watched, error) {
	w := &watched{paths: []string{path, path + "-wal", path + "-shm"}}
	for _, path := range w.paths {
		is, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		w.are = append(w.are, is)
	}
	return w, nil
}

// check returns an error that wraps ErrReplaced unless all files are the same. It opens none: to close one would end
// the locks of the process (POSIX).
func (w *watched) check() error {
	for i, path := range w.paths {
		is, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		}
		if !os.SameFile(is, w.are[i]) {
			return fmt.Errorf("%w: %s", ErrReplaced, path)
		}
	}
	return nil
}
