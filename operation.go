package idempotency

import (
	"context"
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

// Operation is the operation that a handler carries out, see [FromContext].
type Operation struct {
	// Key identifies the operation. Long parts are shortened, see [Key].
	Key Key

	// ID is the ID of the Key, see [Key.OperationID]. All attempts at the operation have the same ID, even if the store
	// has lost the record. A handler that stores the ID with its effect, under a unique constraint, finds the effect of
	// an earlier attempt.
	ID uuid.UUID

	// Attempt counts the claims of the key since the record was created: 1 is the first. The count begins again after
	// the record has expired, after the store has lost the record, and after an attempt has freed the key. Attempt is 0
	// if the handler runs without a claim (Options.FailOpen).
	//
	// A resource can refuse an overtaken attempt by remembering the largest number seen for each ID (fencing). Fencing
	// is safe only while the record exists: after a loss of the record, the resource would refuse the rightful attempt.
	// Where a loss can happen, have the resource accept one effect for each ID by a unique constraint.
	Attempt int

	// Fingerprint is the fingerprint of the request, see [FingerprintFunc], or the SHA-256 of the payload of
	// [Runner.Do]. All attempts at an operation have the same Fingerprint. A handler that stores the Fingerprint with
	// its effect, beside the ID, can tell after a loss of the record whether the key came back with another request.
	Fingerprint Fingerprint
}

// DownstreamKey derives a key for a downstream system, such as a payment provider's Idempotency-Key, an object name or
// a deduplication ID. The key is a UUID of version 5 (RFC 9562, section 5.5), made from the operation's ID and name.
//
// All attempts at the operation get the same key for a name. A provider that compares keys therefore charges once, even
// if the store was down during all attempts or has lost the record. Services that share an account at the downstream
// system must each use names of their own, because the same user, endpoint and key may occur in two services.
//
// For the zero Operation, as in a request without a key, DownstreamKey returns a random key at each call.
func (o Operation) DownstreamKey(name string) string {
	if o.ID == uuid.Nil {
		return uuid.NewString() // a derived key would be the same for all requests without a key
	}
	return uuid.NewSHA1(o.ID, []byte(name)).String()
}

// FromContext returns the operation that ctx belongs to, and true. For a request without a key, FromContext returns the
// zero Operation and false; the ID of the zero Operation identifies nothing. A handler that runs unprotected
// (Options.FailOpen) has an operation with Attempt 0.
func FromContext(ctx context.Context) (Operation, bool) {
	op := operationFrom(ctx)
	if op == nil {
		return Operation{}, false
	}
	return Operation{Key: op.key, ID: op.key.OperationID(), Attempt: op.attemptNumber, Fingerprint: op.fingerprint}, true
}

// operationContext is the operation as the context of a handler knows the operation. The context holds a pointer to the
// attempt, so printing the context shows an address and keeps user and key private.
type operationContext struct {
	key           Key
	attemptNumber int
	fingerprint   Fingerprint
	store         Store
	verdict       atomic.Int32
	note          atomic.Pointer[string]
}

// loadVerdict returns the last verdict of the handler.
func (o *operationContext) loadVerdict() Verdict { return Verdict(o.verdict.Load()) }

// operationFrom returns the operation that ctx belongs to, or nil.
func operationFrom(ctx context.Context) *operationContext {
	attempt, ok := ctx.Value(checkpoint.Key{}).(*attempt)
	if !ok {
		return nil
	}
	return &attempt.operation
}

// isWithinOperation reports whether ctx belongs to the operation of key in store. Two mounted middlewares with the same
// store lead to such a request.
func isWithinOperation(ctx context.Context, store Store, key Key) bool {
	op := operationFrom(ctx)
	return op != nil && op.key == key && op.store == store // NewRunner has checked that stores are comparable
}

// loadNote returns the last note of the handler.
func (o *operationContext) loadNote() string {
	if note := o.note.Load(); note != nil {
		return *note
	}
	return ""
}

// Verdict is a handler's decision on the meaning of its answer, see [Decide].
type Verdict int32

const (
	undecided Verdict = iota

	// Keep ends the operation: the answer is stored and replayed, whatever the status.
	Keep

	// Tombstone ends the operation, and only the status of the answer is stored. A retry is refused with
	// not-replayable: the handler does not run, and the answer stays hidden. Tombstone is for answers with secrets that
	// must be shown only once.
	Tombstone

	// Free says that nothing has happened, for example because the input was invalid. The answer is sent without being
	// stored, and the key becomes unused again: the next request with the key runs, even with different content.
	//
	// If an earlier attempt may have had effects, or a step is stored, the record stays, and only the same request may
	// run again. In either case the ID of the operation stays the same, so use Free only if no downstream system has
	// received a key or ID of the operation.
	//
	// Without a verdict, an answer that is not storable frees the key, too, if the status is from 400 to 499 except
	// 408, 409 and 499.
	Free

	// Unknown says that the outcome cannot be known, as after a crash. The answer is sent without being stored, and
	// Options.Abandoned decides whether the operation may be tried again.
	Unknown
)

// completesOperation reports whether an answer with verdict v completes the operation.
func (v Verdict) completesOperation() bool { return v == Keep || v == Tombstone }

// isRefusalStatus reports whether status says that the handler has turned the request away without an effect. The
// statuses 408, 409 and 499 are too uncertain: a service behind the handler may have sent the status and still be at
// work.
func isRefusalStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, statusClientClosedRequest:
		return false
	}
	return status >= 400 && status <= 499
}

