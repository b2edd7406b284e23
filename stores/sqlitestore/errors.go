package sqlitestore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idempotency-go/idempotency"
)

// ErrClosed is returned by every step after Close.
var ErrClosed = errors.New("sqlitestore: closed")

// ErrReplaced reports that the file, or a file beside it, was deleted or replaced while the store had the file open.
// Records written to the old file would be lost. Close the store, and open a new store.
var ErrReplaced = errors.New("sqlitestore: the file was deleted or replaced")

// hasCode reports whether err is an error of SQLite with any of the primary codes.
func hasCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && slices.Contains(codes, e.Code()&0xff)
}

// isBusy reports whether the lock of a connection has stopped a statement. The statement has had no effect.
func isBusy(err error) bool { return hasCode(err, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) }

// isFull reports whether the disk or the row has too little room for a write.
func isFull(err error) bool { return hasCode(err, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG) }

// rollsBack reports whether SQLite may have rolled back the transaction because of err (https://sqlite.org/lang_transaction.html,
// section 2.6).
func rollsBack(err error) bool {
	return hasCode(err, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT)
}

// wrapFailure returns the error of a step for the caller of the store.
func wrapFailure(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "no such table: main.idempotency_records"):
		err = fmt.Errorf("%w: %w", errNoTable, err)
	case isFull(err):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreFull, err)
	case isBusy(err):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return fmt.Errorf("sqlitestore: %s: %w", step, err)
}
