// Package dynamodbstore keeps the records of package idempotency in Amazon DynamoDB, through
// [github.com/aws/aws-sdk-go-v2]. The store was tested on emulators, and never on the service. Where an emulator differs from
// the documentation of the service, the store follows the documentation.
//
//	client := dynamodb.NewFromConfig(cfg)
//	err := dynamodbstore.CreateTable(ctx, client, dynamodbstore.Options{}) // or by CloudFormation or Terraform
//	store := dynamodbstore.New(client, dynamodbstore.Options{})
//	err = store.Check(ctx)
//
// A claim of [Store] is a lease. If a process dies during an operation, the store does not know how far the handler came, and
// Abandoned of [idempotency.Options] decides, as with Redis.
//
// # Clocks
//
// Leases rest on the clocks of the machines, because DynamoDB has no clock for conditions. Each process writes the end of its
// lease by its own clock, and other processes compare the end with their clocks. Exactly once holds while the clocks of all
// processes agree within [Options].Skew, ten seconds by default. Two rules limit the harm of a wrong clock:
//
//   - Leases and records last longer by Skew than requested. A takeover after a crash comes later by Skew.
//   - Each reply of the service has a Date header. If the clock of a process differs from the Date by more than Skew/2 minus
//     two seconds, the process claims nothing and replays nothing: the error is [ErrClock]. Because the Date has whole
//     seconds, a tolerated clock is wrong by at most Skew/2 if replies take at most a second. The store compares the clock
//     before the first claim of a process, with every reply, and again after five minutes of silence or after the clock was
//     set.
//
// A process with a wrong clock may still complete its claims, because the token of a claim decides about completion, and not
// the end of the lease. An owner that was overtaken changes nothing. While the clock is wrong, FailOpen does not run handlers.
//
// # Frozen processes
//
// A process may stand still for longer than its leases, for example because its machine is suspended, or because AWS Lambda
// freezes the process after an answer. During the pause, the process renews no leases. After a lease and Skew, a second
// process may take over. When the frozen process continues:
//
//   - The process changes no record that was taken over. The contexts of its handlers end with [idempotency.ErrClaimLost].
//   - If the machine was suspended, the contexts may end up to a third of a lease later, because the clock for durations stood
//     still as well.
//   - The effects of a handler until the end of its context happen twice, unless the handler sends DownstreamKey of
//     [idempotency.Operation].
//   - The process may still complete operations without a takeover.
//   - The process compares its clock with the clock of the service before the next claim.
//
// # Requests
//
// Each request of an operation is a conditional write:
//
//	operation                                 requests
//	first execution                           2: claim, complete
//	replay, refusal                           1: the claim, whose condition fails and returns the record
//	claim of a key with an expired record     1
//	claim after a release, takeover           2
//	renewal, checkpoint, release              1
//	renewal beyond the expiry of the record   2
//
// If the service, or a proxy of the service, does not return the record after a failed condition, the store reads the record
// with strong consistency, by one more request.
//
// # Failures
//
// The store turns off the retries of the SDK for its calls, because the store must know whether each request may have had an
// effect. The store retries by itself:
//
//   - While the service lacks capacity, or a transaction locks the record, the store retries until the context ends. The error
//     is then [idempotency.ErrStoreBusy].
//   - If the service or the connection fails, the store tries four times in all.
//
// After a failed request that has taken effect, the store recognises the token of its claim.
//
// # Size
//
// An item has at most 400 KB. The store compresses answers of 1 KB and more with gzip if gzip saves a tenth. If an answer is
// still too large, the store keeps the status alone, with Omitted set: the client gets the whole answer, and a retry gets
// not-replayable. Results of steps fit, because an operation has at most 256 KB of results.
//
// # Consistency
//
// Conditions of writes see all earlier writes, and the store reads with strong consistency. Both hold within a Region. In a
// global table with eventual consistency, two Regions execute the same operation, and the record of one Region is lost;
// [Store.Check] reports such a table. A global table with strong consistency (MRSC) may work, but was not tested, and has no
// Time to Live.
//
// # Expiry
//
// An expired record does not count, although the service deletes expired items days later. The attribute remove_at is for the
// Time to Live of the table. The guarantees do not depend on remove_at.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key in its attributes. If a record names a different key, or has a value
// that stores never write, the error is [idempotency.ErrRecordInvalid]. The store neither replays nor claims an invalid
// record, and leaves the record unchanged until the record expires.
package dynamodbstore
