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

// Synchronous says how durable an acknowledged step is. The names are the names of the PRAGMA synchronous of SQLite.
type Synchronous int

const (
	// Full makes acknowledged records survive a loss of power, because each transaction waits for the disk. Concurrent
	// steps share a transaction.
	Full Synchronous = iota

	// Normal makes acknowledged records survive the death of the process. A loss of power or a crash of the system may
	// forget the last records, and their operations can then run again.
	Normal
)

// String returns the name of s in SQLite.
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

	// MaxBytes limits the used bytes of the file, including other tables. Above seven eighths of MaxBytes, the store
	// stores answers with Omitted set, and refuses results of steps with [idempotency.ErrStoreFull]. Above fifteen
	// sixteenths, the store also refuses new operations with ErrStoreFull. The rest is reserved for operations that are
	// already running. The log beside the file needs a few more MiB, and the file never shrinks by itself. Give all
	// processes the same value. MaxBytes must be at least 1 MiB. Zero means no limit except the disk.
	MaxBytes int64

	// MaxUserRecords bounds the records of one [idempotency.Key.User] that have not expired, in any state. If a user has
	// as many, Begin refuses a key without a record with [idempotency.ErrUserQuota]. A key with a record is never refused.
	// The key of an [idempotency.Release] with a TTL of zero counts for two leases. Zero means no bound.
	//
	// A claim of a new key counts the records by an index, so the claim takes longer, the more records the user has. Open
	// creates the index if it is missing, which takes a second for some hundred thousand records. Without the option, the
	// index stays, and costs a part of each write, until somebody drops it: DROP INDEX idempotency_records_user. Give all
	// processes the same value.
	MaxUserRecords int

	// Parameters are parameters of the driver for the transactions of [DoTx], in the form after the question mark of a
	// data source name: "_time_format=sqlite&_pragma=foreign_keys(1)". Give the parameters that the service uses for
	// its own connections. The store refuses settings on which the store depends, such as the journal mode. Empty means
	// no parameters.
	Parameters string

	now func() time.Time // nil: time.Now
}

// minMaxBytes has room for the operations that run at the same time.
const minMaxBytes = 1 << 20

// validate reports all faults of o joined.
func (o Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("sqlitestore: "+format, args...)) }
	if o.Synchronous != Full && o.Synchronous != Normal {
		fault("Synchronous is %d, neither Full nor Normal", int(o.Synchronous))
	}
	if o.MaxBytes < 0 || o.MaxBytes > 0 && o.MaxBytes < minMaxBytes {
		fault("MaxBytes is %d, less than %d", o.MaxBytes, minMaxBytes)
	}
	if o.MaxUserRecords < 0 {
		fault("MaxUserRecords %d is negative", o.MaxUserRecords)
	}
	if _, err := o.parseParameters(); err != nil {
		fault("Parameters: %w", err)
	}
	return errors.Join(faults...)
}

// parseParameters returns Parameters, or an error that names every parameter reserved for the store.
func (o Options) parseParameters() (url.Values, error) {
	given, err := url.ParseQuery(o.Parameters)
	if err != nil {
		return nil, err
	}
	var faults []error
	for name := range given {
		if !slices.Contains(handlerParameters, name) {
			faults = append(faults, fmt.Errorf("%s is reserved for the store", name))
		}
	}
	for _, pragma := range given["_pragma"] {
		name := strings.ToLower(pragma[:len(pragma)-len(strings.TrimLeftFunc(pragma, isNameChar))])
		if name == "" || slices.Contains(storePragmas, name) || strings.ContainsAny(pragma, ";.") {
			faults = append(faults, fmt.Errorf("the PRAGMA %s is reserved for the store", pragma))
		}
	}
	return given, errors.Join(faults...)
}

// isNameChar reports whether a name in SQL may contain c.
func isNameChar(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }

// handlerParameters are the parameters of the driver without an effect on the store.
var handlerParameters = []string{"_pragma", "_foreign_keys", "_fk", "_time_format", "_time_integer_format", "_timezone",
	"_inttotime", "_texttotime", "_dqs", "_txlock"}

// storePragmas are the settings on which the store depends.
var storePragmas = []string{"journal_mode", "synchronous", "locking_mode", "query_only", "busy_timeout", "fullfsync",
	"checkpoint_fullfsync", "wal_autocheckpoint", "writable_schema", "ignore_check_constraints", "read_uncommitted",
	"journal_size_limit", "max_page_count", "schema_version", "wal_checkpoint", "auto_vacuum", "temp_store_directory"}
