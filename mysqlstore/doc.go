// Package mysqlstore keeps the records of package idempotency in MySQL or MariaDB, by way of database/sql and
// [github.com/go-sql-driver/mysql].
//
//	db.SetMaxOpenConns(50)
//	db.SetMaxIdleConns(50)
//	err := mysqlstore.Migrate(ctx, db, mysqlstore.Options{}) // when the program starts
//	store := mysqlstore.New(db, mysqlstore.Options{})
//	err = store.Check(ctx)
//	go store.Janitor(ctx, 0, nil)
//
// A claim of [Store] is a lease: it is for handlers whose effects are elsewhere. If an owner dies, the store does not
// know what it has done, and Options.Abandoned decides, as with Redis.
//
// A claim of [TxStore] is a transaction, which the handler gets from [Tx]: it is for handlers whose effects are in the
// same database. Effects and record commit together.
//
// # Round trips
//
// A first execution takes three round trips: to look, to claim and to complete. A replay takes one. Statements are
// prepared once on each connection, so the driver's interpolateParams makes no difference, nor do clientFoundRows,
// parseTime and loc. A pool that keeps fewer connections idle than it uses makes connections, and prepares statements,
// again and again: SetMaxIdleConns should be the number of SetMaxOpenConns.
//
// # Transactions
//
// A first execution of a TxStore takes five round trips beside those of the handler, one commit, and one more round
// trip to roll back what a handler did that answers 400 or more. A replay takes one, and so does the news that
// another attempt is running. An answer above 16 KiB takes one more round trip to be stored. Each handler holds a
// connection while it runs.
//
// A key that runs is locked by GET_LOCK, and the transaction begins with a marker: the record of the operation, as of
// one that was completed and whose answer was not kept. The response takes its place before the commit. So the
// database itself says what has happened if the transaction is no longer the one that was begun:
//
//   - A deadlock rolls back the transaction of one handler, without a word to those who swallow its error. The marker
//     is gone then, and with autocommit off, nothing that the handler goes on to do is committed. The client is told to
//     try again. So it is with innodb_rollback_on_timeout.
//   - DDL and other statements commit under the handler. They are refused; see [Tx] for those that are hidden. The
//     marker is committed with the effects then, and keeps the operation from being carried out again.
//   - A commit that is not answered is looked up on another connection, behind the lock that the transaction has on its
//     row. The answer is given if and only if it was committed.
//
// The lock only keeps duplicates from waiting. Where it does not reach, the primary key decides: they wait for the
// transaction, and replay its answer. That is so if a handler calls RELEASE_ALL_LOCKS, and for the moment of the
// commit, for the server gives the lock back just before it.
//
// In a Galera cluster, handlers of one operation may run on several nodes. One of them commits; the others are rolled
// back when they commit, and their clients are told to try again. That is exactly once, but costs the work of
// several, and whatever a handler does elsewhere is done by each. To send all claims to one node avoids it.
//
// A proxy that shares connections among clients has to keep one with its client as long as autocommit is off, as for
// any other transaction. One that reads from replicas looks for records there: a record that the replica
// shows in an older state cannot be replaced, so its key cannot be claimed until the replica has caught up.
//
// # What survives what
//
// With innodb_flush_log_at_trx_commit = 1 and innodb_doublewrite, what was acknowledged survives the death of the
// server and of its machine. With sync_binlog = 1 its replicas get it, too. [Table.Check] reports other settings.
//
// All processes must use one primary. Replication is asynchronous unless it is told otherwise: a failover forgets the
// last records then, and their operations can be executed again. A read from a replica may not know of a claim. A
// server that was made read-only refuses the step; its connections are closed, for the pool to find the server that
// takes its place.
//
// In a Galera cluster leases hold on all nodes: two claims of a key are in conflict, and one of them fails when it is
// committed. A node that lags may look at an old record, and then fails to change it. (The tests have no such cluster.)
//
// A pooler or proxy that sends the statements of one connection to several servers must send all to the primary. One
// that shares connections among clients has to support prepared statements.
//
// # Connections and conflicts
//
// A step that meets a deadlock, a lock that another transaction holds for too long, or a record that was changed in the
// meantime is repeated until its context ends. If its connection breaks, it is repeated a few times; a claim recognises
// its own token. The server goes on for up to innodb_lock_wait_timeout (50 s) with a statement that waits for a lock,
// although its caller has gone. A step is [idempotency.ErrStoreBusy] if its context ends while all connections of the
// pool are in use, or after such conflicts.
//
// An answer that is larger than max_allowed_packet of the server is stored with Omitted set.
//
// # Time
//
// Time is that of the server, in UTC. It is independent of time zones and daylight saving time. It is read when a
// statement has the record, so a wait for another transaction is no part of a lease; but not if the server runs with
// sysdate_is_now, which Check reports.
//
// # Expiry
//
// Records that have expired do not count, but take space until [Table.Maintain] deletes them, which [Table.Janitor]
// calls again and again. It deletes 200 in each transaction, and leaves out those that another transaction has locked,
// which takes MariaDB 10.6 or MySQL 8. Every statement that changes records finds them by their primary key, so that
// this does not collide with claims of other keys.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key that its columns name. One that names another key, or has a value
// that no store writes, is [idempotency.ErrRecordInvalid]: it is neither replayed nor claimed, and left as it is until
// it expires.
//
// A completed record whose answer was omitted is never executed again. A transaction may insert such a record as a
// marker before its effects, and put the answer in its place before it commits: should something commit the effects in
// between, as DDL does, they count.
package mysqlstore
