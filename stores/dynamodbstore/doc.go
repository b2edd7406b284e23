// Package dynamodbstore keeps the records of package idempotency in Amazon DynamoDB, by way of
// [github.com/aws/aws-sdk-go-v2]. It was tested on emulators, and never on the service itself. Where they differ from the
// documentation of the service, the store follows the documentation.
//
//	client := dynamodb.NewFromConfig(cfg)
//	err := dynamodbstore.CreateTable(ctx, client, dynamodbstore.Options{}) // or by CloudFormation or Terraform
//	store := dynamodbstore.New(client, dynamodbstore.Options{})
//	err = store.Check(ctx)
//
// A claim of [Store] is a lease. If an owner dies, the store does not know what it has done, and Abandoned of
// [idempotency.Options] decides, as with Redis.
//
// # Clocks
//
// Leases rest on the clocks of the machines. The service has no clock that a condition can read: each process writes when its
// lease ends, by its own clock, and others compare that with theirs. So exactly once holds as long as the clocks of all
// processes agree within [Options].Skew, ten seconds by default. Two rules bound what a wrong clock can do:
//
//   - A lease, and a record, lasts for Skew longer than was asked for. So a takeover after a crash comes that much later.
//   - Each answer of the service has a Date. A process whose clock is further from that than Skew/2 minus two seconds claims
//     nothing and replays nothing: the error is [ErrClock]. The Date has whole seconds. If an answer
//     takes no longer than a second, no clock that is accepted is further off than half of Skew. The clock is compared before the
//     first claim of a process, by every answer, and again after five minutes of silence or after it was set.
//
// What a process has claimed it may complete, whatever its clock says: the token of the claim decides then, and no time. An
// owner that was overtaken changes nothing. While the clock is wrong, FailOpen runs nothing.
//
// # Frozen processes
//
// A process may stand still for longer than its leases, as when its machine is suspended, or when AWS Lambda freezes it after
// an answer. Nothing renews its leases then. After a lease and Skew, another process may take over. When the first one goes
// on, it changes nothing that was taken over, and the contexts of its handlers end with [idempotency.ErrClaimLost]. If the
// machine was suspended, they may end later, by a third of a lease: the clock that measures durations stood still, too. What
// a handler has done until then happens twice, unless it sends DownstreamKey of [idempotency.Operation]. The
// process may still complete what nobody has taken over. It compares its clock with that of the service before it claims
// anything.
//
// # Requests
//
// A first execution takes two requests, each of them a conditional write: to claim and to complete. A replay takes one, the
// same as a claim: if its condition does not hold, the service returns the record. A claim after a release, a takeover, and the
// claim of a key whose record has expired but is still there, take two. A renewal, a release and a step take one each. If
// the service, or what stands in front of it, does not return the record, each of these takes one more: a strongly
// consistent read.
//
// # Failures
//
// The store does not use the retries of the SDK, which are switched off for its calls: it must know whether a request may
// have had an effect. It tries again by itself. While the service lacks capacity, or a transaction has the record, that is
// until the context ends; the error is [idempotency.ErrStoreBusy] then. If the service or the connection fails, it tries four
// times. A request that has taken effect although it failed is recognised by the token of its claim.
//
// # Size
//
// An item has at most 400 KB. An answer of more than a KB is compressed by gzip if that saves a tenth. If it is still too
// large, only its status is stored, with Omitted set: the client gets the answer, and a retry gets not-replayable. All
// results of steps that an operation may have fit.
//
// # Consistency
//
// Conditions of writes see all writes before them, and the store reads with strong consistency. That holds in one Region. In a
// global table with eventual consistency, two Regions execute the same operation, and one of the records is lost.
// [Store.Check] reports such a table. One with strong consistency (MRSC) may work, and was not tried. It has no Time to Live.
//
// # Expiry
//
// A record that has expired does not count, although the service deletes it only days later. The attribute remove_at is for
// the Time to Live of the table. No promise depends on it.
//
// # Records that were tampered with
//
// A record counts only for the user, endpoint and key that its attributes name. If it names another key, or has a value that
// no store writes, the error is [idempotency.ErrRecordInvalid]. Such a record is neither replayed nor claimed, and left as it
// is until it expires.
package dynamodbstore
