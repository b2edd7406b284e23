package idempotency

import (
	"context"
	"time"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// Store keeps one [Record] for each [Key] and decides, atomically and by its own clock, which attempt may run.
//
// A Store is safe for concurrent use, and its type is comparable, as a pointer is. It holds at least two claims to different keys at the same time: Begin does not
// wait for the end of another claim. A step of a Store is one call of its methods, or of those of its claims; it is no step of
// package step. The context of a step may end when the step has returned, and a claim outlives the context of Begin.
//
// An error means that the backend failed, or did not answer in time. The step may have taken effect nevertheless. The
// caller takes an error that wraps no other sentinel of this package for [ErrUnavailable], so a Store need not wrap
// that one. A key that somebody else holds is a result, never an error.
//
// A Store does not retain the body of a [Response] that it is given, because the caller uses its buffer again. Neither
// side modifies anything else that goes in or out.
//
// A record that has outlived its TTL counts as forgotten, whether or not it is still stored. If nobody else has claimed
// the key since, a claim that was not settled may still find its own token in such a record. It acts as if there were
// no record: Extend and Complete make the record again and return [ErrRestored], and Release returns [ErrClaimLost].
//
// What else a Store can do is in the optional interfaces [Validator], [Immediate], [Inspector] and [Resolver], and what else its
// claims can do in [Checkpointer] and [TxCheckpointer].
//
// A Store may stand in front of another one. It then has a method "Unwrap() Store", which returns the other one. If it
// embeds that one, it does so as a Store: a Store that embeds a *[MemoryStore] would also be Immediate and an Inspector,
// as that one is.
//
// To implement a Store, use [Key.Digest] as a key of fixed size, and [Response.MarshalBinary] as the stored form of a
// response. Package idempotencytest checks an implementation against this contract.
type Store interface {
	// Begin claims key for a new attempt in one atomic step.
	//
	// Without an error, the caller owns the operation if and only if claim is non-nil. Record then describes the caller's
	// attempt. If claim is nil, record is the one that holds the key: completed, running, or abandoned. [Record] says what
	// its fingerprint means. A key is claimed if
	//
	//   - there is no record, or the record has outlived its TTL: a new operation, attempt 1; or
	//   - the record was released, and request.Fingerprint equals that of the record: the same operation, the next
	//     attempt; or
	//   - the lease of the record has lapsed, request.TakeOver is set, and request.Fingerprint equals that of the
	//     record: the same operation, the next attempt.
	//
	// A completed record is never claimed.
	//
	// Record.Created is when attempt 1 began, by the clock of the store or of the process. All records of an operation
	// agree on it within 10 milliseconds.
	//
	// A stored record may be unreadable: it is damaged, of an unknown version, not a record at all, or was made for
	// another key. Begin then returns [ErrRecordInvalid] and leaves it alone. A store that has reached its limit returns
	// [ErrStoreFull]. A store that limits what each user may store returns [ErrUserQuota] at that limit. A store that
	// works, but has no connection free to ask it with, returns [ErrStoreBusy]. A store that would not keep this contract on
	// the server that it finds returns an error that wraps [errors.ErrUnsupported].
	//
	// If nobody knows whether the claim was granted, the error is or wraps a [ClaimInDoubtError].
	Begin(ctx context.Context, key Key, request ClaimRequest) (record Record, claim Claim, err error)
}

// ClaimInDoubtError is the error of [Store.Begin] if the claim may or may not have been granted: the store took the request,
// say, and its reply was lost. The caller does not own the operation, and may only call Release on the claim. A middleware
// releases it, because otherwise it would block the key for a lease.
type ClaimInDoubtError struct {
	Claim Claim
	Err   error // why the reply is missing
}

// Error returns the text of Err.
func (e *ClaimInDoubtError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ClaimInDoubtError) Unwrap() error { return e.Err }

// Claim is the right to run one attempt and to settle its record. [Store.Begin] makes it. It carries the secret token
// by which the store recognises its owner. One goroutine at a time uses a Claim, with one exception: several may call
// Extend, also at the same time as Complete or Release. Once Complete or Release has settled the claim, Extend changes
// nothing.
//
// A call may be repeated with the same arguments if its outcome is unknown. If the first call has taken effect, the
// repetition succeeds and changes nothing. Complete and Release may also be called after the lease has lapsed.
type Claim interface {
	// Extend makes the lease run for the given time from now, and the record live at least as long. It also revives a
	// lease that has lapsed, unless somebody else has claimed the key.
	//
	//   - [ErrClaimLost]: somebody else has claimed the key, or the claim was settled.
	//   - [ErrRestored]: the store had forgotten the record, and has made it again.
	Extend(ctx context.Context, lease time.Duration) error

	// Complete stores the response of the operation for ttl from now, and ends the claim.
	//
	//   - [ErrClaimLost]: somebody else has claimed the key since, and their record is untouched; or the claim was
	//     released. A store may forget a release when its record has expired, and then store the response all the same.
	//   - [ErrRestored]: the response is stored, but the store had forgotten the claim in the meantime.
	//
	// A store that has no room for the body may store the response with Omitted set instead. If Complete fails, the caller
	// repeats it, for up to ttl.
	Complete(ctx context.Context, resp Response, ttl time.Duration) error

	// Release ends the claim without a response, so that the same request may be tried again at once. The record stays for
	// ttl from now, with its attempt number and fingerprint.
	// [ErrClaimLost] means that the record belongs to somebody else by now, is completed, or is gone.
	//
	// A ttl of zero frees the key: the store forgets the operation and its checkpoints, and the next claim is attempt 1 of a
	// new operation, whatever its fingerprint. A client of a database may have sent the request for the claim twice, so the
	// first of the two may still arrive. Such a store keeps the token for a while, so that a late request claims nothing.
	//
	// Release is also called for the claim of a [ClaimInDoubtError].
	Release(ctx context.Context, ttl time.Duration) error
}

// Checkpointer is a [Claim] that keeps checkpoints: the results of steps that are done, for a later attempt at the same
// operation. Package step is their user. It returns [errors.ErrUnsupported] to the handler if the claim is no
// Checkpointer, as in front of a Store that wraps the claims of another one and knows nothing of checkpoints.
//
// Checkpoints belong to the record. They are kept as long as it is, through releases and takeovers. Complete, Forget and
// the expiry of the record remove all checkpoints, and a [Resolution] removes some. A record without checkpoints costs nothing
// more. A Store counts checkpoints where it counts bytes. An [Entry] has their names and sizes. Like a response, a checkpoint may
// be secret.
//
// A Store that has forgotten a record has forgotten its checkpoints too, and nobody knows then what earlier attempts have
// done. So a record that Extend or Checkpoint makes again has the checkpoint [RecordLost], unless it cannot have had others.
// Checkpoints returns RecordLost as well while the record is gone.
//
// Both methods may be called at any time, also by several goroutines, and beside all other methods of the Claim. Their
// errors are these, and those of Begin:
//
//   - [ErrClaimLost]: somebody else has claimed the key; or the claim was settled.
//   - [ErrRestored]: the checkpoint is stored, but the store had forgotten the record, with all other checkpoints, and has
//     made it again.
type Checkpointer interface {
	Claim

	// Checkpoint stores data under name, in one atomic step that compares the token of the claim, unless the operation has
	// a checkpoint of that name. It returns what is stored then: the first one counts. A name has 1 to 101 visible ASCII
	// characters; data may be empty. The caller does not use data again.
	Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error)

	// Checkpoints returns all checkpoints of the operation, by name. Nobody modifies what it returns.
	Checkpoints(ctx context.Context) (map[string][]byte, error)
}

