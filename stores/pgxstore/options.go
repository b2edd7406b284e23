package pgxstore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options are the settings of a store. The zero value of each field is its default. All processes that use the same table
// must have the same Schema, Table and PartitionDays.
type Options struct {
	// Schema is the schema of the table. Empty means the first schema of the search path that has the table when the
	// store is first used. If no schema has the table, [Migrate] creates it in the first schema of the search path.
	Schema string

	// Table is the name of the table. Empty means "idempotency_records".
	Table string

	// PartitionDays partitions the table by the day on which records expire, so that [Table.Maintain] can drop a day at
	// once instead of deleting each record. Zero means a table without partitions.
	//
	// The value is the longest TTL, in days. The store refuses a longer TTL. To raise the value, give the new value to
	// all processes before any process uses a longer TTL, because each process looks for records only on these days.
	PartitionDays int

	// SpareDays is the number of days beyond PartitionDays for which [Table.Maintain] keeps partitions ready, and so the
	// time for which Maintain may fail. If the partition for a new record is missing, the store cannot claim keys. Zero
	// means 7.
	SpareDays int

	// FillFactor is the storage parameter fillfactor: how full new records make a page of the table, in percent. The free
	// rest of a page is for changes of its records. If the answer of an operation fits into the free rest, PostgreSQL
	// changes the record in place. Otherwise PostgreSQL writes the record and its entries in both indexes again. Zero
	// means 70.
	//
	// Set less than 70 for large answers, or for many operations at the same time. The setting applies to tables and
	// partitions that are created afterwards. Use ALTER TABLE to change existing ones.
	FillFactor int

	// Isolation is the isolation level of the transactions of [DoTx]. Empty means the level of the session, which is read
	// committed unless default_transaction_isolation is set. If the session is serializable, set serializable here as
	// well. The store then finds the record of a step without the index. With the index, any two concurrent steps might
	// conflict (SQLSTATE 40001).
	//
	// A table with partitions allows only read committed. No unique index can refuse a second record of a key in such a
	// table, so a transaction must see all records that were committed since its begin.
	Isolation pgx.TxIsoLevel

	// IdleTimeout is how long a transaction of [DoTx] may be idle between two statements before the server ends the
	// transaction. If a process loses its network, the locks of its step remain for that time. Zero means one minute. If
	// the session has a shorter idle_in_transaction_session_timeout, the session's value applies. If both are equal, the
	// server need not change the setting for each transaction.
	//
	// PostgreSQL counts in milliseconds, up to 24 days, by its wall clock. If the clock is set back meanwhile, an idle
	// session keeps its locks for longer.
	IdleTimeout time.Duration

	// DigestNames stores user, endpoint and key as digests: the columns user_id, endpoint and key hold the SHA-256, in
	// hexadecimal, of their usual values. Records that are written afterwards do not show the names in the table, in its
	// backups and in the log of the server. The digest has no secret key, so anybody who can guess a name can confirm the
	// guess. Answers are stored as usual.
	//
	// The setting may be changed while there are records, because the store recognises records of both forms. New records
	// have the new form.
	DigestNames bool

	// CountReplays counts in the column "replays" how often each response was fetched for a replay. Duplicates that
	// waited in the same process share a fetch. Each fetch costs a write. Without CountReplays, a replay writes nothing.
	CountReplays bool

	// MaxUserRecords bounds the records of one [idempotency.Key.User] that have not expired, in any state. If a user has as
	// many, Begin refuses a key without a record with [idempotency.ErrUserQuota]. A key with a record is never refused. The
	// key of an [idempotency.Release] with a TTL of zero counts for two leases. Zero means no bound.
	//
	// [Migrate] creates an index for this option, also in a table with records, and a function that counts. So call Migrate
	// after setting the option. To let claims go on meanwhile, create the index before, with CREATE INDEX CONCURRENTLY on
	// (user_id, expires_minute): its name is that of the table with "_user". Without the option, the index stays, and costs
	// a part of each write.
	//
	// A claim of a new key takes longer, the more records the user has: with a thousand records, a first execution takes half
	// as long again. Claims of new keys of one user take turns, each until its commit. If default_transaction_isolation is
	// above read committed, claims that run at the same time do not see each other, and may exceed the bound by their number.
	// Give all processes the same value.
	MaxUserRecords int

	nowSQL       string // SQL expression for the current time; empty means statement_timestamp()
	findsByPlace bool   // the statements of a step find the record by its ctid
}

// withNow returns the options with now as the SQL expression for the current time.
func (o Options) withNow(now string) Options {
	o.nowSQL = now
	return o
}

func (o Options) spareDays() int { return cmp.Or(o.SpareDays, 7) }

func (o Options) isPartitioned() bool { return o.PartitionDays != 0 }

func (o Options) tableName() string { return cmp.Or(o.Table, "idempotency_records") }

// quotedName returns the quoted name, with its schema, of the table, or of an object whose name is that of the table with
// suffix.
func (o Options) quotedName(suffix string) string {
	if o.Schema == "" {
		return pgx.Identifier{o.tableName() + suffix}.Sanitize()
	}
	return pgx.Identifier{o.Schema, o.tableName() + suffix}.Sanitize()
}

// validate returns all faults of the options joined.
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
		fault("Isolation is %q, not an isolation level of package pgx", o.Isolation)
	}
	if o.isPartitioned() && cmp.Or(o.Isolation, pgx.ReadCommitted) != pgx.ReadCommitted {
		fault("a table with partitions needs the isolation level %s, not %s", pgx.ReadCommitted, o.Isolation)
	}
	if o.MaxUserRecords < 0 {
		fault("MaxUserRecords %d is negative", o.MaxUserRecords)
	}
	if o.IdleTimeout < 0 || o.IdleTimeout > maxIdleTimeout {
		fault("IdleTimeout is %s, not from 0 to %s", o.IdleTimeout, maxIdleTimeout)
	}
	return errors.Join(faults...)
}

// maxIdleTimeout is the largest idle_in_transaction_session_timeout of the server.
const maxIdleTimeout = math.MaxInt32 * time.Millisecond

const beginReadCommitted = "begin isolation level read committed"

// beginSQL returns the statement that begins a transaction of DoTx. beginSQL names an isolation level only if the options
// set one, because a named level costs the server more than the level of the session.
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
