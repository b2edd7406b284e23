package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/grpcstatus"
	"github.com/idempotency-go/idempotency/internal/recordline"
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
	// as the record is there. It begins again with 1 when the store has lost the record or has kept it for its TTL, and when an
	// attempt has freed the key. It is 0 if the handler runs without a claim (Options.FailOpen).
	//
	// A resource that remembers the largest number it has seen for an ID can refuse an attempt that was overtaken
	// (fencing). This is safe only while the record is there: after a loss, the resource refuses the attempt that is right.
	// Where that can happen, have the resource accept one effect for each ID, by a unique constraint.
	Attempt int

	// Fingerprint is that of the request, see [FingerprintFunc], or the SHA-256 of the payload of [Runner.Do]. Every attempt
	// at an operation has the same one. A handler that stores it with its effect, beside the ID, can tell after a loss of
	// the record that the key came back with another request.
	Fingerprint Fingerprint
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

// FromContext returns the operation that ctx belongs to, and true. If the request has no key, it has no
// operation: then FromContext returns the zero Operation, and false. Its ID is the same for all such requests. A handler
// that runs without protection (Options.FailOpen) has its operation too, with Attempt 0.
func FromContext(ctx context.Context) (Operation, bool) {
	op := operationIn(ctx)
	if op == nil {
		return Operation{}, false
	}
	return Operation{Key: op.key, ID: op.key.OperationID(), Attempt: op.attempt, Fingerprint: op.fingerprint}, true
}

// OperationID returns the ID of the operation that the key identifies, see [Operation]. It is a UUID of version 8 (RFC
// 9562, section 5.8), made of a SHA-256 of [Key.Digest]. It depends on nothing else: neither on the request's content,
// time, or chance, nor on the store or its settings. Nobody stores it.
//
// So a key that is used again after its TTL has the same ID. An effect that is stored under that ID is then found: compare
// its [Operation].Fingerprint before you hand it out. And whoever knows user, endpoint and key can compute the ID: it is no secret.
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

// operationContext is what the context of a handler knows of its operation. A context holds the attempt by a pointer: whoever
// prints the context sees an address, and neither user nor key.
type operationContext struct {
	key         Key
	attempt     int
	fingerprint Fingerprint
	store       Store
	verdict     atomic.Int32
	note        atomic.Pointer[string]
}

// decided returns the verdict of the handler.
func (o *operationContext) decided() Verdict { return Verdict(o.verdict.Load()) }

// operationIn returns nil if ctx belongs to no operation.
func operationIn(ctx context.Context) *operationContext {
	attempt, ok := ctx.Value(checkpoint.Key{}).(*attempt)
	if !ok {
		return nil
	}
	return &attempt.operation
}

// carriesOut reports whether ctx belongs to the operation that key names in store: the middleware is mounted twice then.
func carriesOut(ctx context.Context, store Store, key Key) bool {
	op := operationIn(ctx)
	return op != nil && op.key == key && op.store == store // which New has found comparable
}

// noted returns the note of the operation.
func (o *operationContext) noted() string {
	if note := o.note.Load(); note != nil {
		return *note
	}
	return ""
}

// Verdict says what an answer means for its operation.
type Verdict int32

const (
	undecided Verdict = iota

	// Keep ends the operation: the answer is stored and replayed, whatever its status is.
	Keep

	// Tombstone ends the operation as Keep does, but only the status of the answer is stored. A retry gets not-replayable:
	// the handler does not run, and the answer is not shown. Tombstone is for answers with secrets that must be shown only
	// once.
	Tombstone

	// Free says that nothing has happened, for example because the input was invalid. The answer is sent but not stored, and
	// the key is as if it had never been used: the next request with it runs, also one with other content, unless an earlier
	// attempt may have done something or a step is stored. Then the record stays, and only the same request may be tried again.
	// The ID of the operation stays the same in any case, so do not free a key that another system has been told of.
	//
	// An answer without a verdict does the same if it is not storable and its status is one from 400 to 499 other than 408,
	// 409 and 499.
	Free

	// Unknown says that nobody can tell what has happened, as after a crash. The answer is sent but not stored, and
	// Options.Abandoned decides whether the operation may be tried again.
	Unknown
)

