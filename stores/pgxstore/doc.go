// Package pgxstore keeps the records of package idempotency in PostgreSQL, with the driver pgx. The page docs/postgres.md of
// the repository leads from nothing to production. The README lists the other engines that the store allows, and what the
// engines lack that the store refuses with [ErrEngine].
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
// Logical replication treats each partition as a table. The subscriber needs the same days, and does not create partitions
// by itself: the subscription stops at the first record of a day that is missing there. So every day, after Maintain on
// the publisher, call Maintain on the subscriber, and then ALTER SUBSCRIPTION ... REFRESH PUBLICATION, which also copies
// what a stopped subscription has missed. Do not set publish_via_partition_root: the subscriber could not find a record
// that has moved to another day. A subscriber must not serve requests before it has taken over, because claims on two
// servers do not exclude each other.
//
// # Standbys
//
// With synchronous replication, a commit waits for a standby. If the wait is cancelled, as pgx does at the deadline of a
// step, PostgreSQL makes the commit visible all the same. Such a record is in the table, but is lost if a standby takes
// over. So before a step relies on a record that it has not written itself, it locks the record in a transaction of its
// own, whose commit waits for the standbys too. A replay then costs one more round trip, and a commit of 96 bytes of WAL.
//
// While the standby is cut off, first requests get 503, and retries get 503 or 409 (in-progress). When the standby is back,
// a retry gets the answer. If the standby has taken over, a retry runs the handler.
//
// Limits:
//
//   - With synchronous_commit = local, commits do not wait, and a failover loses answers that clients have. With
//     remote_write, a failover loses answers if the system of the standby crashes too. [Table.Check] reports both.
//   - If an administrator cancels the wait (pg_cancel_backend), the server reports the commit as done, and the store gives
//     the answer. Take the standby out of synchronous_standby_names instead, once it is certain that it will not take over.
//   - Anyone else who reads the tables on the old primary sees changes whose wait was cancelled. Only the answers wait.
//   - An answer that cannot be recorded in time is sent all the same, because its effects exist (OutcomeUnrecorded). After a
//     failover it may be missing. Then the claim of its key lapses, and Abandoned decides.
//   - Without synchronous replication, a failover loses the last commits. [DoTx] loses rows and result together, and an
//     answer that tells of lost rows is not stored: its client gets 409. With [DoInTx], the store notices a loss only if the
//     record is gone, too, or if a later attempt had found the result.
//   - Without target_session_attrs in the connection string, the pool may reach a standby. It can claim and record nothing
//     there. The standby replays what it has, without a confirmation.
//
// # Connections
//
// A step in a transaction holds a connection only while its function runs. If handlers hold all connections of the pool,
// leases are renewed, and results of steps are stored, on an extra connection, which is made for each renewal or result and
// closed after it. So leave room in max_connections for one such connection for each store.
//
// If all connections of the pool are in use until the deadline of a step, or the server has no more to give (error 53300),
// the error wraps [idempotency.ErrStoreBusy], and the request is refused with 503, even with FailOpen. Otherwise one user
// could keep the pool busy, and so switch off the protection of all. A step that times out is refused likewise if more
// steps are under way than the pool has connections, and the server has replied within the last minute. So if the network
// silently drops what is sent, FailOpen runs few requests in the first minute. If the server refuses connections, FailOpen
// runs every request.
//
// If the network breaks in the middle of a message, PostgreSQL waits for the rest, and the session keeps its transaction
// with the locks of the step until TCP gives up: two hours with the defaults of Linux. With tcp_keepalives_idle = 30,
// tcp_keepalives_interval = 10 and tcp_keepalives_count = 3, the server notices after a minute.
//
// # Disk
//
// A record is changed when its operation ends: in place if the answer finds room in the page (see [Options].FillFactor),
// and otherwise by writing the record and the entries of both indexes anew. BenchmarkFillFactor shows how many answers
// find room. Autovacuum of the table begins at 2,000 changes instead of 50, and does not shorten the file
// (vacuum_truncate is off), because a table that is vacuumed while it is small makes sessions keep a plan that reads the
// whole table. A VACUUM or ANALYZE of your own on a small table, such as vacuumdb --all --analyze, slows operations down
// likewise, until autovacuum comes. After a day with unusually many records, VACUUM (TRUNCATE) gives the space back.
//
// If the handler turns a request away, for example with 429, its record is kept for two leases. Until then it takes a row
// of 215 bytes, or 950 with the longest names: with indexes and old versions of the row, 0.9 or 3 kB of disk. A table with
// partitions keeps the record until its day is dropped. So limit, in front of the middleware, how many requests one user
// may send.
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
