// Package sqlitestore keeps the records of package idempotency in a file, by way of SQLite. It needs no server and no C
// compiler. It is for a service that runs on one machine, and whose keys survive a restart.
//
//	store, err := sqlitestore.Open("/var/lib/payments/idempotency.db", sqlitestore.Options{})
//	// ...
//	defer store.Close() // when the server has shut down
//	err = store.Check(ctx)
//
// There are two stores. [TxStore] is for handlers whose effects are in the same file: they make them in the transaction
// of their record, so each operation takes effect exactly once, whatever breaks. [Store] is for handlers that call
// other systems: a claim is a lease. If an owner dies, the store does not know what it has done, and Options.Abandoned
// decides, as with Redis. Both may have the same file open at the same time, and respect each other's records.
//
//	store, err := sqlitestore.OpenTx("/var/lib/payments/payments.db", sqlitestore.Options{})
//	// ...
//	func pay(w http.ResponseWriter, r *http.Request) {
//		tx, _ := sqlitestore.Tx(r.Context())
//		_, err := tx.ExecContext(r.Context(), "INSERT INTO payments ...")
//
// # One writer
//
// SQLite allows one transaction at a time, and makes each wait for the disk by itself. So a store has one connection
// that writes, and all steps that wait for it share a transaction. They are answered when it is committed, and not
// before. If it fails, each step gets a transaction of its own, so that none fails for another. A record that
// holds its key already, such as one with an answer, is read by other connections, which do not wait for the writer.
//
// With [Full], what was acknowledged survives a loss of power. A first execution waits for the disk twice, one in a
// transaction once, and a replay not at all.
//
// # The transaction of a handler
//
// A transaction has the connection that writes for itself. So it is lazy: what [Tx] returns begins with its first
// statement. That waits for its turn, finds out whether the operation is still to be done, and keeps all others from
// writing until the handler has returned. Call other systems first, and use the transaction last: with such calls of
// 10 ms, 16 callers got 1,000 operations a second done, against 84 where the transaction came first ("go test -run '^$'
// -bench Order" measures it). A handler that calls the same store again while it has a transaction, such as by a
// request to its own service, waits for itself.
//
// Only the store commits. SQLite asks it about each statement, also about a COMMIT behind another statement in one
// string, which is refused. If SQLite rolls back by itself, as it does for ON CONFLICT ROLLBACK and on a full disk,
// nothing that the handler does afterwards has an effect. Tables and settings that a handler leaves on the connection,
// such as a temporary table, are gone for the next one; last_insert_rowid is not.
//
// A handler that does not return keeps everybody from writing, and Close from ending. Give its calls and statements a
// deadline. Replays go on meanwhile.
//
// The connection is the store's, not one of the service's own. Options.Parameters gives it the settings that those
// have: foreign keys are enforced only where they say so, as everywhere in SQLite. The service may open the file
// itself, by a driver that is built on modernc.org/sqlite/lib. Another copy of SQLite in the process, as drivers with
// cgo have, would end the locks of this one.
//
// Which operations run is known to the process alone. If two processes get the same key at the same time, as during a
// deployment, both run the handler. One commits. The other one is told with its first statement, or at the latest when
// it is to commit, that its claim is lost; its effects in the file are undone, and its client is told to try again,
// which replays the answer of the first. What it has done elsewhere is done twice. Where that matters, take leases, or
// run one process. It is the same if a Store gets a key that a TxStore runs: the lease counts, unless the transaction
// has begun.
//
// # Several processes
//
// Several processes of one machine may have the file open, as during a deployment. They take turns to write, without an
// order, and try again about three times a millisecond. A process that is killed leaves no lock. A step that waits
// until its context ends returns [idempotency.ErrStoreBusy].
//
// The file must be on a disk of the machine: locks of network file systems do not hold what is needed, and the log is
// shared by memory. Nothing else in the process may open and close the file, not even to copy it: POSIX ends all locks
// of a process on a file when the process closes it. Make backups from another process, with sqlite3's ".backup".
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
// Each claim deletes up to two records that have expired, in its own transaction. So the table holds the records that
// count, and hardly more, without a janitor and without a wait for the disk. Answers that have expired stay in the file
// until then. The file keeps its largest size, and uses free space in it again; to make it smaller, run sqlite3's
// VACUUM. A log beside it has a few MiB.
//
// # Failures
//
// A file that was deleted or replaced under the store is noticed before the next acknowledgement: [ErrReplaced]. A
// full disk refuses new operations ([idempotency.ErrStoreFull]). An operation that runs stores its status without its
// answer if there is room for that; if not, the middleware tries again until there is. The effects of a transaction are
// undone then, and the client is told to try again. What is stored is replayed. A
// row that no store would have written is [idempotency.ErrRecordInvalid]: it is neither replayed nor claimed, and stays
// until it expires. If SQLite finds the file damaged, the step returns an error.
package sqlitestore
