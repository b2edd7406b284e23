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

	// MaxUserRecords bounds the records of one [idempotency.Key.User] that have not expired, in any state. If a user has as many,
	// Begin refuses a key without a record with [idempotency.ErrUserQuota]. A key with a record is never refused. The key of an
	// [idempotency.Release] with a TTL of zero counts for two leases. Zero means no bound.
	//
	// The statement that reads the key counts the records as well, and locks none of them, so that no claim waits for a transaction
	// of [DoTx]. Claims of one user that run at the same time do not see each other: a user may have one record more for each of
	// the other claims that were running when the last one began.
	//
	// The count uses the index "users", so the claim of a new key takes longer, the more records the user has: with a thousand
	// records, a first execution takes two thirds longer. [Migrate] creates the index with this option, also in a table with
	// records, and needs the privilege INDEX for that. Without the option, the index stays, and costs a part of each write. Give
	// all processes the same value.
	MaxUserRecords int
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
	if o.MaxUserRecords < 0 {
		faults = append(faults, fmt.Errorf("mysqlstore: MaxUserRecords %d is negative", o.MaxUserRecords))
	}
	return errors.Join(faults...)
}
