// Package mysqlstore keeps the records of package idempotency in MySQL or MariaDB, through database/sql and
// [github.com/go-sql-driver/mysql]. The package needs MySQL 8.0, MariaDB 10.6, or a newer version. The tests run on MariaDB
// 10.11, but not on MySQL. The README lists other engines that are allowed, and the reasons for refusing the rest with [ErrEngine].
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
// A first execution takes three round trips: to read, to claim and to complete. A replay takes one. Statements are prepared once on
// each connection, so the driver's interpolateParams, clientFoundRows, parseTime and loc make no difference. A pool with fewer idle
// than open connections opens connections and prepares statements repeatedly, so give SetMaxIdleConns and SetMaxOpenConns the same
// number.
//
// # Steps
//
// A [Store] keeps the results of steps in the record of the operation. Each step of step.Do takes one round trip and one commit.
// A later attempt takes one more round trip, to read the results. The server rewrites all results of an operation with each step, so
// let a step return an ID rather than a document. A result is refused with [idempotency.ErrStoreFull] if all of them take more
// than half of max_allowed_packet.
//
// # Steps in transactions
//
// [DoTx] takes six round trips besides those of its function, and one commit. The transaction begins with a renewal of the lease,
// which locks the record until the transaction ends. So no other attempt can claim the key meanwhile, at any isolation level, and no
// other renewal is sent. DoTx stores the result just before the commit.
//
// The function may end the transaction, for example by COMMIT or CREATE TABLE. Then the savepoint that DoTx has set after the
// renewal is missing. Only this transaction writes the new end of the lease, so a record with the new end shows that the function
// has committed. DoTx then stores that the step has no result, so that no attempt runs the step again.
//
// If the reply to a commit is lost, the store reads the record on another connection. The query waits for the lock of the
// transaction, so the outcome is final.
//
// A deadlock rolls back the transaction of a function, and the function may ignore the error. Autocommit is off during the step, so
// later statements of the function are never committed. The same holds for a lock wait timeout with innodb_rollback_on_timeout.
//
// # Operators
//
// A [Table], and so each store, is an [idempotency.Resolver]. [Table.Inspect] shows the record of a key, [Table.List] finds
// records, [Table.Forget] removes a record, and [Table.Resolve] ends an abandoned operation.
//
// List reads the whole table. With a million records, answers of 400 bytes and the table in memory, a page took 2 to 4
// seconds of one core of the server. Claims go on meanwhile. An index on lease would find abandoned operations faster, but would
// cost 5 to 10 per cent of the server for each operation.
//
// # Durability
//
// With innodb_flush_log_at_trx_commit = 1 and innodb_doublewrite, acknowledged records survive the death of the server and of
// its machine. With sync_binlog = 1, the replicas get acknowledged records, too. [Table.Check] reports other settings.
//
// All processes must use the same primary, because a read from a replica may miss a claim. By default, replication is asynchronous:
// a failover then forgets the last records, and their operations can be executed again. A read-only server refuses the step. The
// store then closes its connections to that server, so that the pool finds the new primary.
//
// In a Galera cluster leases hold on all nodes: of two claims of a key, or two transactions of a step, the cluster commits one. All
// acknowledged records survive a node that is killed or cut off. A node without the majority refuses all statements, and the store
// repeats a step until the step reaches another node, or its time is over. A node that lags shows old records, so a free key may
// seem to be taken. With wsrep_sync_wait = 1 in the session, the node first waits for the commits of the others before each read. A
// step in a transaction, or a release, that reaches a node before the claim does fails with [idempotency.ErrClaimLost], and the key
// stays in progress until its lease lapses. An answer is stored nevertheless. A node that stands still refuses no connections:
// until the cluster or a proxy removes the node, a step that connects to the node fails after StoreTimeout, because the timeout of
// the driver ends with the dial. Each node reads its own clock, so leases are only as exact as the clocks agree.
//
// A proxy that sends the statements of one connection to several servers must send all statements to the primary. A proxy that
// shares connections among clients must support prepared statements.
//
// # Connections and conflicts
//
// After a deadlock, a lock wait timeout, or a record that was changed meanwhile, the store repeats the step until its context ends.
// After a broken connection, the store repeats the step a few times, and recognises a claim by its token. A statement that waits
// for a lock goes on in the server for up to innodb_lock_wait_timeout (50 s by default), even without its caller. A step returns
// [idempotency.ErrStoreBusy] if its context ends after such conflicts, or while all connections of the pool are in use, or if the
// server has too many connections.
//
// An answer above half of max_allowed_packet is stored with Omitted set, because all bytes and texts are sent in hexadecimal digits,
// which no character set of a session changes. With a full disk or table, new operations are refused with
// [idempotency.ErrStoreFull].
//
// # Time
//
// The clock of the server counts, in UTC, independent of time zones and daylight saving time. A statement reads the clock when it
// has the record, so waiting for another transaction does not shorten a lease, unless the server runs with sysdate_is_now, which
// Check reports.
//
// # Expiry
//
// Expired records do not count, but take space until [Table.Maintain] deletes them. [Table.Janitor] calls Maintain at intervals.
// Maintain deletes 200 records in each transaction, and skips records that another transaction has locked (SKIP LOCKED, which needs
// MariaDB 10.6 or MySQL 8.0). Every statement that changes records finds the records by primary key, so claims of different keys do
// not collide.
//
// # Invalid records
//
// A record counts only for the user, endpoint and key in its columns. A record of another key, or with a value that no store writes,
// causes [idempotency.ErrRecordInvalid]. Such a record is neither replayed nor claimed, and stays unchanged until it expires.
package mysqlstore
