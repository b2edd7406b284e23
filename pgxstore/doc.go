// Package pgxstore keeps the records of package idempotency in PostgreSQL, by way of pgx.
//
// There are two stores. [TxStore] is for handlers whose effects are in the same database: claim, effects and record
// are one transaction, so each operation takes effect exactly once, whatever breaks. [Store] is for handlers that call
// other systems: a claim is a lease, as with Redis, and what an owner has done that died is not known to the database.
//
//	pgxstore.Migrate(ctx, pool, pgxstore.Options{}) // once, when the program starts
//	store := pgxstore.NewTx(pool, pgxstore.Options{})
//
// # How a transaction claims
//
// A transaction takes the advisory lock of the key, or finds that another one has it, and looks at the record in a
// second statement: its snapshot must not be older than the lock. The handler then works in that transaction, and the
// record is inserted in front of its commit, where the primary key would refuse a second one. A duplicate learns of the
// lock at once and waits, if it does, without a connection. Nothing is sent to the client before the commit.
//
// A commit whose reply is lost has happened, or has not, or may still happen. The store then waits for the lock of the
// key on another connection: when it can be had the transaction is over, and whether its record is there is the truth.
// If that takes too long the client is told to try again, and gets whatever came of it.
//
// With synchronous replication, that a record is there does not mean that a standby has it. Before anybody relies on
// one that was only seen, the store locks it in a transaction whose commit waits for the standbys.
//
// An answer with a status of 400 or more is a refusal: it is stored, and what the handler did is rolled back, unless it
// calls [KeepEffects]. The store ends the transaction of the handler then, claims the key again on the same connection, and
// commits a transaction in which there is nothing but the record. The key is free for a moment in between. If another
// attempt claims it, that one counts, and the first one has lost its claim.
//
// At the isolation levels repeatable read and serializable the database may refuse a commit, also for another
// transaction that it merely resembles. The client is told to try again then; nothing is half done. At the level
// serializable a claim takes a round trip more: the record is read in front of the transaction, which would else depend
// on all records that are inserted near it in the index.
//
// # Expiry
//
// Records that have expired do not count, but take space until [Table.Maintain] deletes them, which [Table.Janitor]
// calls again and again. Where there are too many for that, [Options].PartitionDays divides the table by the day on which
// records expire, and Maintain drops a day at once.
//
// A unique index cannot span partitions unless the border is in it, so it would not keep a key from being claimed on
// both sides. Therefore all claims of a key in such a table take turns, by an advisory lock that ends with the
// transaction, and each searches every partition that can hold a record which counts, by a statement that begins when it
// has the lock. Only such a statement makes a record, and it finds the one that is there; completion and renewal change a
// record, or move it to the partition of the day on which it expires now. If they find none, they make it again as a claim
// does. So there is no second one, as long as all claims have the same [Options], and nobody detaches a day by hand that
// is not over.
//
// That costs no round trip, as everything is sent at once; but a transaction that cannot see what was committed since
// it began would be blind to the other partitions, which is why there is no other isolation level than read committed.
// A table on the side with a unique index on the key instead would have to be deleted from row by row, which is what
// partitions are to save.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key that its columns name. One that names another key, or has a value
// that no store writes, is [idempotency.ErrRecordInvalid]: it is neither replayed nor claimed, and left as it is. One
// that has expired is replaced, whatever it says. The columns are returned and compared by the client, except where a
// statement claims the record of an earlier attempt: that compares them itself.
//
// # PgBouncer
//
// Both stores work behind PgBouncer in session mode and in transaction mode: what they set and lock ends with the
// transaction. In statement mode TxStore is refused. In transaction mode, unless its
// max_prepared_statements is above zero, which it knows since version 1.21, pgx must not prepare statements there: set
// DefaultQueryExecMode to [pgx.QueryExecModeExec].
package pgxstore
