package dynamodbstore

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Options are the settings of a [Store]. The zero value of each field is its default.
type Options struct {
	// Table is the name of the table: 3 to 255 ASCII letters, digits, and characters of "_.-". Empty means
	// "idempotency_records".
	Table string

	// Skew is the largest difference between the clocks of two processes. Each lease and each record lasts longer by Skew
	// than requested, so that a process whose clock is ahead does not take over early. Zero means ten seconds; the maximum is
	// an hour. All processes that share a table need the same Skew.
	//
	// A process whose clock differs from the clock of the service by more than Skew/2 minus two seconds claims nothing, see
	// [ErrClock]. A difference of one second is always tolerated, so a Skew below six seconds is for tests whose processes
	// share a clock.
	Skew time.Duration
}

func (o Options) tableName() string { return cmp.Or(o.Table, "idempotency_records") }

func (o Options) skewOrDefault() time.Duration { return cmp.Or(o.Skew, 10*time.Second) }

// longestSkew is far above the error of a synchronised clock.
const longestSkew = time.Hour

var tableNamePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

// findFaults returns all faults joined.
func (o Options) findFaults() error {
	var faults []error
	if !tableNamePattern.MatchString(o.tableName()) {
		faults = append(faults, fmt.Errorf("dynamodbstore: Table is %q, not 3 to 255 of A-Z a-z 0-9 _ . -", o.Table))
	}
	if o.Skew < 0 || o.Skew > longestSkew {
		faults = append(faults, fmt.Errorf("dynamodbstore: Skew is %s, not from 0 to %s", o.Skew, longestSkew))
	}
	return errors.Join(faults...)
}
