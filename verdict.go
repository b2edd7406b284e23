package idempotency

import (
	"context"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency/internal/grpcstatus"
)

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

	// Release says that nothing has happened. The answer is sent but not stored, and the operation may be tried again. The
	// operation is forgotten after two leases, unless an earlier attempt may have done something.
	Release

	// Unknown says that nobody can tell what has happened, as after a crash. The answer is sent but not stored, and
	// Options.Abandoned decides whether the operation may be tried again. A transactional store rolls back, and the
	// operation may be tried again.
	Unknown

	// failed is what an answer means that is not kept, of a handler that has decided nothing: the operation may be tried
	// again, and something may have happened.
	failed
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
