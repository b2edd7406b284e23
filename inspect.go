package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Errors of an [Inspector].
var (
	ErrNoRecord     = errors.New("idempotency: no record of the key")
	ErrEntryChanged = errors.New("idempotency: the record has changed")
)

// State says what a record means for a request that comes now.
type State string

// The states of a record.
const (
	StateRunning   State = "running"   // an attempt holds the key
	StateAbandoned State = "abandoned" // the lease of its attempt has lapsed: nobody knows what the attempt has done
	StateReleased  State = "released"  // the same request may try again
	StateCompleted State = "completed" // its response is replayed
)

// Entry is what a store tells people about one operation.
type Entry struct {
	// Key is empty in the parts that the store does not keep. A [RedisStore] keeps none of them.
	Key Key

	// Digest is that of the key, see [Key.Digest]. A record is found by it even if its store keeps nothing else of the key.
	Digest [sha256.Size]byte

	// State is by the clock of the store.
	State State

	// Operation, Attempt and Created are those of the [Record]. They are zero of a running transaction, which nobody else
	// can see.
	Operation uuid.UUID
	Attempt   int
	Created   time.Time

	// Fingerprint is that of the Record, under the same reservation: a store may keep it secret. It is zero of a running
	// transaction, and may be in a [Listing].
	Fingerprint Fingerprint

	// Completed is when the response was stored. It is zero if there is none, or the store does not know.
	Completed time.Time

	// LeaseLeft is how long the lease of a running attempt still lasts. It is zero of a transaction, which has none.
	LeaseLeft time.Duration

	// Remaining is how long the record is still kept; zero if the store does not know.
	Remaining time.Duration

	// Size is how many bytes the store counts for the record, without its own overhead; of a sealed answer, the sealed ones.
	Size int64

	// Status is that of the response, once there is one. It is zero if nothing vouches for it, see [Seal].
	Status int

	// Response is what is replayed, with its body and without the Note. It is nil until the operation is completed, and in
	// a [Listing]. It is shared: nobody modifies it.
	Response *Response

	// Note is what the attempt that completed the operation was given by [Annotate]. In a [Listing] it may be empty all the
	// same: a sealed note is not opened for it.
	Note string
}

// Inspector is what a [Store] offers to people who ask what has happened: a [MemoryStore], a [RedisStore], the stores of
// pgxstore, and a [Cache] or a store of [Seal] in front of one of them. Nothing of it is needed to serve requests, and
// some of it is slow. It is safe for concurrent use.
//
// The error of a method wraps [errors.ErrUnsupported] if the store, or the one behind it, cannot do this.
type Inspector interface {
	// Inspect returns what the store holds of a key, which it does not change. The error is [ErrNoRecord] if there is
	// nothing: the key was never used, has expired, or was forgotten. It wraps [ErrRecordInvalid] if the record cannot be
	// read; the entry has what is known of it then. If the parts of the key come from a person, [Key.Bounded] makes them
	// those that stores have.
	Inspect(ctx context.Context, key Key) (Entry, error)

	// Forget removes the record of an entry that Inspect or List has returned. The next request with its key is executed
	// as if it were the first: of a completed operation the effects happen twice then, and of an abandoned one perhaps.
	//
	// The record is found by Key or by Digest, whichever its store keeps. An operation that is running is never forgotten,
	// whatever the entry says, because its owner would store its record again: that is [ErrInProgress]. [ErrNoRecord] says
	// that there is no record any more, and [ErrEntryChanged] that it is not as the entry says: another operation, attempt
	// or state. A record of which not so much can be read is [ErrRecordInvalid]. With each of these errors nothing is
	// removed.
	Forget(ctx context.Context, entry Entry) error

	// List returns records that request asks for. It looks at the store while others change it: it is no snapshot, and
	// what it has returned may have changed.
	List(ctx context.Context, request ListRequest) (Listing, error)
}

// ListRequest says which records [Inspector.List] returns. The zero value of each field is its default.
type ListRequest struct {
	// States are those of the records. None means all.
	States []State

	// User is that of [Key]. Empty means all users. A store that does not keep users returns [errors.ErrUnsupported].
	User string

	// Largest orders the records by Size, the largest first. The default is by Created, the oldest first.
	Largest bool

	// Limit is how many records are returned at most. Zero means 100.
	Limit int

	// Scan is how many records are looked at, at most, by a store that must fetch each of them, as Redis must. Zero means
	// 100,000.
	Scan int
}

// Listing is what [Inspector.List] returns.
type Listing struct {
	// Entries have no Response.
	Entries []Entry

	// Totals counts all records that were looked at and that States and User ask for, also those beyond Limit.
	Totals map[State]Total

	// Partial says that the store has more records than Scan.
	Partial bool

	// Unreadable counts the records that could not be read. They are neither in Entries nor in Totals.
	Unreadable int
}

// Total is the sum over some records.
type Total struct {
	Records int
	Bytes   int64 // of Entry.Size
}
