// Package casstore makes an [idempotency.Store] of any database with compare-and-swap. The author of a store writes the four calls of
// a [Table]; the package implements claims, leases, takeovers and checkpoints on top of these calls.
//
//	store := casstore.New(table, casstore.Options{})
//
// The program kvstore in the examples of this repository has a table on NATS JetStream, in a file to copy. Test a table with
// package idempotencytest: Run, RunSteps, RunResolver.
//
// # What the database must guarantee
//
//   - Compare-and-swap is linearizable: each Create, Replace and Delete sees all earlier writes, and is durable when the call
//     returns. If the database loses a confirmed write, as in a failover to an asynchronous replica, the operation runs again.
//   - Get returns a value at least as new as every write that was confirmed before the call of Get. After an older value, an
//     attempt may take its claim for lost, so that the answer is dropped and the operation runs again. So Get must ask the
//     leader or read by quorum, instead of a cache or a follower.
//   - Versions of a key are unique for ever, also after the value was deleted and created again, because a late Replace must fail.
//     Suitable are the revision of a log, a timestamp of the database, or a random value. A counter that begins at 1 in each new
//     value is unsuitable.
//   - A value is kept until its time to live is over.
//
// # Clocks
//
// Each process writes the end of its lease by its own clock, and other processes compare the end with their clocks. Exactly once holds
// while the clocks of all processes agree within [Options].Skew, ten seconds by default. Leases and records last longer by Skew
// than requested, so a takeover after a crash comes later by Skew.
//
// If two clocks differ by more than Skew, an attempt may begin while an earlier attempt runs. The token of the claim
// still protects the record: the writes of the overtaken attempt fail, and its context ends with [idempotency.ErrClaimLost].
//
// # Expiry
//
// An expired record counts as forgotten, whether or not the value is still stored. The database may delete the value at any time after
// the time to live. If the database cannot expire values, the table ignores the time to live, and a job of the service deletes values
// older than the longest TTL, a lease and twice Skew.
//
// # Failures
//
// After a lost reply, the store repeats the step, up to four tries in all, and recognises its own token. A late Replace fails because
// the version has changed. A late Create fails because of the record, or because of the remains of a freed key, which are kept for
// two leases or the TTL. If Begin fails after a call that may have changed the value, the error is an
// [idempotency.ClaimInDoubtError]. The middleware releases the claim in the background, unless FailOpen lets the handler run.
//
// # Calls
//
//	operation                            calls of the table
//	first execution                      2: Create, Replace
//	replay, refusal                      2: Create, Get
//	retry after a release, takeover      3 to claim, 1 to complete
//	renewal, checkpoint, release         1
//	reading of checkpoints               1
//
// Each Replace takes one more Get if Create and Replace return an empty version.
package casstore