// ends reports whether an answer with this verdict ends its operation.
func (v Verdict) ends() bool { return v == Keep || v == Tombstone }

// refused reports whether a status says that the handler has turned the request away, so that nothing has happened.
// With 408, 409 and 499 that is not certain: a service behind the handler may have sent them, and still be at work.
func refused(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, statusClientClosedRequest:
		return false
	}
	return status >= 400 && status <= 499
}

// Decide states what the answer of a handler means. It outranks Options.Storable. The handler calls it with the context
// of its request, before or after it writes. The last call counts. Decide has no effect once the handler has returned.
// Unless Options.Stream is set, it has none either once an answer larger than Options.MaxResponse has begun to go out.
//
// The work of [Runner.Do] may call Decide too. If that work returns an error, Keep and Tombstone make no difference,
// because an error is never stored.
//
// Decide reports whether ctx belongs to an operation. It is safe for concurrent use.
func Decide(ctx context.Context, v Verdict) bool {
	op := operationIn(ctx)
	if op == nil {
		return false
	}
	op.verdict.Store(int32(v))
	return true
}

// Decided returns the last verdict that [Decide] was given with ctx, or with a context derived from ctx. If there is
// none, ok is false. Decided is for adapters of other protocols, which run handlers as the work of [Runner.Do]. This
// work returns a response if the handler has decided to keep a failure. It returns an error if the handler has failed
// and decided nothing.
func Decided(ctx context.Context) (v Verdict, ok bool) {
	op := operationIn(ctx)
	if op == nil || op.decided() == undecided {
		return undecided, false
	}
	return op.decided(), true
}

// statusClientClosedRequest is what nginx, connect-go and grpc-gateway send if the client has cancelled its call.
const statusClientClosedRequest = 499

// DefaultStorable is the default of Options.Storable. It stores every answer except those that say "try again":
//
//   - a status of 500 or more, 401, 408, 425, 429 and 499;
//   - 409 with Retry-After, which another idempotent service answers while the first attempt is in progress;
//   - an answer of gRPC or gRPC-Web whose status may pass: canceled, unknown, deadline_exceeded, resource_exhausted,
//     aborted, unimplemented, internal, unavailable, data_loss, unauthenticated, none at all, or one that gRPC does not
//     know. The status is read from the header, the trailer, or the trailer frame of gRPC-Web;
//   - a stream of Connect that ends with an error of such a code, or without the message that ends it.
func DefaultStorable(resp *Response) bool {
	switch resp.Status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		statusClientClosedRequest:
		return false
	case http.StatusConflict:
		return resp.Header.Get("Retry-After") == ""
	}
	return resp.Status < 500 && !failedCallMayPass(resp)
}

// failedCallMayPass reports whether resp is an answer of gRPC, gRPC-Web or Connect whose error may pass.
func failedCallMayPass(resp *Response) bool {
	media := resp.Header.Get("Content-Type")
	if !strings.HasPrefix(media, "application/grpc") && !strings.HasPrefix(media, "application/connect+") {
		return false
	}
	return grpcstatus.MayPass(grpcstatus.Answer{
		Media: media, Header: resp.Header.Get, Trailer: resp.Trailer.Get, Body: resp.Body, Omitted: resp.Omitted,
	})
}

var errNoOperation = errors.New("idempotency: the context belongs to no operation")

// Annotate attaches a note to the operation that ctx belongs to, such as the ID of a payment or of a trace. The note is
// stored with the answer and never sent to a client. [Event] and [Entry] show it, also for a replay. If a handler calls
// Annotate again, the last note counts. A note that comes after the handler has returned may not be stored. The note is
// lost if the answer is not kept, or is larger than Options.MaxResponse.
//
// A note has at most 255 bytes. They are visible ASCII characters and spaces, with no space at the beginning or the
// end. Annotate returns an error if a note has anything else, or if ctx belongs to no operation. It is safe for
// concurrent use.
func Annotate(ctx context.Context, note string) error {
	if !recordline.IsNote(note) {
		return fmt.Errorf("idempotency: note %.256q of %d bytes: at most 255 visible ASCII characters, and spaces between them",
			note, len(note))
	}
	op := operationIn(ctx)
	if op == nil {
		return errNoOperation
	}
	op.note.Store(&note)
	return nil
}
