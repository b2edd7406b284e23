package idempotency

import (
	"context"
	"crypto/sha256"
	"reflect"
	"sync/atomic"

	"github.com/google/uuid"
)

// Operation is what a handler knows about the operation that it carries out.
type Operation struct {
	// Key identifies the operation. Its long parts are shortened, see [Key].
	Key Key

	// ID is that of the Key, see [Key.OperationID]. It is the same for every attempt at the operation, whatever became of
	// the others, of the record and of the store. A handler that stores it with its effect, under a unique constraint,
	// finds the effect of an earlier attempt.
	ID uuid.UUID

	// Attempt counts the claims of the key that the store remembers, with this one: it is 1 for the first. It grows as long
	// as the record is there. It begins again with 1 when the store has lost the record, or has kept it for its TTL. A
	// transactional store remembers no attempt that was rolled back, so its handlers mostly see 1. It is 0 if the handler
	// runs without a claim (Options.FailOpen).
	//
	// A resource that remembers the largest number it has seen for an ID can refuse an attempt that was overtaken
	// (fencing). This is safe only while the record is there: after a loss, the resource refuses the attempt that is right.
	// Where that can happen, have the resource accept one effect for each ID, by a unique constraint.
	Attempt int
}

// DownstreamKey derives a key for another system, such as a payment provider's Idempotency-Key, an object name or a
// deduplication ID. The key is the UUID of version 5 (RFC 9562, section 5.5) of the operation's ID and name. Every
// attempt at the operation gets the same key, and each name gets its own. So a provider that compares these keys charges
// once, even if the store is away during all attempts, or has lost its records. Services that share an account at the
// other system put their own name into name, because two of them may have the same user, endpoint and key.
//
// A handler without a key gets the zero Operation, which returns a fresh random key for each call.
func (o Operation) DownstreamKey(name string) string {
	if o.ID == uuid.Nil {
		return uuid.NewString() // not one that all such calls would share
	}
	return uuid.NewSHA1(o.ID, []byte(name)).String()
}

// FromContext returns the operation that ctx belongs to, and whether there is one. There is none if the request has no
// key. A handler that runs without protection (Options.FailOpen) has its operation too, with Attempt 0.
func FromContext(ctx context.Context) (Operation, bool) {
	op := operationIn(ctx)
	if op == nil {
		return Operation{}, false
	}
	return Operation{Key: op.key, ID: op.key.OperationID(), Attempt: op.attempt}, true
}

// OperationID returns the ID of the operation that the key identifies, see [Operation]. It is a UUID of version 8 (RFC
// 9562, section 5.8), made of a SHA-256 of [Key.Digest]. It depends on nothing else: neither on the request's content,
// time, or chance, nor on the store or its settings. Nobody stores it.
//
// So a key that is used again after its TTL has the same ID. An effect that is stored under that ID is then found: compare
// what was asked before you hand it out. And whoever knows user, endpoint and key can compute the ID: it is no secret.
func (k Key) OperationID() uuid.UUID { return operationID(k.Digest()) }

// operationID returns the ID of the operation whose key has that digest.
func operationID(digest [sha256.Size]byte) uuid.UUID {
	const tag = "idempotency/operation/1"
	var tagged [len(tag) + sha256.Size]byte
	copy(tagged[copy(tagged[:], tag):], digest[:])
	sum := sha256.Sum256(tagged[:])
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id
}

// operationContext is what the context of a handler knows of its operation. A context holds it by a pointer: whoever
// prints the context sees an address, and neither user nor key.
type operationContext struct {
	key     Key
	attempt int
	store   Store
	verdict atomic.Int32
	note    atomic.Pointer[string]
}

// decided returns the verdict of the handler.
func (o *operationContext) decided() Verdict { return Verdict(o.verdict.Load()) }

type operationKey struct{}

// operationIn returns nil if ctx belongs to no operation.
func operationIn(ctx context.Context) *operationContext {
	op, _ := ctx.Value(operationKey{}).(*operationContext)
	return op
}

// carriesOut reports whether ctx belongs to the operation that key names in store: the middleware is mounted twice then.
func carriesOut(ctx context.Context, store Store, key Key) bool {
	op := operationIn(ctx)
	return op != nil && op.key == key && reflect.ValueOf(store).Comparable() && op.store == store
}
