package idempotency

import (
	"context"
	"time"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// Store keeps one [Record] for each [Key], and decides which attempt at an operation may run. Each decision is atomic
// and uses the clock of the store.
//
// The methods of a Store may be called by several goroutines at once. The type of a Store must be comparable, as a
// pointer is, because a middleware compares its Store with that of an outer middleware. A Store must hold any number of
// claims on different keys at the same time: Begin must not wait for the end of an earlier claim.
//
// A call to a method of the Store, or of one of its claims, may be given a context that ends as soon as the call has
// returned. A claim stays valid after the context of Begin has ended.
//
// An error means that the backend failed or did not answer in time. The call may have taken effect nevertheless. The
// middleware treats an error that wraps no sentinel of this package as [ErrUnavailable], so a Store need not wrap
// ErrUnavailable. A key that is held by another attempt is a result, never an error.
//
// A Store must copy the body of a [Response] if it keeps the body, because the caller reuses the buffer. Apart from
// that buffer, neither the Store nor the caller modifies a value after passing it to the other.
//
// A record that has outlived its TTL counts as forgotten, even if the backend still stores the record. An unsettled
// claim may find its own token in an expired record that no other attempt has replaced. The Store must act as if the
// record were gone: Extend and Complete create the record again and return [ErrRestored], and Release returns
// [ErrClaimLost].
//
// Further abilities are optional interfaces: [Validator], [Immediate], [Inspector] and [Resolver] for a Store,
// [Checkpointer] and [TxCheckpointer] for its claims.
//
// A Store that wraps another Store has a method "Unwrap() Store", which returns the wrapped Store. A wrapper that
// embeds the wrapped Store should embed the interface type Store. With an embedded *[MemoryStore], the wrapper would
// inherit Immediate and Inspector as well.
//
// To implement a Store, use [Key.OperationID] as the name of a record, and [Response.MarshalBinary] as the stored form
// of a response. Package idempotencytest checks an implementation against this contract.
type Store interface {
	// Begin claims key for a new attempt in one atomic step.
	//
	// If err is nil, a non-nil claim means that the caller owns the operation, and record describes the caller's
	// attempt. A nil claim means that the record of another attempt holds the key: completed, running, abandoned (its
	// lease has lapsed), or released with a fingerprint other than request.Fingerprint. Begin then returns that record.
	// See [Record] for the meaning of Record.Fingerprint. Begin grants the claim in three cases:
	//
	//   - The key has no record, or its record has outlived the TTL. The caller begins attempt 1 of a new operation.
	//   - The record was released, and its fingerprint equals request.Fingerprint. The caller begins the next attempt
	//     at the same operation.
	//   - The lease of the record has lapsed, request.TakeOver is set, and the fingerprint of the record equals
	//     request.Fingerprint. The caller begins the next attempt at the same operation.
	//
	// A completed record is never claimed.
	//
	// Record.Created is the time at which attempt 1 began, by the clock of the store or of the process. All records
	// of an operation agree on Created within 10 milliseconds, because stores may round times.
	//
	// Begin returns these errors:
	//
	//   - [ErrRecordInvalid]: the stored record cannot be read. Its data is damaged, has an unknown version, is no
	//     record, or was made for another key. Begin leaves the data as it is.
	//   - [ErrStoreFull]: the store has reached its limit.
	//   - [ErrUserQuota]: the user has reached the limit of a store that bounds what each user may store.
	//   - [ErrStoreBusy]: the backend works, but no connection to it is free.
	//   - An error that wraps [errors.ErrUnsupported]: the store cannot keep this contract on the server that it is
	//     connected to.
	//   - A [ClaimInDoubtError], or an error that wraps one: the claim may or may not have been granted.
	Begin(ctx context.Context, key Key, request ClaimRequest) (record Record, claim Claim, err error)
}

// ClaimInDoubtError is the error of [Store.Begin] if the claim may or may not have been granted, for example because
// the reply of the backend was lost. The caller does not own the operation. The only method that the caller may call
// on Claim is Release. Middleware calls Release, unless FailOpen lets the handler run, because a claim that was granted
// would otherwise block the key for a whole lease.
type ClaimInDoubtError struct {
	Claim Claim // never nil
	Err   error // the reason why the reply is missing
}

// Error returns the text of Err.
func (e *ClaimInDoubtError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ClaimInDoubtError) Unwrap() error { return e.Err }

// Claim is the right to run one attempt and to settle its record. [Store.Begin] creates the claim with a secret
// token, by which the store recognises the owner.
//
// Only one goroutine at a time may use a Claim, except for Extend and the methods of [Checkpointer]: several goroutines
// may call Extend at the same time, also during a call to Complete or Release. Extend has no effect after Complete or
// Release has settled the claim.
//
// The caller may repeat a call with the same arguments if the outcome of the first call is unknown. If the first call
// has taken effect, the repetition succeeds and changes nothing. Complete and Release may also be called after the
// lease has lapsed.
type Claim interface {
	// Extend sets the lease to end after the duration lease from now, and keeps the record at least as long. Extend
	// also renews a lease that has lapsed, unless another attempt has claimed the key.
	//
	//   - [ErrClaimLost]: another attempt has claimed the key, or the claim was settled.
	//   - [ErrRestored]: the store had forgotten the record, and Extend has created the record again.
	Extend(ctx context.Context, lease time.Duration) error

	// Complete stores the response of the operation for ttl from now, and ends the claim.
	//
	//   - [ErrClaimLost]: another attempt has claimed the key, and its record is unchanged; or the claim was
	//     released. If the released record has expired in the meantime, a store may also store the response instead
	//     of returning ErrClaimLost.
	//   - [ErrRestored]: the store had forgotten the claim, but the response is stored.
	//
	// A store without room for the body may store the response with Omitted set. If Complete fails with any other
	// error, the caller repeats the call, for up to ttl.
	Complete(ctx context.Context, resp Response, ttl time.Duration) error

	// Release ends the claim without a response, so that the same request may be tried again at once, or so that the
	// operation is abandoned at once. The record keeps its attempt number and fingerprint.
	//
	//   - [ErrClaimLost]: another attempt has claimed the key, the record is completed, or the record is gone.
	//
	// A TTL of zero frees the key: the store forgets the operation and its checkpoints. The next claim is attempt 1
	// of a new operation, whatever its fingerprint is. Some database clients may send the request for a claim twice,
	// and the first copy may arrive after the key was freed. A store with such a client keeps the token of a freed
	// claim for a while, so that the late copy claims nothing.
	//
	// The caller of Begin also calls Release on the claim of a [ClaimInDoubtError], with a TTL above zero, because the
	// claim may belong to a further attempt. ErrClaimLost is not final then: the request for the claim may still be on
	// its way, so the caller repeats Release for a while.
	Release(ctx context.Context, end Release) error
}

// Release says how an attempt has ended without a response, for [Claim].Release.
type Release struct {
	// TTL is how long from now the store keeps the record. Zero frees the key.
	TTL time.Duration

	// Abandoned says that the effects of the attempt are unknown. The lease ends now, and the record is abandoned, as it
	// would be after a crash and a lease. The record expires when it would have expired without Release, so TTL is
	// ignored. Afterwards, the only method that the caller may call is Release.
	Abandoned bool

	// Reason is why the attempt has ended. The store keeps the reason for [Entry].Ended until the next attempt begins or
	// the operation is resolved.
	Reason EndReason
}

// Checkpointer is a [Claim] that stores checkpoints. A checkpoint is the result of a step that is done, kept for
// later attempts at the same operation. Package step stores and reads checkpoints. If a claim is no Checkpointer, the
// functions of package step return [errors.ErrUnsupported] to the handler. Claims of a wrapper that does not pass
// checkpoints on are an example.
//
// Checkpoints belong to the record and are kept as long as the record, through takeovers and through releases with a
// ttl above zero. Complete, a Release with a ttl of zero, [Inspector].Forget and the expiry of the record remove all
// checkpoints. A [Resolution] removes some. A record
// without checkpoints has no extra cost. A Store that limits bytes counts the bytes of checkpoints, and an [Entry]
// lists their names and sizes. Checkpoints may be as secret as a response.
//
// If a Store forgets a record, the checkpoints are lost too, so a later attempt cannot know which steps earlier
// attempts have done. The checkpoint [RecordLost] marks this case: Extend and Checkpoint store RecordLost when they
// create a forgotten record again. Extend may leave RecordLost out if the operation cannot have had a checkpoint.
// Checkpoints returns RecordLost while the record is gone.
//
// Both methods may be called by several goroutines at any time, also during calls to all other methods of the Claim
// except CheckpointTx (see [TxCheckpointer]). They return the errors of Begin except [ClaimInDoubtError], and:
//
//   - [ErrClaimLost]: another attempt has claimed the key, or the claim was settled.
//   - [ErrRestored]: the store had forgotten the record with all checkpoints. Checkpoint has created the record
//     again, and the new checkpoint is stored.
type Checkpointer interface {
	Claim

	// Checkpoint stores data under name, and returns data. If the operation already has a checkpoint with this name,
	// Checkpoint leaves the old checkpoint unchanged and returns its data. The call is one atomic step that compares
	// the token of the claim. A name has 1 to 101 visible ASCII characters. Data may be empty. The caller must not
	// modify or reuse data after the call.
	Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error)

	// Checkpoints returns all checkpoints of the operation, by name. Neither the caller nor the store modifies the
	// result.
	Checkpoints(ctx context.Context) (map[string][]byte, error)
}

