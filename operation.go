package idempotency

import (
	"context"
	"crypto/rand"
	"reflect"
	"sync/atomic"

	"github.com/google/uuid"
)

// Operation is what a handler knows about the operation that it carries out.
type Operation struct {
	// Key identifies the operation. Its long parts are shortened, see [Key].
	Key Key

	// ID is the same for every attempt at the operation, across crashes and machines. A handler that stores it with
	// its effect, under a unique constraint, can find the effect of an earlier attempt.
	ID uuid.UUID

	// Attempt is 1 for the first attempt and grows with each further one. A resource that remembers the largest
	// number it has seen for an ID can refuse an attempt that was overtaken (fencing).
	Attempt int
}

// DownstreamKey derives a key for another system, such as a payment provider's Idempotency-Key, an object name or a
// deduplication ID. The key is the UUID of version 5 (RFC 9562, section 5.5) of the operation's ID and name. Every
// attempt at the operation gets the same key, and each name gets its own. A handler without a key gets the zero
// Operation, which returns a fresh random key for each call.
func (o Operation) DownstreamKey(name string) string {
	if o.ID == uuid.Nil {
		return newOperation().String() // not one that all such calls would share
	}
	return uuid.NewSHA1(o.ID, []byte(name)).String()
}

// FromContext returns the operation that ctx belongs to, and whether there is one. There is none if the request has no
// key, or if it runs without protection (Options.FailOpen).
func FromContext(ctx context.Context) (Operation, bool) {
	op := operationIn(ctx)
	if op == nil {
		return Operation{}, false
	}
	return op.Operation, true
}

// operationContext is what the context of a handler knows of its operation. A context holds it by a pointer: whoever
// prints the context sees an address, and neither user nor key.
type operationContext struct {
	Operation
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
	return op != nil && op.Key == key && reflect.ValueOf(store).Comparable() && op.store == store
}

// newOperation returns a random ID.
func newOperation() uuid.UUID {
	var random [16]byte
	rand.Read(random[:]) // never fails
	return operationFrom(random)
}

// operationFrom makes an ID of random bytes: a UUID of version 4 (RFC 9562, section 5.4).
func operationFrom(random [16]byte) uuid.UUID {
	random[6] = random[6]&0x0f | 0x40
	random[8] = random[8]&0x3f | 0x80
	return random
}
