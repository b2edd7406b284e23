package dynamodbstore

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Options are the settings of a store. The zero value of each field is its default.
type Options struct {
	// Table is the name of the table. It has 3 to 255 ASCII letters, digits, and characters of "_.-". Empty means
	// "idempotency_records".
	Table string

	// Skew is how far the clocks of two processes may be apart. Each lease and each record lasts that much longer than it
	// was asked for, so that nobody whose clock is ahead takes it for over. Zero means ten seconds. All processes that share
	// a table have the same Skew.
	//
	// A process whose clock is further than Skew/2 minus two seconds from that of the service claims nothing, see [ErrClock].
	// One second is always allowed, so a Skew of less than six seconds is for tests, whose processes share a clock.
	Skew time.Duration
}

func (o Options) table() string { return cmp.Or(o.Table, "idempotency_records") }

func (o Options) skew() time.Duration { return cmp.Or(o.Skew, 10*time.Second) }

// longestSkew is more than any clock that is kept in step is off.
const longestSkew = time.Hour

var isName = regexp.MustCompile(`^[A-Za-z0-9_.-]{3,255}$`)

// validate reports all faults together.
func (o Options) validate() error {
	var faults []error
	if !isName.MatchString(o.table()) {
		faults = append(faults, fmt.Errorf("dynamodbstore: Table is %q, not 3 to 255 of A-Z a-z 0-9 _ . -", o.Table))
	}
	if o.Skew < 0 || o.Skew > longestSkew {
		faults = append(faults, fmt.Errorf("dynamodbstore: Skew is %s, not from 0 to %s", o.Skew, longestSkew))
	}
	return errors.Join(faults...)
}
