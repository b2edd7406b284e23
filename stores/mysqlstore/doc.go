// Package mysqlstore keeps the records of package idempotency in MySQL or MariaDB, by way of database/sql and
// [github.com/go-sql-driver/mysql]. It needs MySQL 8.0, MariaDB 10.6, or a newer version. Its tests run on MariaDB
// 10.11, and not on MySQL. The README says which other engines it allows, and why it refuses the rest, with [ErrEngine].
//
//	db.SetMaxOpenConns(50)
//	db.SetMaxIdleConns(50)
//	err := mysqlstore.Migrate(ctx, db, mysqlstore.Options{}) // when the program starts
//	store := mysqlstore.New(db, mysqlstore.Options{})
//	err = store.Check(ctx)
//	go store.Janitor(ctx, 0, nil) // every five minutes
//
// A handler writes rows in the same database in a step, see package step. Rows and result are committed together:
//
//	payment, err := mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (Payment, error) { return insertPayment(ctx, tx, receipt) })
//
// # Round trips
//
// A first execution takes three round trips: to look, to claim and to complete. A replay takes one. Statements are prepared once
// on each connection. So the driver's interpolateParams makes no difference, nor do clientFoundRows, parseTime and loc. A pool
// that keeps fewer connections idle than it uses makes connections, and prepares statements, again and again. So give
// SetMaxIdleConns the same number as SetMaxOpenConns.
//
// # Steps
//
// A [Store] keeps the results of steps in the record of the operation. Each step of step.Do takes one round trip and one commit.
// A later attempt takes one round trip more, to read what is there. The server writes all results of an operation anew each time,
// so let a step return an ID rather than a document. A result is refused with [idempotency.ErrStoreFull] if all of them take more
// than half of max_allowed_packet.
//
// # Steps in transactions
//
// [DoTx] takes six round trips beside those of its function, and one commit. Its transaction begins with a renewal of the lease,
// which locks the record until the transaction ends. So no other attempt can claim the key meanwhile, at any isolation level, and
// no other renewal is sent. The result is stored just before the commit.
//
// The function may end the transaction, by COMMIT or CREATE TABLE for example. A savepoint, set after the renewal, is then missing.
// Only this transaction writes the new end of the lease. So if the record has that end, the function has committed, and DoTx
// stores that the step has no result, so that no attempt runs the step again.
//
// If a commit gets no reply, the store reads the record on another connection. This query waits for the lock of the transaction,
// so the result that it finds, or does not find, is final.
//
// A deadlock rolls back the transaction of a function, and the function may ignore the error. Autocommit is off during the step, so
// nothing that the function does afterwards is committed. The same holds for a lock wait timeout with innodb_rollback_on_timeout.
//
// # Operators
//
// A [Table], and so each store, is an [idempotency.Resolver]. [Table.Inspect] shows the record of a key, [Table.List] finds
// records, [Table.Forget] removes one, and [Table.Resolve] ends an operation that was abandoned.
//
// List reads the whole table. With a million records, answers of 400 bytes and the table in memory, a page took 2 to 4
// seconds of one core of the server. Claims go on meanwhile. An index on lease would find what was abandoned at once. It
// is not there, because it would take 5 to 10 per cent more of the server for each operation.
//
// # What survives what
//
// With innodb_flush_log_at_trx_commit = 1 and innodb_doublewrite, what was acknowledged survives the death of the
// server and of its machine. With sync_binlog = 1 its replicas get it, too. [Table.Check] reports other settings.
//
// All processes must use one primary. By default replication is asynchronous: a failover then forgets the last records,
// and their operations can be executed again. A read from a replica may not know of a claim. If the server was made
// read-only, it refuses the step. The store then closes its connections, so that the pool finds the server that takes
// its place.
//
// In a Galera cluster leases hold on all nodes: of two claims of a key, or two transactions of a step, the cluster commits one.
// Nothing is lost if a node is killed or cut off. A node that is cut off from the majority refuses all statements; a step is
// repeated until it reaches another node, or its time is over. A node that lags shows records as they were, so a key that is free
// may seem to be taken. With wsrep_sync_wait = 1 in the session, it first waits for what the others have committed. A node that
// stands still refuses nobody: until the cluster or a proxy takes it out, a step that makes a connection to it fails after
// StoreTimeout, because the timeout of the driver ends with the dial. Each node reads its own clock, so leases are only as exact
// as the clocks agree.
//
// A proxy that sends the statements of one connection to several servers must send all of them to the primary. One that
// shares connections among clients has to support prepared statements.
//
// # Connections and conflicts
//
// A step that meets a deadlock, a lock that another transaction holds for too long, or a record that was changed in the
// meantime is repeated until its context ends. If its connection breaks, it is repeated a few times; a claim recognises
// its own token. The server goes on for up to innodb_lock_wait_timeout (50 s by default) with a statement that waits for
// a lock, although its caller has gone. A step returns [idempotency.ErrStoreBusy] if its context ends while all
// connections of the pool are in use, or after such conflicts, and if the server has too many connections.
//
// An answer that is larger than half of max_allowed_packet of the server is stored with Omitted set: all bytes and texts
// are sent in hexadecimal digits, so that no character set of a session changes them. A full disk or table
// refuses new operations with [idempotency.ErrStoreFull].
//
// # Time
//
// Time is that of the server, in UTC. It is independent of time zones and daylight saving time. A statement reads it
// when it has the record, so a wait for another transaction does not shorten a lease, unless the server runs with
// sysdate_is_now, which Check reports.
//
// # Expiry
//
// Records that have expired do not count, but take space until [Table.Maintain] deletes them, which [Table.Janitor]
// calls again and again. It deletes 200 in each transaction, and leaves out those that another transaction has locked
// (by SKIP LOCKED, for which MariaDB 10.6 or MySQL 8.0 is needed). Every statement that changes records finds them by
// their primary key, so that this does not collide with claims of other keys.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key that its columns name. If it names another key, or has a value
// that no store writes, the error is [idempotency.ErrRecordInvalid]. Such a record is neither replayed nor claimed, and
// left as it is until it expires.
package mysqlstore
