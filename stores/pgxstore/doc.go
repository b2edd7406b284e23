// Package pgxstore keeps the records of package idempotency in PostgreSQL, by way of pgx. The README says which other engines
// it allows, and why it refuses the rest, with [ErrEngine].
//
//	err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}) // once, when the program starts
//	store := pgxstore.New(pool, pgxstore.Options{})
//
// A handler writes rows in a step, see package step:
//
//	id, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (id int64, err error) {
//		err = tx.QueryRow(r.Context(), "INSERT INTO payments ... RETURNING id").Scan(&id)
//		return id, err
//	})
//
// # How a step commits
//
// The transaction of a step begins with a statement that looks whether the claim holds the record. At an isolation level above
// read committed, this statement locks the record. Otherwise the snapshot of the transaction could be older than a renewal of
// the lease, and the transaction would fail. The step then writes its rows. Before the commit, one statement stores the result in
// the record, if the record has the token of the claim: the fence. This statement and the commit are sent together, and the
// server skips the commit if the statement fails.
//
// If the reply to a commit is lost, the commit has happened, has not happened, or may still happen. The store asks on another
// connection until the ID of the transaction has ended, and then looks whether the result is there. If that takes too long, DoTx
// returns an error. The next attempt, or the next call in this one, finds the result if there is one.
//
// At the isolation levels repeatable read and serializable, the database may refuse a commit because of another
// transaction, even if the two have changed different rows. Nothing is half done then, and a later call runs the step again. At the
// level serializable, a step takes one more round trip, because the store reads the place of the record before the transaction.
// If the transaction searched the index instead, it would conflict with changes of all records near that one in the index.
//
// With synchronous replication, a record that can be read may be missing on the standbys. So before anybody relies on a
// record that was only read, the store locks it in a transaction whose commit waits for the standbys.
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
// DoTx has no other level there: a transaction that cannot see what was committed since it began would not see records in
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
// The store works behind PgBouncer in session mode and in transaction mode: what it sets and locks ends with the
// transaction. In statement mode steps in transactions are refused. In transaction mode, pgx may prepare statements only if
// PgBouncer is 1.21 or newer and its max_prepared_statements is above zero. Otherwise set DefaultQueryExecMode to
// [pgx.QueryExecModeExec].
package pgxstore
