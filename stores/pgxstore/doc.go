// Package pgxstore keeps the records of package idempotency in PostgreSQL, with the driver pgx. The README lists the
// other engines that the store allows, and explains why the store refuses all others with [ErrEngine].
//
//	err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}) // once, when the program starts
//	store := pgxstore.New(pool, pgxstore.Options{})
//
// A handler writes rows in a step (see package step):
//
//	id, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (id int64, err error) {
//		err = tx.QueryRow(r.Context(), "INSERT INTO payments ... RETURNING id").Scan(&id)
//		return id, err
//	})
//
// # How a step commits
//
// The transaction of a step begins with a statement that reports whether the claim holds the record. At an isolation
// level above read committed, this statement also locks the record. Without the lock, the lease could be renewed after
// the snapshot of the transaction, and the transaction would fail. Then the step writes its rows. Before the commit, a
// statement stores the result in the record, provided that the record has the token of the claim: the token is the fence.
// The store sends this statement and the commit together, and the server skips the commit if the statement fails.
//
// If the reply to a commit is lost, the commit may have taken effect, may have failed, or may still be on its way. The
// store asks on another connection until the transaction has ended, and then reads whether the result is there. If the
// server takes too long to tell, DoTx returns an error. The next attempt, or the next call in the same attempt, finds the
// result if the commit has taken effect.
//
// At the isolation levels repeatable read and serializable, the database may refuse a commit because of another
// transaction, even if the two transactions have changed different rows. The database then rolls everything back, and a
// later call runs the step again. At the level serializable, a step takes one more round trip, because the store reads
// the place of the record (its ctid) before the transaction. If the transaction searched the index instead, it would
// conflict with changes of all records on the same page of the index.
//
// With synchronous replication, a record that can be read may be missing on the standbys. Before anybody relies on a
// record that was only read, the store locks the record in a transaction whose commit waits for the standbys.
//
// # Expiry
//
// Expired records do not count, but take space until [Table.Maintain] deletes them. [Table.Janitor] calls Maintain
// periodically. If deleting each record takes too long, [Options].PartitionDays partitions the table by the day on which
// records expire, and Maintain drops a day at once.
//
// In a partitioned table, a unique index must include the column of the partitions, so no index can refuse a second
// record of the same key in a different partition. The store prevents a second record as follows:
//
//   - All claims of a key take turns, by an advisory lock that ends with the transaction.
//   - Each claim searches every partition that can hold a valid record. The search is a statement that begins after the
//     lock is granted, so it finds a record of an earlier turn.
//   - Only claims insert records. Completion and renewal change the record, or move it to the partition of its new
//     expiry. If the record is gone, they restore it in the same way as a claim inserts a record.
//
// There is never a second record as long as all claims have the same [Options], and as long as nobody detaches a
// partition by hand before its day is over.
//
// The turns take no further round trip, because the store sends the whole transaction at once. They need the isolation
// level read committed, so DoTx has no other level on a partitioned table: a transaction that cannot see what was
// committed since its begin would miss records in other partitions. The alternative, a second table with a unique index
// on the key, would have to be cleaned record by record, which partitions avoid.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key in its columns. If these columns belong to a different key, or if a
// column has a value that stores never write, the store returns [idempotency.ErrRecordInvalid], and neither replays nor
// claims nor changes the record. An expired record is replaced regardless of its content. The store compares the columns
// in the client, except for a claim of the record of an earlier attempt, where the statement compares them.
//
// # PgBouncer
//
// The store works behind PgBouncer in session mode and in transaction mode, because its settings and locks end with the
// transaction. In statement mode, PgBouncer refuses steps in transactions. In transaction mode, pgx may prepare
// statements only if PgBouncer is 1.21 or newer and its max_prepared_statements is above zero. Otherwise set
// DefaultQueryExecMode to [pgx.QueryExecModeExec].
package pgxstore
