// Package sqlitestore keeps the records of package idempotency in an SQLite file, without a server and without a C
// compiler. Use sqlitestore for a service that runs on a single machine, and whose records must survive a restart.
//
//	store, err := sqlitestore.Open(ctx, "/var/lib/payments/idempotency.db", sqlitestore.Options{})
//	// ...
//	defer store.Close() // when the server has shut down
//	err = store.Check(ctx)
//
// A handler writes rows in the same file in a step, see package step. The rows and the result of the step are committed
// together:
//
//	id, err := sqlitestore.DoTx(r.Context(), "book", func(tx *sql.Tx) (int64, error) {
//		result, err := tx.ExecContext(r.Context(), "INSERT INTO payments ...")
//		// ...
//		return result.LastInsertId()
//	})
//
// # One writer
//
// SQLite allows only a single transaction at a time, and each transaction waits for the disk. So a store has a single
// writing connection, and all waiting steps share a transaction. The store answers the steps after the commit. If the
// shared transaction fails, each step gets a separate transaction, so that a failing step does not harm the rest. Other
// connections read the records that already hold their keys, such as records with an answer, without waiting for the
// writer.
//
// With [Full], acknowledged records survive a loss of power. A first execution waits for the disk twice, and once more
// for each step. A replay never waits for the disk.
//
// # Steps in transactions
//
// A step of [DoTx] has the writing connection to itself while its function runs. All other writes wait, for
// StoreTimeout at most: after StoreTimeout, claims and steps return [idempotency.ErrStoreBusy], and renewals are tried
// again. Replays continue. So keep the function short, and call other systems in earlier steps. If the
// function executes a different operation of the same file, for example by a request to its own service, the operation
// and the step wait for each other until a deadline ends either. A function that does not return blocks all writers and
// Close, so give the statements of the function a deadline.
//
// When the function returns, the store closes the transaction. After StoreTimeout, the store interrupts a statement
// that a goroutine is still running, and rolls the step back.
//
// If the disk does not answer a commit within StoreTimeout, DoTx fails. The next attempt waits for the end of the
// commit, and finds the result if the commit has stored a result.
//
// Only the store commits. SQLite asks the store about each statement, including a COMMIT after the first statement in a
// string, and the store refuses COMMIT. If SQLite rolls back by itself, as for ON CONFLICT ROLLBACK and on a full disk,
// the rest of the function has no effect, and DoTx returns an error. State that a step leaves on the connection, such
// as a temporary table, is gone before the next step, except for last_insert_rowid().
//
// The connection belongs to the store. [Options].Parameters gives the connection the settings of the service's own
// connections. For example, SQLite enforces foreign keys only if a connection asks for foreign keys. The service may
// open the file itself, with a driver built on modernc.org/sqlite/lib. A second copy of SQLite in the process, as in
// drivers with cgo, would end the locks of the store.
//
// Each step writes all results of its operation again, so let a step return an ID rather than a document.
//
// # Operators
//
// A Store is an [idempotency.Resolver]: Inspect shows the record of a key, List finds records, Forget removes a record,
// and Resolve ends an abandoned operation.
//
// List reads the whole table, on a separate connection. With a million records and answers of 300 bytes, a page took 2
// to 4 seconds of one core. Claims and replays continue meanwhile.
//
// # Several processes
//
// Several processes of a machine may have the file open, for example during a deployment. The processes take turns to
// write, in no order, and try again about three times a millisecond. A killed process leaves no lock. If other
// processes or steps keep a step waiting until its context ends, the step returns [idempotency.ErrStoreBusy].
//
// The file must be on a disk of the machine, because network file systems may lose locks, and because the processes
// share memory. No other code in the process may open and close the file, even to copy the file: when a process closes
// a file, POSIX ends all locks of the process on the file. Make backups from a different process, with ".backup" of
// sqlite3.
//
// # Time
//
// The store uses the clock of the machine. A step reads the clock at the start of its turn, so a lease does not include
// the wait for the turn.
//
// If the clock is set forward, leases and records end early. A retry may then take over a running operation, until the
// owner renews the lease; the middleware renews three times a lease. If the clock is set back, leases and records last
// longer by the same time: after a crash, keys stay in progress for longer. A slewed clock, as from a running NTP
// daemon, causes neither problem.
//
// # Expiry
//
// A claim that adds a record also deletes up to two expired records, in the same transaction. So the table holds hardly
// more than the records that count, without a janitor and without a further wait for the disk. Expired answers stay in
// the file until a claim deletes them. The file keeps its largest size, and reuses free space. To shrink the file, run
// VACUUM of sqlite3. The log beside the file takes a few MiB.
//
// # Failures
//
//   - The file was deleted or replaced under the store: the store notices before the next acknowledgement, and returns
//     [ErrReplaced].
//   - The disk is full: the store refuses new operations with [idempotency.ErrStoreFull], rolls back steps in
//     transactions, and continues to replay. A running operation stores its status without the answer, if the disk has
//     room for the status; until then, the middleware tries again.
//   - A row could not have been written by a store: the error is [idempotency.ErrRecordInvalid]. The row is neither
//     replayed nor claimed, and stays until its expiry.
//   - SQLite finds the file damaged: the step returns an error.
package sqlitestore
