package grpcidempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idempotency-go/idempotency"
)

// ErrorDomain is the domain of the [errdetails.ErrorInfo] in a refusal.
const ErrorDomain = "github.com/idempotency-go/idempotency"

// pushbackKey is the trailer that tells the retry policy of a client how long to wait (gRPC proposal A6).
const pushbackKey = "grpc-retry-pushback-ms"

// refuse returns the error for a call that is not answered by its handler. It sets nothing but a trailer, because a client
// that has got a header does not retry.
func refuse(ctx context.Context, e *idempotency.Error) error {
	refusal := status.New(codeOf(e), textOf(e))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: reasonOf(e), Domain: ErrorDomain, Metadata: map[string]string{"retry": string(e.Retry)},
	}}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
		pause := strconv.FormatInt(roundUp(e.RetryAfter).Milliseconds(), 10)
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushbackKey, pause)) // without it the client has a pause of its own
	}
	if detailed, err := refusal.WithDetails(details...); err == nil {
		refusal = detailed
	}
	return refusal.Err()
}

// roundUp rounds to whole milliseconds.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// codesOf has the codes of the refusals that are told apart by more than their HTTP status.
var codesOf = map[string]codes.Code{
	"in-progress":     codes.Aborted,
	"key-reused":      codes.FailedPrecondition,
	"outcome-unknown": codes.FailedPrecondition,
	"not-replayable":  codes.FailedPrecondition,
}

func codeOf(e *idempotency.Error) codes.Code {
	if code, ok := codesOf[e.Code]; ok {
		return code
	}
	switch e.Status {
	case http.StatusBadRequest:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusConflict:
		return codes.FailedPrecondition
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	default:
		return codes.Internal
	}
}

// reasonOf returns the code as AIP-193 asks for a reason: IN_PROGRESS.
func reasonOf(e *idempotency.Error) string {
	return strings.ToUpper(strings.ReplaceAll(e.Code, "-", "_"))
}

func textOf(e *idempotency.Error) string {
	if e.Detail != "" {
		return e.Detail
	}
	return e.Title
}

// refusalFrom returns the refusal in an error of [idempotency.Runner.Do].
func refusalFrom(err error) *idempotency.Error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return e
	}
	return recordUnreadable(err)
}

func keyMissing() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-missing", Retry: idempotency.RetryNewKey,
		Detail: "This call must carry an idempotency key. Repeat it with " + MetadataKey +
			" in its metadata, such as a random UUID.",
	}
}

func keyInvalid(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Detail: "Nothing was executed: " + reason.Error() + ". A key has 1 to 255 visible ASCII characters.",
	}
}

func requestInvalid(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetryNever,
		Detail: "This attempt was not executed: " + reason.Error() + ".",
	}
}

// notProto refuses a call whose request cannot be told from others.
func notProto(message any) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusInternalServerError, Code: "message-unsupported", Retry: idempotency.RetryNever,
		Detail: fmt.Sprintf("This is a fault of the server: it guards a method whose request, a %T, is not a message of protobuf.",
			message),
	}
}

// claimLost refuses a call whose handler has given up because its claim was lost.
func claimLost() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Retry: idempotency.RetrySameKey,
		RetryAfter: time.Second,
		Detail:     "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key.",
	}
}

// typeUnknown refuses a replay of a message that this program does not have.
func typeUnknown(url string) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "not-replayable", Retry: idempotency.RetryNever,
		Detail: "The call was executed before and is not executed again, but this build of the service does not have the " +
			"type of its answer, " + url + ".",
	}
}

// recordUnreadable refuses a replay of something that this package has not written.
func recordUnreadable(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey,
		RetryAfter: time.Second,
		Detail:     "Whether this call was executed is not known here, because its record cannot be read: " + err.Error() + ".",
	}
}

// userUnknown returns the error for a call whose caller is not known because of err, which may be nil.
func userUnknown(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return refuse(ctx, e)
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Err()
	}
	return refuse(ctx, &idempotency.Error{
		Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Detail: "This attempt was not executed. Authenticate, then retry with the same key.",
	})
}
