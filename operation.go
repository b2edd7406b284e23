package idempotency

import (
	"context"
	"crypto/rand"

	"github.com/google/uuid"
)

// Operation is what a handler may know of the operation that it carries out.
type Operation struct {
	// Key is what the operation is deduplicated by.
	Key Key

	// ID is the same for every attempt at the operation, across crashes and machines. A handler that stores it with
	// its effect, under a unique constraint, can find the effect of an earlier attempt.
	ID uuid.UUID

	// Attempt is 1 for the first attempt and grows with each further one. A resource that remembers the largest
	// number it has seen for an ID can refuse an attempt that was overtaken (fencing).
	Attempt int
}

// DownstreamKey derives a key to pass on to another system, such as a payment provider's Idempotency-Key, an object
// name or a deduplication ID: the UUID of version 5 (RFC 9562, section 5.5) of the operation's ID and name. Every
// attempt at the operation gets the same key, and each name another one. Where no key protects the call there is no
// operation, and every key is another one.
func (o Operation) DownstreamKey(name string) string {
	if o.ID == uuid.Nil {
		return newOperation().String() // not one that all such calls would share
	}
	return uuid.NewSHA1(o.ID, []byte(name)).String()
}

// FromContext returns the operation that the handler was called for. It returns false where no key protects the call.
func FromContext(ctx context.Context) (Operation, bool) {
	o, ok := ctx.Value(operationKey{}).(*Operation)
	if !ok {
		return Operation{}, false
	}
	return *o, true
}

// operationKey is what an attempt answers to as a context.
type operationKey struct{}

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
