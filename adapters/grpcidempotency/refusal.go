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

// ErrorDomain is the domain of the [errdetails.ErrorInfo] in every refusal.
const ErrorDomain = "github.com/idempotency-go/idempotency"

// pushbackKey is the trailer with the delay for the retry policy of a client (gRPC proposal A6).
const pushbackKey = "grpc-retry-pushback-ms"

// newRefusal returns the gRPC error for e. newRefusal sets a trailer but no header, because the retry policy of gRPC ignores
// calls that have received a header.
func newRefusal(ctx context.Context, e *idempotency.Error) error {
	refusal := status.New(grpcCode(e), refusalText(e))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: reasonName(e), Domain: ErrorDomain, Metadata: map[string]string{"retry": string(e.Retry)},
	}}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
		retryDelay := strconv.FormatInt(roundUpToMillisecond(e.RetryAfter).Milliseconds(), 10)
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushbackKey, retryDelay)) // if this fails, the client chooses the delay
	}
	if detailed, err := refusal.WithDetails(details...); err == nil {
		refusal = detailed
	}
	return refusal.Err()
}

// roundUpToMillisecond rounds d up to whole milliseconds.
func roundUpToMillisecond(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// grpcCodeByErrorCode has the gRPC codes of refusals for which the HTTP status is too coarse.
var grpcCodeByErrorCode = map[string]codes.Code{
	"in-progress":     codes.Aborted,
	"key-reused":      codes.FailedPrecondition,
	"outcome-unknown": codes.FailedPrecondition,
	"not-replayable":  codes.FailedPrecondition,
}

func grpcCode(e *idempotency.Error) codes.Code {
	if code, ok := grpcCodeByErrorCode[e.Code]; ok {
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

// reasonName returns the code of e in the form that AIP-193 requires for a reason, for example IN_PROGRESS.
func reasonName(e *idempotency.Error) string {
	return strings.ToUpper(strings.ReplaceAll(e.Code, "-", "_"))
}

func refusalText(e *idempotency.Error) string {
	if e.Detail != "" {
		return e.Detail
	}
	return e.Title
}

// toRefusal returns the refusal in an error by [idempotency.Runner.Do].
func toRefusal(err error) *idempotency.Error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return e
	}
	return refuseUnreadableRecord(err)
}

func refuseMissingKey() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-missing", Retry: idempotency.RetryNewKey,
		Detail: "This call must carry an idempotency key. Repeat it with " + MetadataKey +
			" in its metadata, such as a random UUID.",
	}
}

func refuseInvalidKey(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Detail: "Nothing was executed: " + reason.Error() + ". A key has 1 to 255 visible ASCII characters.",
	}
}

func refuseInvalidRequest(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetryNever,
		Detail: "This attempt was not executed: " + reason.Error() + ".",
	}
}

// refuseNonProto refuses a call whose request has no fingerprint because the request is no protobuf message.
func refuseNonProto(message any) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusInternalServerError, Code: "message-unsupported", Retry: idempotency.RetryNever,
		Detail: fmt.Sprintf("This is a fault of the server: it guards a method whose request, a %T, is not a message of protobuf.",
			message),
	}
}

// refuseLostClaim refuses a call whose handler gave up after the claim was lost.
func refuseLostClaim() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Retry: idempotency.RetrySameKey,
		RetryAfter: time.Second,
		Detail:     "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key.",
	}
}

// refuseUnknownType refuses to replay a message whose type is missing in this build.
func refuseUnknownType(url string) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "not-replayable", Retry: idempotency.RetryNever,
		Detail: "The call was executed before and is not executed again, but this build of the service does not have the " +
			"type of its answer, " + url + ".",
	}
}

// refuseUnreadableRecord refuses to replay a record that this package cannot decode.
func refuseUnreadableRecord(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey,
		RetryAfter: time.Second,
		Detail:     "Whether this call was executed is not known here, because its record cannot be read: " + err.Error() + ".",
	}
}

// refuseUnknownUser returns the gRPC error for a call without a known user. err is the error of the UserFunc, or nil.
func refuseUnknownUser(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return newRefusal(ctx, e)
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Err()
	}
	return newRefusal(ctx, &idempotency.Error{
		Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Detail: "This attempt was not executed. Authenticate, then retry with the same key.",
	})
}
