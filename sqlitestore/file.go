package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// file is a database that is open: what both kinds of stores have in common.
type file struct {
	path             string
	opts             Options
	writing, reading *sql.DB
	writer           *writer
	readers          *readers
	lister           *readers // one, so that a listing keeps none of the others
	running          running  // there are none in a Store

	closing sync.Once
	closed  chan struct{}
	failed  error // of Close
}

// openFile opens the file at path, and makes what is missing. It lends the connection that writes to handlers if lends
// is true.
func openFile(ctx context.Context, path string, opts Options, lends bool) (*file, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	path, err := create(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	f := &file{path: path, opts: opts, closed: make(chan struct{}), running: running{keys: make(map[string]int)}}
	if err := f.open(ctx, lends); err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", path, errors.Join(err, f.disconnect()))
	}
	go f.writer.run()
	return f, nil
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

func (f *file) open(ctx context.Context, lends bool) (err error) {
	var parameters url.Values
	if lends {
		parameters, _ = f.opts.parameters() // valid
	}
	synchronous := "synchronous(" + f.opts.Synchronous.String() + ")"
	if f.writing, err = sql.Open("sqlite", source(f.path, parameters, synchronous)); err != nil {
		return err
	}
	if err := patiently(ctx, func() error { return makeTable(ctx, f.writing) }); err != nil {
		return err
	}
	if f.writer, err = f.newWriter(lends); err != nil {
		return err
	}
	if f.reading, err = sql.Open("sqlite", source(f.path, nil, synchronous, "query_only(1)")); err != nil {
		return err
	}
	if f.readers, err = newReaders(f.reading, max(4, runtime.GOMAXPROCS(0)), f.closed); err != nil {
		return err
	}
	f.lister, err = newReaders(f.reading, 1, f.closed)
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

func (f *file) newWriter(lends bool) (*writer, error) {
	w := &writer{
		transaction: transaction{sql: new(statements), now: f.opts.now, limit: f.opts.MaxBytes},
		db:          f.writing, lends: lends,
		steps: make(chan *step), loans: make(chan *loan), closed: f.closed, ended: make(chan struct{}),
	}
	if w.now == nil {
		w.now = time.Now
	}
	var err error
	if w.files, err = watch(f.path); err != nil {
		return nil, err
	}
	err = w.connect()
	f.writing.SetMaxIdleConns(-1) // from now on, a connection that is given up is closed
	return w, err
}

// look returns the record with a digest as it is now. It does not wait for those who write.
func (f *file) look(ctx context.Context, digest []byte) (*sqlstore.Row, error) {
	seen, err := f.readers.read(ctx, digest)
	if err == nil {
		seen.Now = f.writer.micros()
	}
	return seen, err
}

// isFull reports whether there is no room for a new operation, unless records have expired.
func (f *file) isFull(ctx context.Context) (bool, error) {
	if f.opts.MaxBytes == 0 {
		return false, nil
	}
	used, err := f.readers.used(ctx)
	room := transaction{limit: f.opts.MaxBytes, used: used}
	return room.IsFull(), err
}

// Close waits for the steps that run, and for the transactions that handlers have begun. Then it closes the file. A
// step that comes later returns [ErrClosed]. If a handler had begun no transaction, its first statement and the storing
// of its answer return it too. Close may be called again, and returns the same then.
func (f *file) Close() error {
	f.closing.Do(func() {
		close(f.closed)
		<-f.writer.ended
		f.failed = f.disconnect()
	})
	return f.failed
}

// disconnect closes what has been opened, when nothing is to run any more. It waits for those who read. The last
// connection to the file empties its log.
func (f *file) disconnect() (err error) {
	for _, readers := range []*readers{f.readers, f.lister} {
		if readers != nil {
			err = errors.Join(err, readers.close())
		}
	}
	if f.writer != nil {
		err = errors.Join(err, f.writer.disconnect())
	}
	for _, db := range []*sql.DB{f.reading, f.writing} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}
