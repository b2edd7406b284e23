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
	// Table is the name of the table, in the database of the connections. A name has 1 to 64 ASCII letters, digits, and characters
	// of "_$-". Empty means "idempotency_records".
	Table string

	// IdleTimeout bounds how long the function of [DoTx] may send no statement before the server rolls the transaction back. A
	// process that stands still, or is cut off, keeps its locks for that long. Zero means one minute. The longest timeout is 24
	// days. Set at least five seconds, because a busy process may be late. The store rounds up to seconds, the unit of the server.
	IdleTimeout time.Duration
}

// idleSeconds returns IdleTimeout in seconds, rounded up.
func (o Options) idleSeconds() int64 {
	return int64((cmp.Or(o.IdleTimeout, time.Minute) + time.Second - 1) / time.Second)
}

// longestIdle is the largest wait_timeout on every system: 2147483 s on Windows.
const longestIdle = 24 * 24 * time.Hour

func (o Options) table() string { return cmp.Or(o.Table, "idempotency_records") }

// name returns the table name in backquotes.
func (o Options) name() string { return "`" + o.table() + "`" }

var isName = regexp.MustCompile(`^[A-Za-z0-9_$-]{1,64}$`)

// validate returns all faults joined.
func (o Options) validate() error {
	var faults []error
	if !isName.MatchString(o.table()) {
		faults = append(faults, fmt.Errorf("mysqlstore: Table is %q, not 1 to 64 characters of A-Z a-z 0-9 _ $ -", o.Table))
	}
	if o.IdleTimeout < 0 || o.IdleTimeout > longestIdle {
		faults = append(faults, fmt.Errorf("mysqlstore: IdleTimeout is %s, not from 0 to %s", o.IdleTimeout, longestIdle))
	}
	return errors.Join(faults...)
}
