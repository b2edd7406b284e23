package dynamodbstore

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/idempotency-go/idempotency"
)

// hasCode reports whether err is one of the service's, with one of the codes.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains(codes, e.ErrorCode())
}

// isThrottled reports whether the service works, but had no capacity for the request, or something else was changing the
// item. The request has had no effect.
func isThrottled(err error) bool {
	return hasCode(err, "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
		"LimitExceededException", "TransactionConflictException", "ReplicatedWriteConflictException")
}

// isAnswer reports whether err says that the request has had no effect: it is an answer of the service, and not that it
// has failed itself.
func isAnswer(err error) bool {
	if resp, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		status := resp.HTTPStatusCode() // zero: there was no answer
		return status >= http.StatusBadRequest && status < http.StatusInternalServerError
	}
	_, answered := errors.AsType[smithy.APIError](err)
	return answered && !hasCode(err, "InternalServerError", "InternalFailure", "ServiceUnavailable")
}

// isConditional reports whether a condition did not hold. Item is the record then, if the service tells it.
func isConditional(err error) (item map[string]types.AttributeValue, ok bool) {
	e, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok {
		return nil, false
	}
	return e.Item, true
}

// isTooLarge reports whether an item would have more than 400 KB.
func isTooLarge(err error) bool {
	return hasCode(err, "ValidationException") && strings.Contains(err.Error(), "Item size")
}

// failure returns the error of a step.
func failure(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case hasCode(err, "ResourceNotFoundException"):
		err = fmt.Errorf("there is no table of records: call CreateTable: %w", err)
	case isTooLarge(err):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreFull, err)
	case isThrottled(err) && !errors.Is(err, idempotency.ErrStoreBusy):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return fmt.Errorf("dynamodbstore: %s: %w", step, err)
}
