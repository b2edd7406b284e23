// Package pgxstore keeps the records of package idempotency in PostgreSQL, by way of pgx. The README says which other engines
// it allows, and why it refuses the rest, with [ErrEngine].
//
// There are two stores, see https://github.com/idempotency-go/idempotency#choosing-a-store. With [TxStore], the handler
// writes in the transaction of its record. Claim, rows and record are one transaction, so the rows are there exactly
// once, whatever breaks. With [Store], a claim is a lease, as with Redis. If an owner dies, the database does not know
// what it has done.
//
//	err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}) // once, when the program starts
//	store := pgxstore.NewTx(pool, pgxstore.Options{})
//
// In the handler:
//
//	tx, ok := pgxstore.Tx(r.Context()) // false: the request is not guarded, for instance because it has no key
//	_, err := tx.Exec(r.Context(), "INSERT INTO payments ...") // the store commits if the answer is below 400
//
// # How a transaction claims
//
// A transaction takes the advisory lock of the key, or finds that another one has it. It looks at the record in a
// second statement, because the snapshot of that statement must not be older than the lock. The handler then works in
// this transaction. The record is inserted just before the commit, and the primary key would refuse a second one. A
// duplicate learns of the lock at once. If it waits, it holds no connection. Nothing is sent to the client before the
// commit.
//
// If the reply to a commit is lost, the commit has happened, has not happened, or may still happen. The store then
// waits for the lock of the key on another connection. When it has the lock, the transaction is over, and the table
// shows whether its record is there. If that takes too long, the client is told to try again. The retry gets whatever
// came of the operation.
//
// With synchronous replication, a record that can be read may be missing on the standbys. So before anybody relies on a
// record that was only read, the store locks it in a transaction whose commit waits for the standbys.
//
// If an answer has a status of 400 or more, the changes of the handler are rolled back, unless the answer is stored and
// the handler has called [KeepEffects]. To store an answer without the changes, the store ends the transaction of the
// handler, claims the key again on the same connection, and commits a transaction with nothing but the record. The key
// is free for a moment in between. If another attempt claims it then, that attempt counts, and the first one has lost
// its claim.
//
// At the isolation levels repeatable read and serializable, the database may refuse a commit because of another
// transaction, even of one that is merely similar. The client is told to try again then; nothing is half done. At the
// level serializable, a claim takes one more round trip, because the record is read before the transaction. Otherwise
// the transaction would depend on all records that are inserted near it in the index.
//
// # Expiry
//
// Records that have expired do not count, but take space until [Table.Maintain] deletes them. [Table.Janitor] calls it
// again and again. If there are too many records for that, [Options].PartitionDays divides the table by the day on
// which records expire, and Maintain drops a day at once.
//
// In a divided table a unique index must include the column by which the table is divided. So no index keeps two
// partitions from having a record of the same key. Therefore all claims of a key in such a table take turns, by an
// advisory lock that ends with the transaction. Each claim searches every partition that can hold a valid record, by a
// statement that begins when it has the lock. Only such a statement makes a record, and it finds the one that is there.
// Completion and renewal change a record, or move it to the partition of the day on which it now expires. If they find
// none, they make it again as a claim does. So there is no second record, as long as all claims have the same
// [Options], and nobody detaches a day by hand that is not over.
//
// That costs no round trip, because everything is sent at once. But it needs the isolation level read committed, and so
// no other level is allowed: a transaction that cannot see what was committed since it began would not see records in
// other partitions. The alternative is a table on the side with a unique index on the key. Its rows would have to be
// deleted one by one, which partitions are meant to avoid.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key that its columns name. If it names another key, or has a value
// that no store writes, the error is [idempotency.ErrRecordInvalid]. Such a record is neither replayed nor claimed, and
// left as it is. A record that has expired is replaced, whatever it says. The statements return the columns, and the
// client compares them. One statement compares them itself: the one that claims the record of an earlier attempt.
//
// # PgBouncer
//
// Both stores work behind PgBouncer in session mode and in transaction mode: what they set and lock ends with the
// transaction. In statement mode [TxStore] is refused. In transaction mode, pgx may prepare statements only if
// PgBouncer is 1.21 or newer and its max_prepared_statements is above zero. Otherwise set DefaultQueryExecMode to
// [pgx.QueryExecModeExec].
package pgxstore
