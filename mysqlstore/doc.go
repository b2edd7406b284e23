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
// There are two stores, see https://github.com/idempotency-go/idempotency#choosing-a-store. A claim of [Store] is a lease.
// If an owner dies, the store does not know what it has done, and Abandoned of [idempotency.Options] decides, as with
// Redis.
//
// A claim of [TxStore] is a transaction, which the handler gets from [Tx]. What the handler writes in it and the record
// commit together. Both kinds may use the same table.
//
// # Round trips
//
// With a [Store], a first execution takes three round trips: to look, to claim and to complete. A replay takes one.
// Statements are prepared once on each connection. So the driver's interpolateParams makes no difference, nor do
// clientFoundRows, parseTime and loc. A pool that keeps fewer connections idle than it uses makes connections, and
// prepares statements, again and again. So give SetMaxIdleConns the same number as SetMaxOpenConns.
//
// # Steps
//
// A Store keeps the results of steps (see package step) in the record of the operation. Each step takes one round trip
// and one commit. A later attempt takes one round trip more, to read what is there. The server writes all results of an
// operation anew each time, so let a step return an ID rather than a document. A result is refused with
// [idempotency.ErrStoreFull] if all of them take more than half of max_allowed_packet.
//
// A TxStore keeps no results: they would be rolled back with the rows of the handler. Package step puts a Store beside
// it. Both may use the same table. Give the Store a pool of its own: a handler holds a connection of the other one while
// it asks for one. The first step of an attempt then takes two more round trips, and the end of the operation one.
//
// # Transactions
//
// With a TxStore, a first execution takes five round trips beside those of the handler, and one commit. A handler that
// answers 400 or more costs one more round trip, to roll back what it did. An answer above 16 KiB takes one more, too.
// A replay takes one round trip, and so does a request that finds another attempt running. Each handler holds a
// connection while it runs.
//
// A claim locks its key by GET_LOCK. Its transaction begins with a marker. The marker is the record of an operation
// that was completed and whose answer was not kept. The response takes the place of the marker before the commit. So
// the database itself says what has happened if the transaction is no longer the one that was begun:
//
//   - A deadlock rolls back the transaction of one handler, which may ignore the error. The marker is gone then.
//     Because autocommit is off, nothing that the handler does afterwards is committed. The client is told to try
//     again. The same holds for innodb_rollback_on_timeout.
//   - DDL (CREATE TABLE and the like) and some other statements commit by themselves. They are refused, but for those
//     that are hidden (see [Tx]). A hidden one commits the marker together with the effects, and the marker keeps the
//     operation from being carried out again.
//   - If a commit gets no reply, the store reads the record on another connection, and waits there for the row lock of
//     the transaction. The client gets the answer if and only if the store finds it committed.
//
// The lock of the key only keeps duplicates from waiting. Without it, the primary key decides: duplicates wait for the
// transaction, and replay its answer. The lock is missing if a handler calls RELEASE_ALL_LOCKS. It is also missing for
// the moment of the commit, because the server releases the lock just before it.
//
// In a Galera cluster, the lock does not reach the other nodes, so handlers of one operation may run on several of them.
// One of them commits. The others are rolled back when they are to commit, and their clients are told to try again. So
// the effects in the database are made once, but whatever a handler does elsewhere is done by each, with the same
// DownstreamKey. If Maintain deletes an expired record on one node, a transaction that has replaced it on another is
// rolled back, too. To avoid both, send all claims and Maintain to one node.
//
// A proxy that shares connections among clients has to leave one to its client as long as autocommit is off, as for
// any other transaction. If it sends reads to replicas, the store looks for records there. A record that a replica shows
// in an older state cannot be replaced, so its key cannot be claimed until the replica has caught up.
//
// # Operators
//
// A [Table], and so each store, is an [idempotency.Resolver]. [Table.Inspect] shows the record of a key, [Table.List] finds
// records, [Table.Forget] removes one, and [Table.Resolve] ends an operation that was abandoned.
//
// An operation that a TxStore runs is seen by the lock of its key. So it is known that it runs, and nothing else. List
// leaves it out. It is never abandoned. A record that a Store has left may be, also while a TxStore is taking it over:
// List goes by the record, and the other methods see the transaction.
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
// In a Galera cluster leases hold on all nodes: of two claims of a key, the cluster commits one. Nothing is lost if a node
// is killed or cut off. A node that is cut off from the majority refuses all statements; a step is repeated until it
// reaches another node, or its time is over. A node that lags shows records as they were, so a key that is free may seem
// to be taken. With wsrep_sync_wait = 1 in the session, it first waits for what the others have committed. A node that stands
// still refuses nobody: until the cluster or a proxy takes it out, a step that makes a connection to it fails after
// StoreTimeout, because the timeout of the driver ends with the dial. Each node reads its own clock, so leases are only as
// exact as the clocks agree.
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
