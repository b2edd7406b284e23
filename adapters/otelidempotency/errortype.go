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

// otherErrorType is the value of error.type in the semantic conventions for all other errors.
const otherErrorType = "_OTHER"

// errorTypeRules are tried in this order. The first rule whose error is wrapped gives the type.
var errorTypeRules = []struct {
	wrapped   error
	errorType string
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

// The possible error types of rejected requests, and of outcomes by a failure of the store.
var (
	rejectionTypes = []string{
		"key_missing", "key_invalid", "user_unknown", "body_too_large", "body_invalid", "body_consumed", "overloaded", otherErrorType,
	}
	storeFailureTypes = []string{
		"record_invalid", "store_full", "store_busy", "timeout", "canceled", "connection", otherErrorType,
	}
	typesByOutcome = map[idempotency.Outcome][]string{
		idempotency.OutcomeRejected:    rejectionTypes,
		idempotency.OutcomeUnavailable: storeFailureTypes,
		idempotency.OutcomeUnprotected: storeFailureTypes,
		idempotency.OutcomeUnrecorded:  storeFailureTypes,
	}
)

// ErrorType returns the attribute error.type of an event, the reason for a rejection or for a failure of the store. ErrorType
// returns "" for all other events. The values are
//
//   - for rejected requests: key_missing, key_invalid, user_unknown, body_too_large, body_invalid, body_consumed and
//     overloaded;
//   - for failures of the store: record_invalid, store_full, store_busy, timeout, canceled and connection;
//   - _OTHER for any other error.
func ErrorType(e idempotency.Event) string {
	types, ok := typesByOutcome[e.Outcome]
	if !ok {
		return "" // the outcome is explanation enough, or the error belongs to the handler
	}
	if errorType := classifyError(e.Err); slices.Contains(types, errorType) {
		return errorType
	}
	return otherErrorType
}

func classifyError(err error) string {
	for _, rule := range errorTypeRules {
		if errors.Is(err, rule.wrapped) {
			return rule.errorType
		}
	}
	network, ok := errors.AsType[net.Error](err)
	switch {
	case !ok:
		return otherErrorType
	case network.Timeout():
		return "timeout"
	default:
		return "connection"
	}
}
