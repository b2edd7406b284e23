package otelidempotency

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"

	"github.com/idempotency-go/idempotency"
)

// otherError is what the semantic conventions call an error that no other value names.
const otherError = "_OTHER"

// errorTypes are found in this order: the first that an error wraps counts.
var errorTypes = []struct {
	is   error
	name string
}{
	{idempotency.ErrKeyMissing, "key_missing"},
	{idempotency.ErrKeyInvalid, "key_invalid"},
	{idempotency.ErrUserUnknown, "user_unknown"},
	{idempotency.ErrBodyTooLarge, "body_too_large"},
	{idempotency.ErrBodyInvalid, "body_invalid"},
	{idempotency.ErrBodyConsumed, "body_consumed"},
	{idempotency.ErrOverloaded, "overloaded"},
	{idempotency.ErrRecordInvalid, "record_invalid"},
	{idempotency.ErrStoreFull, "store_full"},
	{idempotency.ErrStoreBusy, "store_busy"},
	{context.DeadlineExceeded, "timeout"},
	{os.ErrDeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{io.EOF, "connection"},
	{io.ErrUnexpectedEOF, "connection"},
}

// The types of errors of rejected requests, and of the outcomes of which the store is the cause.
var (
	rejections = []string{
		"key_missing", "key_invalid", "user_unknown", "body_too_large", "body_invalid", "body_consumed", "overloaded", otherError,
	}
	failures = []string{
		"record_invalid", "store_full", "store_busy", "timeout", "canceled", "connection", otherError,
	}
	typesOf = map[idempotency.Outcome][]string{
		idempotency.OutcomeRejected:    rejections,
		idempotency.OutcomeUnavailable: failures,
		idempotency.OutcomeUnprotected: failures,
		idempotency.OutcomeUnrecorded:  failures,
	}
)

// ErrorType returns the attribute error.type of an event: why a request was rejected, or how the store has failed. It is
// empty if neither is the case. The values are
//
//   - of rejected requests: key_missing, key_invalid, user_unknown, body_too_large, body_invalid, body_consumed and
//     overloaded;
//   - of the store: record_invalid, store_full, store_busy, timeout, canceled and connection;
//   - _OTHER.
func ErrorType(e idempotency.Event) string {
	types, ok := typesOf[e.Outcome]
	if !ok {
		return "" // all is said by the outcome, or the handler's business
	}
	if kind := errorType(e.Err); slices.Contains(types, kind) {
		return kind
	}
	return otherError
}

func errorType(err error) string {
	for _, t := range errorTypes {
		if errors.Is(err, t.is) {
			return t.name
		}
	}
	network, ok := errors.AsType[net.Error](err)
	switch {
	case !ok:
		return otherError
	case network.Timeout():
		return "timeout"
	default:
		return "connection"
	}
}
