package mysqlstore

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Options are the settings of a store. The zero value of each field is its default.
type Options struct {
	// Table is the name of the table, in the database that the connections use. It has 1 to 64 ASCII letters, digits,
	// and characters of "_$-". Empty means "idempotency_records".
	Table string

	// IdleTimeout is how long the function of [DoTx] may send nothing before the server rolls its transaction back. For that
	// long, a process that stands still, or is cut off, keeps what its transaction has locked. Zero means one minute. The longest is
	// 24 days. Set no less than five seconds, because a busy process may be late. The server counts in seconds, and a part of
	// a second counts as a whole one.
	IdleTimeout time.Duration
}

func (o Options) idleSeconds() int64 {
	return int64((cmp.Or(o.IdleTimeout, time.Minute) + time.Second - 1) / time.Second)
}

// longestIdle is what the server knows on every system.
const longestIdle = 24 * 24 * time.Hour

func (o Options) table() string { return cmp.Or(o.Table, "idempotency_records") }

// name returns the quoted name of the table.
func (o Options) name() string { return "`" + o.table() + "`" }

var isName = regexp.MustCompile(`^[A-Za-z0-9_$-]{1,64}$`)

// validate reports all faults together.
func (o Options) validate() error {
	var faults []error
	if !isName.MatchString(o.table()) {
		faults = append(faults, fmt.Errorf("mysqlstore: Table is %q, not 1 to 64 of A-Z a-z 0-9 _ $ -", o.Table))
	}
	if o.IdleTimeout < 0 || o.IdleTimeout > longestIdle {
		faults = append(faults, fmt.Errorf("mysqlstore: IdleTimeout is %s, not from 0 to %s", o.IdleTimeout, longestIdle))
	}
	return errors.Join(faults...)
}