// RecordLost is the name of a checkpoint without data, see [Checkpointer]: checkpoints of earlier attempts may be missing. No
// step has this name.
const RecordLost = checkpoint.Lost

// TxCheckpointer is a [Checkpointer] that can store a checkpoint in a database transaction, so that the checkpoint and the rows
// that a step writes become permanent together. Package step is its user: DoTx and DoInTx there.
//
// A failover to an asynchronous replica, for example, may lose the rows of a step with its checkpoint. Complete then returns
// [ErrClaimLost], and does not store the response, which tells of these rows. If the record is still there, it keeps its lease,
// and gets the checkpoint [RecordLost]. If the caller commits the transaction, Complete notices the loss only if the record was
// lost, too, or if Checkpoints has returned the checkpoint before.
//
// A Store that wraps the claims of another one passes CheckpointTx on if the inner claim has it, and returns
// [errors.ErrUnsupported] otherwise.
type TxCheckpointer interface {
	Checkpointer

	// CheckpointTx calls step.Run in a transaction, and stores the data that Run returns as the checkpoint step.Name in the same
	// transaction. The statement that stores the checkpoint compares the token of the claim, because another attempt may have
	// claimed the key in the meantime. CheckpointTx returns the checkpoint that is stored. If step.Var is set and the
	// operation had a checkpoint of that name before, CheckpointTx returns this one, and rolls back the rows of Run.
	//
	// If step.Var is set, CheckpointTx begins the transaction and commits it. It holds a connection only in between. It rolls
	// back if Run returns an error or panics. When the reply to the commit is lost, CheckpointTx finds out what became of the
	// commit before it returns. The end of ctx ends the beginning of the transaction, but not the commit.
	//
	// If step.Tx is set, the caller has begun that transaction, and ends it. CheckpointTx then returns an error if the operation
	// had a checkpoint of that name before.
	//
	// While CheckpointTx runs, the caller calls only Extend. A renewal must not make the transaction fail, at any isolation
	// level. Run is called once at most. With each of these errors but the last, unless step.Escaped is set, CheckpointTx has
	// rolled back the transaction that it has begun, and the caller has to roll back step.Tx:
	//
	//   - the error of Run, as it is;
	//   - [ErrClaimLost]: another attempt has claimed the key, or the record is gone;
	//   - [errors.ErrUnsupported]: the store has no transactions of that type. Run was not called;
	//   - the error of the database, wrapped, if the database has refused the commit;
	//   - any other error: the store failed, and the commit may have taken effect. The next call of Checkpoints tells whether
	//     the checkpoint is stored.
	CheckpointTx(ctx context.Context, step *TxStep) (stored []byte, err error)
}

