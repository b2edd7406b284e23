package pgxstore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options are the settings of a store. The zero value of each field is its default. Everything that works on the same
// table must be given the same Schema, Table and PartitionDays.
type Options struct {
	// Schema is the schema of the table. Empty means the first schema of the search path that has such a table when the
	// store is used for the first time. If no schema has one, [Migrate] makes it in the first schema of the path.
	Schema string

	// Table is the name of the table. Empty means "idempotency_records".
	Table string

	// PartitionDays divides the table by the day on which records expire, so that [Table.Maintain] can drop a day at once
	// instead of deleting each record. Its value is the longest TTL, in days. A longer TTL is refused. To raise the value,
	// give it to all processes before any of them has a longer TTL, because they look for records on these days only. Zero
	// means that the table is not divided.
	PartitionDays int

	// SpareDays is for how many days beyond PartitionDays [Table.Maintain] keeps partitions ready. For that long, Maintain
	// may fail to run. Without a partition for its record, nothing can be claimed. Zero means 7.
	SpareDays int

	// FillFactor is how full new records make a page of the table, in percent: the storage parameter of that name. The rest of a
	// page is room for changes, as when an operation ends. If the answer finds room there, the record is changed in place. If
	// not, the record and its entries in both indexes are written anew. Zero means 70.
	//
	// Less than 70 suits large answers, or many operations that run at once. The setting applies to tables and partitions that
	// are made from then on. ALTER TABLE changes it for the others.
	FillFactor int

	// Isolation is the isolation level of the transactions of [DoTx]. Empty means that of the session, which is read committed
	// unless default_transaction_isolation says otherwise. If the session is serializable, set serializable here, too: the store
	// then finds the record of a step in another way. Otherwise any two steps at once might conflict (40001).
	//
	// A divided table allows only read committed. No unique index can refuse a second record there, so a transaction has
	// to see what others have committed since it began.
	Isolation pgx.TxIsoLevel

	// IdleTimeout is how long a transaction of [DoTx] may go without a statement before the server ends it. For that long, a
	// process that has fallen silent, because its network is gone for example, keeps the locks of its step. Zero means one
	// minute. A session whose own idle_in_transaction_session_timeout is shorter keeps that.
	//
	// PostgreSQL counts in milliseconds, up to 24 days, by its wall clock. If that clock is set back meanwhile, a silent
	// session keeps its locks for longer. If the session's own idle_in_transaction_session_timeout has the same value, the
	// server is saved the work of changing it for each transaction.
	IdleTimeout time.Duration

	// DigestNames stores user, endpoint and key as digests: the columns user_id, endpoint and key hold the SHA-256 in hexadecimal
	// of what each would hold otherwise. Records that are written from then on do not show the names, in the table, its backups
	// and the log of the server. Anybody who can guess a name can confirm it, because the digest has no key. Answers are stored
	// as they are.
	//
	// The setting may be changed while there are records. Each form is recognised, and records that are written from then
	// on have the new one.
	DigestNames bool

	// CountReplays counts in the column "replays" how often each response was fetched to be replayed. Duplicates that
	// waited in one process share one fetch. Each fetch costs a write. Without CountReplays a replay writes nothing.
	CountReplays bool

	nowSQL       string // SQL for the time; empty: statement_timestamp()
	findsByPlace bool   // the statements of a step find the record at its place in the table
}

// at returns the options with another time.
func (o Options) withNow(now string) Options {
	o.nowSQL = now
	return o
}

func (o Options) spareDays() int { return cmp.Or(o.SpareDays, 7) }

func (o Options) isPartitioned() bool { return o.PartitionDays != 0 }

func (o Options) tableName() string { return cmp.Or(o.Table, "idempotency_records") }

// name returns the quoted name of the table, or of something beside it that is called so with a suffix.
func (o Options) quotedName(suffix string) string {
	if o.Schema == "" {
		return pgx.Identifier{o.tableName() + suffix}.Sanitize()
	}
	return pgx.Identifier{o.Schema, o.tableName() + suffix}.Sanitize()
}

// validate reports all faults of the options together.
func (o Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("pgxstore: "+format, args...)) }
	if n := len(o.tableName()) + len("_claim_day"); n > 63 {
		fault("the name of table %q is too long: %d bytes with its suffixes, PostgreSQL allows 63", o.tableName(), n)
	}
	if o.PartitionDays < 0 {
		fault("PartitionDays is %d, less than zero", o.PartitionDays)
	}
	if o.SpareDays < 0 {
		fault("SpareDays is %d, less than zero", o.SpareDays)
	}
	if f := cmp.Or(o.FillFactor, 70); f < 10 || f > 100 {
		fault("FillFactor is %d, not from 10 to 100", o.FillFactor)
	}
	switch o.Isolation {
	case "", pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted:
	default:
		fault("there is no isolation level %q", o.Isolation)
	}
	if o.isPartitioned() && cmp.Or(o.Isolation, pgx.ReadCommitted) != pgx.ReadCommitted {
		fault("a table with partitions needs the isolation level %s, not %s", pgx.ReadCommitted, o.Isolation)
	}
	if o.IdleTimeout < 0 || o.IdleTimeout > maxIdleTimeout {
		fault("IdleTimeout is %s, not from 0 to %s", o.IdleTimeout, maxIdleTimeout)
	}
	return errors.Join(faults...)
}

// longestIdle is what the server allows.
const maxIdleTimeout = math.MaxInt32 * time.Millisecond

const (
	beginReadCommitted = "begin isolation level read committed"
	beginSerializable  = "begin isolation level serializable"
)

// begin returns how a transaction begins for a handler. To name a level costs the server more than to take that of the
// session.
func (o Options) beginSQL() string {
	switch {
	case o.isPartitioned():
		return beginReadCommitted
	case o.Isolation != "":
		return "begin isolation level " + string(o.Isolation)
	default:
		return "begin"
	}
}
