// Package sqlitestore keeps the records of package idempotency in a file, by way of SQLite. It needs no server and no C
// compiler. It is for a service that runs on one machine, and whose records must survive a restart.
//
//	store, err := sqlitestore.Open(ctx, "/var/lib/payments/idempotency.db", sqlitestore.Options{})
//	// ...
//	defer store.Close() // when the server has shut down
//	err = store.Check(ctx)
//
// A handler that writes rows in the same file does so in a step, see package step. Rows and result are committed together:
//
//	id, err := sqlitestore.DoTx(r.Context(), "book", func(tx *sql.Tx) (int64, error) {
//		result, err := tx.ExecContext(r.Context(), "INSERT INTO payments ...")
//		// ...
//		return result.LastInsertId()
//	})
//
// # One writer
//
// SQLite allows one transaction at a time, and makes each wait for the disk by itself. So a store has one connection
// that writes, and all steps that wait for it share a transaction. They are answered when it is committed, and not
// before. If it fails, each step gets a transaction of its own, so that none fails for another. A record that
// holds its key already, such as one with an answer, is read by other connections, which do not wait for the writer.
//
// With [Full], what was acknowledged survives a loss of power. A first execution waits for the disk twice, and once more for each
// step. A replay does not wait for it.
//
// # Steps in transactions
//
// A step of [DoTx] is alone on the connection that writes, from the beginning of its function to its end. All other writes wait
// meanwhile, for StoreTimeout at most: then claims and steps return [idempotency.ErrStoreBusy], and renewals are tried again.
// Replays go on. So keep the function short, and call other systems in steps before it. If the function executes another
// operation of the same file, such as by a request to its own service, that operation waits for the step, and the step for it,
// until a deadline ends one of them. A function that does not return keeps others from writing, and Close from ending: give its
// statements a deadline.
//
// When the function returns, its transaction is closed. A statement that a goroutine still runs is interrupted when StoreTimeout
// is over, and the step is rolled back.
//
// If the disk does not answer a commit within StoreTimeout, DoTx fails. The next attempt waits for the end of that commit, and
// finds the result if there is one.
//
// Only the store commits. SQLite asks it about each statement, also about a COMMIT behind another statement in one
// string, which is refused. If SQLite rolls back by itself, as it does for ON CONFLICT ROLLBACK and on a full disk,
// nothing that the function does afterwards has an effect, and DoTx returns an error. What a step leaves on the connection, such as
// a temporary table, is gone before the next step, except for last_insert_rowid().
//
// The connection is the store's, not one of the service's own. [Options].Parameters gives it the settings that the
// service's connections have. For example, SQLite enforces foreign keys only on a connection that asks for it. The
// service may open the file itself, by a driver that is built on modernc.org/sqlite/lib. Another copy of SQLite in the
// process, as drivers with cgo have, would end the locks of this one.
//
// Each step writes all results of its operation anew, so let a step return an ID rather than a document.
//
// # Operators
//
// A Store is an [idempotency.Resolver]: Inspect shows the record of a key, List finds records, Forget removes one, and Resolve
// ends an operation that was abandoned.
//
// List reads the whole table, on a connection of its own. With a million records and answers of 300 bytes, a page took 2 to
// 4 seconds of one core. Claims and replays go on meanwhile.
//
// # Several processes
//
// Several processes of one machine may have the file open, as during a deployment. They take turns to write, without an
// order, and try again about three times a millisecond. A process that is killed leaves no lock. If other processes or
// steps keep a step waiting until its context ends, it returns [idempotency.ErrStoreBusy].
//
// The file must be on a disk of the machine: network file systems may not keep locks, and the processes share memory.
// Nothing else in the process may open and close the file, not even to copy it: POSIX ends all locks of a process on a
// file when the process closes it. Make backups from another process, with sqlite3's ".backup".
//
// # Time
//
// Time is that of the machine. It is read when a step has its turn, so the wait for that is no part of a lease.
//
// If the clock is set forward, leases lapse and records expire early. A retry may then take over an operation that
// still runs, until its owner renews the lease, which the middleware does three times a lease. If it is set back,
// leases and records last for so much longer: after a crash, keys stay in progress for that time. A clock that is
// slewed, as NTP daemons do once they have started, does neither.
//
// # Expiry
//
// A claim that adds a record deletes up to two that have expired, in the same transaction. So the table holds hardly more than
// the records that count. It needs neither a janitor nor a further wait for the disk. Until they are deleted, answers that have
// expired stay in the file. The file keeps its largest size, and uses free space in it again. To make it smaller, run sqlite3's
// VACUUM. A log beside it has a few MiB.
//
// # Failures
//
// A file that was deleted or replaced under the store is noticed before the next acknowledgement: [ErrReplaced]. A
// full disk refuses new operations ([idempotency.ErrStoreFull]). An operation that runs stores its status without its
// answer, if there is room for that. If not, the middleware tries again until there is. A step in a transaction is rolled back.
// What is stored is replayed.
//
// A row that no store would have written is [idempotency.ErrRecordInvalid]. It is neither replayed nor claimed, and
// stays until it expires. If SQLite finds the file damaged, the step returns an error.
package sqlitestore
