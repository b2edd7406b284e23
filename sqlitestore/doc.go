// Package sqlitestore keeps the records of package idempotency in a file, by way of SQLite. It needs no server and no C
// compiler. It is for a service that runs on one machine, and whose records must survive a restart.
//
//	store, err := sqlitestore.Open(ctx, "/var/lib/payments/idempotency.db", sqlitestore.Options{})
//	// ...
//	defer store.Close() // when the server has shut down
//	err = store.Check(ctx)
//
// There are two stores, see https://github.com/idempotency-go/idempotency#choosing-a-store. With [TxStore], the handler
// writes in the transaction of its record, so its rows are there exactly once, whatever breaks. With [Store], a claim is
// a lease. If an owner dies, the store does not know what it has done, and Abandoned of [idempotency.Options] decides,
// as with Redis. Both stores may have the same file open at the same time, and respect each other's records.
//
//	store, err := sqlitestore.OpenTx(ctx, "/var/lib/payments/payments.db", sqlitestore.Options{})
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
// With [Full], what was acknowledged survives a loss of power. A first execution waits for the disk twice with a Store,
// and once with a TxStore. A replay does not wait for it.
//
// # The transaction of a handler
//
// A transaction has the connection that writes for itself. So it is lazy: what [Tx] returns begins with its first
// statement. That statement waits for its turn, finds out whether the operation is still to be done, and keeps all
// others from writing until the handler has returned. Call other systems first, and use the transaction last. With such
// calls of 10 ms, 16 callers got 1,000 operations a second done, and 84 where the transaction came first ("go test
// -run '^$' -bench Order" measures it). If a handler that has begun its transaction executes another operation of the
// same file, such as by a request to its own service, that operation waits for the handler, and the handler for it,
// until a deadline ends one of them.
//
// Only the store commits. SQLite asks it about each statement, also about a COMMIT behind another statement in one
// string, which is refused. If SQLite rolls back by itself, as it does for ON CONFLICT ROLLBACK and on a full disk,
// nothing that the handler does afterwards has an effect. The next handler does not see what one leaves on the
// connection, such as a temporary table, except for last_insert_rowid().
//
// A handler that does not return keeps everybody from writing, and Close from ending. Give its calls and statements a
// deadline. Replays go on meanwhile.
//
// The connection is the store's, not one of the service's own. [Options].Parameters gives it the settings that the
// service's connections have. For example, SQLite enforces foreign keys only on a connection that asks for it. The
// service may open the file itself, by a driver that is built on modernc.org/sqlite/lib. Another copy of SQLite in the
// process, as drivers with cgo have, would end the locks of this one.
//
// A TxStore knows only its own operations that run. If two processes, or two stores of one process, get the same key at
// the same time, as during a deployment, both run the handler. One commits. The other one is told within about a second, or
// with its first statement, that its claim is lost. Its effects in the file are undone, and its
// client is told to try again, which replays the answer of the first. What it has done elsewhere is done twice, unless
// the other system compares the DownstreamKey, which both have. Where it does not, use a Store, or one TxStore in one
// process. It is the same if a Store gets a key that a TxStore runs: the lease counts, unless the transaction has begun.
//
// # Steps
//
// A Store keeps the results of steps (see package step) in the record of the operation. A step waits for the disk once,
// together with others that come at the time. It writes all results of its operation anew, so let a step return an ID
// rather than a document.
//
// A TxStore keeps no results: they would be rolled back with the rows of the handler. Package step puts a Store beside
// it. That must have another file, or a step would wait for the transaction of its own handler.
//
// # Operators
//
// Both stores are an [idempotency.Resolver]: Inspect shows the record of a key, List finds records, Forget removes one,
// and Resolve ends an operation that was abandoned.
//
// A TxStore shows that it runs an operation, and nothing else of it. Another store or process cannot see that, until it
// has committed. An operation that a TxStore runs is never abandoned. A record that a Store has left may be.
//
// List reads the whole table, on a connection of its own. With a million records and answers of 300 bytes, a page took 2 to
// 4 seconds of one core. Claims and replays go on meanwhile.
//
// # Several processes
//
// Several processes of one machine may have the file open, as during a deployment. They take turns to write, without an
// order, and try again about three times a millisecond. A process that is killed leaves no lock. If other processes or
// handlers keep a step waiting until its context ends, it returns [idempotency.ErrStoreBusy].
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
// A store that adds a record deletes up to two that have expired, in the same transaction: a [Store] when it claims a
// key, a [TxStore] when it commits. So the table holds hardly more than the records that count. It needs neither a
// janitor nor a further wait for the disk. Until they are deleted, answers that have expired stay in the file. The file
// keeps its largest size, and uses free space in it again. To make it smaller, run sqlite3's VACUUM. A log beside it
// has a few MiB.
//
// # Failures
//
// A file that was deleted or replaced under the store is noticed before the next acknowledgement: [ErrReplaced]. A
// full disk refuses new operations ([idempotency.ErrStoreFull]). An operation that runs stores its status without its
// answer, if there is room for that. If not, the middleware tries again until there is; with a TxStore the effects are
// undone instead, and the client is told to try again. What is stored is replayed.
//
// A row that no store would have written is [idempotency.ErrRecordInvalid]. It is neither replayed nor claimed, and
// stays until it expires. If SQLite finds the file damaged, the step returns an error.
package sqlitestore