// RecordLost is the name of a checkpoint without data. A record with this checkpoint was lost and created again, or
// has lost the checkpoint of a step. So checkpoints may be missing (see [Checkpointer]). No step has this name.
const RecordLost = checkpoint.Lost

// TxCheckpointer is a [Checkpointer] that can store a checkpoint in a database transaction, so that the checkpoint
// and the rows of a step are committed together. DoTx and DoInTx of package step use CheckpointTx.
//
// A failover to an asynchronous replica may lose the rows of a step together with their checkpoint. Complete must not
// store a response that describes lost rows, so Complete returns [ErrClaimLost]. If the record still exists, the
// record keeps its lease and gets the checkpoint [RecordLost]. If the caller has committed the transaction itself,
// Complete notices the loss only if the record was lost as well, or if Checkpoints has returned the checkpoint before
// the failover.
//
// A Store that wraps the claims of another Store passes CheckpointTx on to the inner claim. CheckpointTx of the
// wrapper returns [errors.ErrUnsupported] if the inner claim is no TxCheckpointer.
type TxCheckpointer interface {
	Checkpointer

	// CheckpointTx calls Run, a field of the parameter step, in a transaction, and stores the data from Run as the
	// checkpoint step.Name in the same transaction. The statement that stores the checkpoint compares the token of the
	// claim, because another attempt may have claimed the key while Run was working. CheckpointTx returns the data of
	// the stored checkpoint.
	//
	// If step.Var is set, CheckpointTx begins and commits the transaction, and holds a connection only between the two. If
	// Run returns an error or panics, CheckpointTx rolls back. If the operation already has a checkpoint named
	// step.Name, CheckpointTx rolls back the rows of Run and returns the data of the old checkpoint. If the reply to
	// the commit is lost, CheckpointTx asks the database whether the commit took effect, for at most step.Timeout. If
	// the outcome is still unknown then, the error is the last one below. The end of ctx interrupts the beginning of
	// the transaction, but never the commit.
	//
	// If step.Tx is set, the caller has begun the transaction and ends the transaction. CheckpointTx returns an error
	// if the operation already has a checkpoint named step.Name.
	//
	// Until CheckpointTx returns, the caller calls no other method of the claim but Extend. Extend must not make the
	// transaction fail, at any isolation level. CheckpointTx calls Run at most once.
	//
	// After each of the following errors except the last, CheckpointTx has rolled back the transaction that it began,
	// unless step.Escaped is set. A caller that passed step.Tx must roll back step.Tx.
	//
	//   - The error of Run, unchanged.
	//   - [ErrClaimLost]: another attempt has claimed the key, or the record is gone.
	//   - [errors.ErrUnsupported]: the store has no transactions of the requested type. CheckpointTx has not called
	//     Run.
	//   - The error of the database, wrapped: the database has refused the commit.
	//   - An error that wraps ErrMisuse of package step: Run has ended the transaction, or has ignored an error of the
	//     database.
	//   - With step.Tx, an error if the operation already has a checkpoint named step.Name.
	//   - Any other error: the store failed, and the commit may have taken effect. The next call to Checkpoints shows
	//     whether the checkpoint is stored.
	CheckpointTx(ctx context.Context, step *TxStep) (stored []byte, err error)
}

