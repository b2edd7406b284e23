// Package casstore makes an [idempotency.Store] of any database that has compare-and-swap: four calls, which a [Table] makes. It
// knows what claims, leases, takeovers and checkpoints are, so the author of a table need not.
//
//	store := casstore.New(table, casstore.Options{})
//
// The program kvstore in the examples of this repository has a table on NATS JetStream, in a file to copy. Test a table with
// package idempotencytest: Run, RunSteps, RunResolver.
//
// # What the database must promise
//
//   - Compare-and-swap is linearizable: each Create, Replace and Delete sees all writes before it, and is durable when it
//     returns. A database that confirms a write and then loses it, as in a failover to an asynchronous replica, runs the
//     operation again.
//   - Get returns a value at least as new as every write that was confirmed before Get was called. An older value may tell an
//     attempt that it has lost its claim: its answer is not stored then, and the operation runs again. So Get asks the leader,
//     or reads by quorum, and never asks a cache or a follower.
//   - A version never comes back under the same key, not even after the value was deleted and created again. Otherwise a late
//     Replace could find its old version again. The revision of a log, a timestamp of the database, or a random value will do.
//     A counter that begins at 1 in each new value will not.
//   - No value vanishes before its time to live is over.
//
// # Clocks
//
// The database need not tell the time. Each process writes when its lease ends, by its own clock, and others compare that with
// their clocks. So exactly once holds as long as the clocks of all processes agree within [Options].Skew, ten seconds by
// default: a lease, and a record, lasts that much longer than was asked for. So a takeover after a crash comes that much later.
//
// If two clocks differ by more than a lease and Skew, an attempt may begin while another one runs. The store does not notice
// that. The token of the claim then decides, and no clock: the attempt that was overtaken changes nothing, and its context ends
// with [idempotency.ErrClaimLost].
//
// # Expiry
//
// A record that has expired counts as forgotten, whether or not it is still stored. The time to live is for the database, which may
// delete the value at any time after it. No promise depends on when that is done. If the database cannot expire values, the table
// ignores the time to live, and somebody else deletes values that are older than the longest TTL, a lease and twice Skew.
//
// # Failures
//
// If the reply to a call is lost, nobody knows whether the call has had an effect. The store then makes the step again, up to
// four times in all, and recognises its own token. A Replace that arrives late finds another version, and changes nothing. A
// Create that arrives late finds the record, or what is kept of a key that was freed, for two leases or the TTL. If no reply comes,
// the error of Begin is an [idempotency.ClaimInDoubtError], and the claim is released in the background.
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
// If Create and Replace do not return the new version, each Replace takes one Get more.
package casstore
