// Package refusal turns the refusals of the middleware into errors of the protocols Connect, gRPC and gRPC-Web. Copy the
// package, and set Options.ErrorHandler to [Write].
package refusal

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idempotency-go/idempotency"
)

var writer = connect.NewErrorWriter() // takes the options of the handlers, if any

// Write answers a call with the refusal e, as an error of the client's protocol. Other clients get problem details.
//
// The error has a google.rpc.ErrorInfo, whose reason is the code of the refusal, such as IN_PROGRESS. If a retry is allowed
// after a while, the error also has a google.rpc.RetryInfo and the field Retry-After.
func Write(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	if !writer.IsSupported(r) {
		idempotency.WriteProblem(w, r, e)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	_ = writer.Write(w, r, newError(e)) // a client that has left gets the refusal when it retries
}

func newError(e *idempotency.Error) *connect.Error {
	failure := connect.NewError(rpcCode(e), errors.New(cmp.Or(e.Detail, e.Title, http.StatusText(e.Status))))
	for name, values := range e.Header {
		failure.Meta()[http.CanonicalHeaderKey(name)] = values
	}
	if e.Code != "" {
		addDetail(failure, &errdetails.ErrorInfo{
			Reason:   strings.ToUpper(strings.ReplaceAll(e.Code, "-", "_")),
			Domain:   "github.com/idempotency-go/idempotency",
			Metadata: map[string]string{"retry": string(e.Retry)},
		})
	}
	if e.RetryAfter > 0 {
		seconds := (e.RetryAfter + time.Second - 1) / time.Second
		failure.Meta().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
		addDetail(failure, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	return failure
}

// rpcCode returns the RPC code for the status of a refusal. The cases include statuses that only functions of the service
// choose.
func rpcCode(e *idempotency.Error) connect.Code {
	switch e.Status {
	case http.StatusBadRequest: // key-missing, key-invalid, body-invalid
		return connect.CodeInvalidArgument
	case http.StatusUnauthorized: // user-unknown
		return connect.CodeUnauthenticated
	case http.StatusForbidden: // replay-refused
		return connect.CodePermissionDenied
	case http.StatusConflict, http.StatusUnprocessableEntity:
		if e.Retry == idempotency.RetrySameKey { // in-progress
			return connect.CodeAborted
		}
		return connect.CodeFailedPrecondition // key-reused, not-replayable, outcome-unknown
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests: // body-too-large, quota-exceeded
		return connect.CodeResourceExhausted
	case http.StatusServiceUnavailable: // overloaded, store-unavailable
		return connect.CodeUnavailable
	default: // body-consumed
		return connect.CodeInternal
	}
}

func addDetail(failure *connect.Error, message proto.Message) {
	if detail, err := connect.NewErrorDetail(message); err == nil {
		failure.AddDetail(detail)
	}
}
