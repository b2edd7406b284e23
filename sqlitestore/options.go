package sqlitestore

import (
	"errors"
	"fmt"
	"time"
)

// Synchronous says what an acknowledged step survives.
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

// Options are the settings of a [Store]. The zero value of each field is its default.
type Options struct {
	// Synchronous says whether records survive a loss of power. Zero is [Full].
	Synchronous Synchronous

	// MaxBytes bounds the space that records take in the file. Above seven eighths of it, answers are stored with
	// Omitted set; above fifteen sixteenths, new operations are refused with idempotency.ErrStoreFull. The rest is for
	// operations that run by then. The log beside the file takes a few MiB more, and the file does not become smaller
	// by itself. All processes should have the same value. Zero means no limit but the disk.
	MaxBytes int64

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
	return errors.Join(faults...)
}
