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

// hasCode reports whether err is an error of the service with one of the codes.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[smithy.APIError](err)
	return ok && slices.Contains(codes, e.ErrorCode())
}

// isThrottled reports whether the service had no capacity for the request, or another request was changing the item. The
// request has had no effect.
func isThrottled(err error) bool {
	return hasCode(err, "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
		"LimitExceededException", "TransactionConflictException", "ReplicatedWriteConflictException")
}

// hasNoEffect reports whether err means that the request has had no effect: the service has refused the request. After a
// failure of the service, the effect is unknown.
func hasNoEffect(err error) bool {
	if resp, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		status := resp.HTTPStatusCode() // zero: no reply
		return status >= http.StatusBadRequest && status < http.StatusInternalServerError
	}
	_, answered := errors.AsType[smithy.APIError](err)
	return answered && !hasCode(err, "InternalServerError", "InternalFailure", "ServiceUnavailable")
}

// asFailedCondition reports whether the condition of a write has failed. The item is the stored item, if the service returns
// the item.
func asFailedCondition(err error) (item map[string]types.AttributeValue, isFailed bool) {
	e, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok {
		return nil, false
	}
	return e.Item, true
}

// isTooLarge reports whether the service has refused an item above 400 KB.
func isTooLarge(err error) bool {
	return hasCode(err, "ValidationException") && strings.Contains(err.Error(), "Item size")
}

// wrapError wraps the error of a step for the caller of the store.
func wrapError(step string, err error) error {
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
