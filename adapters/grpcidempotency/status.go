package grpcidempotency

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// DefaultStorable is the default of Options.Storable. The operation ends with OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
// PERMISSION_DENIED, FAILED_PRECONDITION and OUT_OF_RANGE. All other codes mean "try again", as in
// [github.com/idempotency-go/idempotency.DefaultStorable].
func DefaultStorable(s *status.Status) bool {
	switch s.Code() {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// sentStatus returns the status that grpc-go sends for an error of the handler.
func sentStatus(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// httpStatus returns the HTTP status for code by [google.rpc.Code]. Records have the HTTP status for people who read records, and
// for stores that roll back the transaction of a refused operation.
//
// [google.rpc.Code]: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
func httpStatus(code codes.Code) int {
	switch code {
	case codes.OK:
		return 200
	case codes.Canceled:
		return 499
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return 400
	case codes.Unauthenticated:
		return 401
	case codes.PermissionDenied:
		return 403
	case codes.NotFound:
		return 404
	case codes.AlreadyExists, codes.Aborted:
		return 409
	case codes.ResourceExhausted:
		return 429
	case codes.Unimplemented:
		return 501
	case codes.Unavailable:
		return 503
	case codes.DeadlineExceeded:
		return 504
	default:
		return 500
	}
}