// TxStep is a step in a database transaction, see [TxCheckpointer].
type TxStep struct {
	// Name is the name of the checkpoint.
	Name string

	// Var points to the variable for the transaction that the store begins: it is a *pgx.Tx or a **sql.Tx, for example. The
	// store sets the variable before it calls Run. Var is nil if Tx is set.
	Var any

	// Tx is the transaction that the caller has begun. Var is nil then.
	Tx any

	// Timeout bounds the beginning of the transaction, and its end. It does not bound Run.
	Timeout time.Duration

	// Run does the work of the step in the transaction, and returns the data of the checkpoint.
	Run func() (data []byte, err error)

	// Escaped is set by CheckpointTx if Run has ended the transaction by itself, and what Run has written may be permanent
	// without a checkpoint. Then nobody may run the step again. If Run panics, CheckpointTx sets Escaped before it lets the panic
	// pass.
	Escaped bool
}

// ClaimRequest is what the caller of [Store.Begin] asks for.
type ClaimRequest struct {
	// Fingerprint identifies the content of the request.
	Fingerprint Fingerprint

	// Lease is how long the claim holds unless it is extended. It is positive.
	Lease time.Duration

	// TTL is how long the record is kept, from now, if the attempt is never completed. The store keeps it at least as long
	// as Lease.
	TTL time.Duration

	// TakeOver permits claiming a record whose lease has lapsed, as after a crash.
	TakeOver bool

	// Remaining asks for [Record].Remaining in a completed record. Stores that know it anyway always set it. A
	// [RedisStore] makes one more round trip for it.
	Remaining bool
}

// As returns store as a T, such as [Resolver], if it is one. Otherwise it returns the first one behind it that is a T,
// where a Store that stands in front of another one has a method "Unwrap() Store". As is to optional interfaces of stores
// what [errors.As] is to errors.
func As[T any](store Store) (found T, ok bool) {
	for store != nil {
		if found, ok := store.(T); ok {
			return found, true
		}
		wrapper, wraps := store.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		store = wrapper.Unwrap()
	}
	return found, false
}

// Validator is a [Store] that can tell what will never work before the first request comes. [New] and [NewRunner] ask the
// Store and each one behind it that is a Validator, and report the faults of all of them together.
type Validator interface {
	// Validate returns every fault of the options of the Store, and whatever the Store cannot do of what opts ask for, such as
	// a TTL that is too long. Opts have their defaults. Validate asks nobody, and waits for nothing.
	Validate(opts RunnerOptions) error
}

// Immediate is a [Store] that says whether it never waits for anything, as a [MemoryStore] does not. Its steps then have
// no deadline. They do their work even if their context has ended, which may be that of a request whose client has left.
//
// Only the Store that [New] gets is asked, and never one behind it: a wrapper may wait, or heed the context, where the
// Store behind it does not. A wrapper that is not Immediate costs about a microsecond for each deadline.
type Immediate interface {
	// Immediate always returns the same.
	Immediate() bool
}
