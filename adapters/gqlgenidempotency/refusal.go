package gqlgenidempotency

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/errcode"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
)

// As protocol errors, KEY_MISSING and KEY_INVALID get the status of an invalid document: 400 or, as application/json, 422.
func init() {
	errcode.RegisterErrorType("KEY_MISSING", errcode.KindProtocol)
	errcode.RegisterErrorType("KEY_INVALID", errcode.KindProtocol)
}

// newRefusal returns the GraphQL error for e.
func newRefusal(e *idempotency.Error) *gqlerror.Error {
	extensions := map[string]any{"code": strings.ToUpper(strings.ReplaceAll(e.Code, "-", "_"))}
	if e.Retry != "" {
		extensions["retry"] = string(e.Retry)
	}
	if e.RetryAfter > 0 {
		extensions["retryAfter"] = int64((e.RetryAfter + time.Second - 1) / time.Second)
	}
	return &gqlerror.Error{Err: e, Message: cmp.Or(e.Detail, e.Title, http.StatusText(e.Status)), Extensions: extensions}
}

// placeOnField returns a copy of err with the path and the location of field.
func placeOnField(err *gqlerror.Error, field graphql.CollectedField) error {
	e := *err // a copy, because err may belong to the service
	e.Path = ast.Path{ast.PathName(field.Alias)}
	if field.Position != nil {
		e.Locations = []gqlerror.Location{{Line: field.Position.Line, Column: field.Position.Column}}
	}
	return &e
}

// toRefusal returns the refusal in an error by [idempotency.Runner.Do].
func toRefusal(err error) *idempotency.Error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return e
	}
	if errors.Is(err, idempotency.ErrClaimLost) {
		return refuseLostClaim(err)
	}
	return refuseUnreadableRecord(err)
}

// refuseUnknownUser returns the GraphQL error for a field without a known user. err is the error of the UserFunc, or nil.
func refuseUnknownUser(err error) *gqlerror.Error {
	if own, ok := errors.AsType[*gqlerror.Error](err); ok {
		return own
	}
	if own, ok := errors.AsType[*idempotency.Error](err); ok {
		return newRefusal(own)
	}
	return newRefusal(&idempotency.Error{
		Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Detail: "This attempt was not executed. Authenticate, then retry with the same key.",
		Err:    errors.Join(idempotency.ErrUserUnknown, err),
	})
}

func refuseInvalidRequest(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetryNever,
		Detail: "This attempt was not executed: " + reason.Error() + ".",
		Err:    errors.Join(idempotency.ErrBodyInvalid, reason),
	}
}

// refuseOtherSelection refuses a retry that selects other fields than the stored answer has.
func refuseOtherSelection() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "not-replayable", Retry: idempotency.RetryNever,
		Detail: "The field was executed before and is not executed again. Its answer was kept for another selection of " +
			"fields. Ask for the same fields as the first time, or look the result up.",
		Err: idempotency.ErrNotReplayable,
	}
}

// refuseLostClaim refuses a field whose resolver gave up after the claim was lost.
func refuseLostClaim(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key.",
		Err:    err,
	}
}

// refuseUnreadableRecord refuses to replay a record that this package cannot decode.
func refuseUnreadableRecord(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: "Whether this field was executed is not known here, because its record cannot be read. Retry later with the " +
			"same key, not with a new one.",
		Err: errors.Join(idempotency.ErrRecordInvalid, err),
	}
}
