package sqlitestore

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Synchronous says what an acknowledged step survives. The names are those of SQLite's PRAGMA synchronous.
type Synchronous int

const (
	// Full means that what was acknowledged survives a loss of power: each transaction waits for the disk. Steps that
	// come at the same time share one transaction.
	Full Synchronous = iota

	// Normal means that what was acknowledged survives the death of the process, but a loss of power or a crash of the
	// system may forget the last records. Their operations can then be executed again.
	Normal
)

// String returns the name that SQLite has for it.
func (s Synchronous) String() string {
	if s == Normal {
		return "NORMAL"
	}
	return "FULL"
}

// Options are the settings of a store. The zero value of each field is its default.
type Options struct {
	// Synchronous says whether records survive a loss of power. Zero is [Full].
	Synchronous Synchronous

	// MaxBytes bounds how many bytes of the file are in use, those of other tables included. Above seven eighths of it,
	// answers are stored with Omitted set, and results of steps are refused with [idempotency.ErrStoreFull]. Above fifteen
	// sixteenths, new operations are refused with it. The rest is for operations that are running by then. The log beside
	// the file takes a few MiB more, and the file does not become smaller by itself. All processes should have the same
	// value. It must be at least 1 MiB. Zero means no limit but the disk.
	MaxBytes int64

	// Parameters are parameters of the driver for the transactions of [DoTx], in the form that they have after the question mark of
	// a data source name: "_time_format=sqlite&_pragma=foreign_keys(1)". Give those with which the service itself opens the file.
	// Settings that belong to the store, such as the journal mode, are refused. Empty means none.
	Parameters string

	now func() time.Time // nil: time.Now
}

// leastBytes leave room for the operations that run at once.
const leastBytes = 1 << 20

// validate reports all faults together.
func (o Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("sqlitestore: "+format, args...)) }
	if o.Synchronous != Full && o.Synchronous != Normal {
		fault("there is no Synchronous %d", int(o.Synchronous))
	}
	if o.MaxBytes < 0 || o.MaxBytes > 0 && o.MaxBytes < leastBytes {
		fault("MaxBytes is %d, less than %d", o.MaxBytes, leastBytes)
	}
	if _, err := o.parameters(); err != nil {
		fault("Parameters: %w", err)
	}
	return errors.Join(faults...)
}

// parameters returns Parameters, or an error that names all that are the store's to set.
func (o Options) parameters() (url.Values, error) {
	given, err := url.ParseQuery(o.Parameters)
	if err != nil {
		return nil, err
	}
	var faults []error
	for name := range given {
		if !slices.Contains(ofHandlers, name) {
			faults = append(faults, fmt.Errorf("%s is not for the handlers to set", name))
		}
	}
	for _, pragma := range given["_pragma"] {
		name := strings.ToLower(pragma[:len(pragma)-len(strings.TrimLeftFunc(pragma, isOfName))])
		if name == "" || slices.Contains(ofStores, name) || strings.ContainsAny(pragma, ";.") {
			faults = append(faults, fmt.Errorf("the PRAGMA %s is not for the handlers to set", pragma))
		}
	}
	return given, errors.Join(faults...)
}

// isOfName reports whether a name in SQL may have a character.
func isOfName(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }

// ofHandlers are the parameters of the driver that change nothing for the store.
var ofHandlers = []string{"_pragma", "_foreign_keys", "_fk", "_time_format", "_time_integer_format", "_timezone",
	"_inttotime", "_texttotime", "_dqs", "_txlock"}

// ofStores are the settings that the store depends on.
var ofStores = []string{"journal_mode", "synchronous", "locking_mode", "query_only", "busy_timeout", "fullfsync",
	"checkpoint_fullfsync", "wal_autocheckpoint", "writable_schema", "ignore_check_constraints", "read_uncommitted",
	"journal_size_limit", "max_page_count", "schema_version", "wal_checkpoint", "auto_vacuum", "temp_store_directory"}