// Decide states the meaning of a handler's answer and overrides Options.Storable. The handler calls Decide with the
// context of its request, before or after writing the answer. The last call counts. Decide has no effect after the
// handler has returned. Without Options.Stream, Decide also has no effect once an answer that is larger than
// Options.MaxResponse and completes the operation is being sent.
//
// The work of [Runner.Do] may call Decide, too. But if work returns an error, Keep and Tombstone have no effect,
// because an error is never stored.
//
// Decide reports whether ctx belongs to an operation. Decide is safe for concurrent use.
func Decide(ctx context.Context, v Verdict) bool {
	op := operationFrom(ctx)
	if op == nil {
		return false
	}
	op.verdict.Store(int32(v))
	return true
}

// Decided returns the last verdict that [Decide] was given with ctx, or with a context derived from ctx. Without a
// verdict, ok is false.
//
// Decided is for adapters of further protocols, because adapters run handlers as the work of [Runner.Do]. If a handler
// has failed, the work returns a response if the handler has decided to keep the failure, and an error otherwise.
func Decided(ctx context.Context) (v Verdict, ok bool) {
	op := operationFrom(ctx)
	if op == nil || op.loadVerdict() == undecided {
		return undecided, false
	}
	return op.loadVerdict(), true
}

// statusClientClosedRequest is sent by nginx, connect-go and grpc-gateway if the client has cancelled the call.
const statusClientClosedRequest = 499

// DefaultStorable is the default of Options.Storable. DefaultStorable stores all answers, except answers that mean "try
// again":
//
//   - a status of 500 or more, 401, 408, 425, 429 and 499;
//   - 409 with Retry-After, as an idempotent service answers while the first attempt is in progress;
//   - an answer of gRPC or gRPC-Web with a temporary status: canceled, unknown, deadline_exceeded,
//     resource_exhausted, aborted, unimplemented, internal, unavailable, data_loss, unauthenticated, a missing
//     status, or a status unknown to gRPC. The status is read from the header, the trailer, or the trailer frame of
//     gRPC-Web;
//   - a stream of Connect that ends with an error of such a code, or without the final message.
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

// failedCallMayPass reports whether resp is an answer of gRPC, gRPC-Web or Connect with a temporary error.
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
// stored with the answer, shown in [Event] and [Entry], even for a replay, and never sent to a client. The last note of
// a handler counts. A note that comes after the return of the handler may be lost. The note is also lost if the answer
// is not kept, or is larger than Options.MaxResponse.
//
// A note has at most 255 bytes, all visible ASCII characters and spaces, without a space at the beginning or the end.
// Annotate returns an error if the note is invalid, or if ctx belongs to no operation. Annotate is safe for concurrent
// use.
func Annotate(ctx context.Context, note string) error {
	if !recordline.IsNote(note) {
		return fmt.Errorf("idempotency: note %.256q of %d bytes: at most 255 visible ASCII characters, and spaces between them",
			note, len(note))
	}
	op := operationFrom(ctx)
	if op == nil {
		return errNoOperation
	}
	note = strings.Clone(note) // the answer may be stored after the request, and fiber then uses its memory again
	op.note.Store(&note)
	return nil
}
