// Package sqlitestore keeps the records of package idempotency in a file, by way of SQLite. It needs no server and no C
// compiler. It is for a service that runs on one machine, and whose keys survive a restart.
//
//	store, err := sqlitestore.Open("/var/lib/payments/idempotency.db", sqlitestore.Options{})
//	// ...
//	defer store.Close() // when the server has shut down
//	err = store.Check(ctx)
//
// A claim is a lease. If an owner dies, the store does not know what it has done, and Options.Abandoned decides, as with
// Redis.
//
// # One writer
//
// SQLite allows one transaction at a time, and makes each wait for the disk by itself. So a store has one connection
// that writes, and all steps that wait for it share a transaction. They are answered when it is committed, and not
// before. If it fails, each step gets a transaction of its own, so that none fails for another. A record that
// holds its key already, such as one with an answer, is read by other connections, which do not wait for the writer.
//
// With [Full], what was acknowledged survives a loss of power. A first execution waits for the disk twice, a replay not
// at all.
//
// # Several processes
//
// Several processes of one machine may have the file open, as during a deployment. They take turns to write, without an
// order, and try again about three times a millisecond. A process that is killed leaves no lock. A step that waits
// until its context ends returns [idempotency.ErrStoreBusy].
//
// The file must be on a disk of the machine: locks of network file systems do not hold what is needed, and the log is
// shared by memory. Nothing in the process may open and close the file by itself, not even to copy it: POSIX ends all
// locks of a process on a file when the process closes it. Make backups from another process, with sqlite3's ".backup".
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
// answer if there is room for that; if not, the middleware tries again until there is. What is stored is replayed. A
// row that no store would have written is [idempotency.ErrRecordInvalid]: it is neither replayed nor claimed, and stays
// until it expires. If SQLite finds the file damaged, the step returns an error.
package sqlitestore