// TxStep is a step in a database transaction (see [TxCheckpointer]).
type TxStep struct {
	// Name is the name of the checkpoint.
	Name string

	// Var points to the variable that receives the transaction which the store begins, for example a *pgx.Tx or a
	// **sql.Tx. The store sets the variable before the store calls Run. Var is nil if Tx is set.
	Var any

	// Tx is the transaction that the caller has begun. Tx is nil if Var is set.
	Tx any

	// Timeout bounds the time to begin the transaction, and the time to end the transaction. Timeout does not bound
	// Run.
	Timeout time.Duration

	// Run does the work of the step in the transaction, and returns the data of the checkpoint.
	Run func() (data []byte, err error)

	// CheckpointTx sets Escaped if Run has ended the transaction itself. The rows that Run has written may then be
	// permanent without a checkpoint, so the caller must not run the step again. If Run has ended the
	// transaction and panics, CheckpointTx sets Escaped before passing the panic on.
	Escaped bool
}

// ClaimRequest describes the claim that the caller of [Store.Begin] asks for.
type ClaimRequest struct {
	// Fingerprint identifies the content of the request.
	Fingerprint Fingerprint

	// Lease is the duration of the claim unless Extend renews the claim. Lease is positive.
	Lease time.Duration

	// TTL is how long the store keeps the record from now if the attempt is never completed. A store keeps the record
	// at least for Lease.
	TTL time.Duration

	// TakeOver allows Begin to claim a record whose lease has lapsed, for example after a crash of its owner.
	TakeOver bool

	// Remaining asks Begin to set [Record].Remaining of a completed record. Stores that read the remaining time
	// anyway set Record.Remaining in any case. A [RedisStore] makes one more round trip to read the time.
	Remaining bool
}

// As returns store as a T, for example a [Resolver]. If store is no T, As searches the stores behind store: a Store
// that wraps another Store has a method "Unwrap() Store". The first T wins. As does for the optional interfaces of
// stores what [errors.As] does for errors.
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

// Validator is a [Store] that can check its configuration before the first request. [New] and [NewRunner] call
// Validate on their Store and on every Validator behind it, and report the faults of all of them together.
type Validator interface {
	// Validate returns every fault in the options of the Store, and everything in opts that the Store cannot do, for
	// example a TTL that is too long. In opts, defaults are already filled in. Validate must not contact a server or
	// wait.
	Validate(opts RunnerOptions) error
}

// Immediate is a [Store] that may declare that its methods never wait, for example because all records are in memory.
// The middleware then calls the Store without a deadline. An immediate Store must do its work even if the context has
// ended, because the context may belong to a request whose client has left.
//
// [New] asks only the Store that New receives, never a wrapped Store, because a wrapper may wait or heed the context
// although the Store behind it does neither. A wrapper that is not Immediate costs about a microsecond for each
// deadline.
type Immediate interface {
	// Immediate reports whether the methods of the Store never wait. The result must always be the same.
	Immediate() bool
}
