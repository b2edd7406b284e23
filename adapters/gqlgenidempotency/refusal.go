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

// A document that is refused before its execution is answered as one that is not valid: with 400 or, as
// application/json, with 422.
func init() {
	errcode.RegisterErrorType("KEY_MISSING", errcode.KindProtocol)
	errcode.RegisterErrorType("KEY_INVALID", errcode.KindProtocol)
}

// refusal returns the error of GraphQL that says why a field is not answered by its resolver.
func refusal(e *idempotency.Error) *gqlerror.Error {
	extensions := map[string]any{"code": strings.ToUpper(strings.ReplaceAll(e.Code, "-", "_"))}
	if e.Retry != "" {
		extensions["retry"] = string(e.Retry)
	}
	if e.RetryAfter > 0 {
		extensions["retryAfter"] = int64((e.RetryAfter + time.Second - 1) / time.Second)
	}
	return &gqlerror.Error{Err: e, Message: cmp.Or(e.Detail, e.Title, http.StatusText(e.Status)), Extensions: extensions}
}

// onField returns err as the error of a field.
func onField(err *gqlerror.Error, field graphql.CollectedField) error {
	e := *err // which may be the service's
	e.Path = ast.Path{ast.PathName(field.Alias)}
	if field.Position != nil {
		e.Locations = []gqlerror.Location{{Line: field.Position.Line, Column: field.Position.Column}}
	}
	return &e
}

// refusalFrom returns the refusal in an error.
func refusalFrom(err error) *idempotency.Error {
	if e, ok := errors.AsType[*idempotency.Error](err); ok {
		return e
	}
	if errors.Is(err, idempotency.ErrClaimLost) {
		return claimLost(err)
	}
	return recordUnreadable(err)
}

// userUnknown returns the error for a field whose caller is not known because of err, which may be nil.
func userUnknown(err error) *gqlerror.Error {
	if own, ok := errors.AsType[*gqlerror.Error](err); ok {
		return own
	}
	if own, ok := errors.AsType[*idempotency.Error](err); ok {
		return refusal(own)
	}
	return refusal(&idempotency.Error{
		Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Detail: "This attempt was not executed. Authenticate, then retry with the same key.",
		Err:    errors.Join(idempotency.ErrUserUnknown, err),
	})
}

func requestInvalid(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetryNever,
		Detail: "This attempt was not executed: " + reason.Error() + ".",
		Err:    errors.Join(idempotency.ErrBodyInvalid, reason),
	}
}

// selectionDiffers refuses a replay of an answer that has other fields than the retry asks for.
func selectionDiffers() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "not-replayable", Retry: idempotency.RetryNever,
		Detail: "The field was executed before and is not executed again. Its answer was kept for another selection of " +
			"fields. Ask for the same fields as the first time, or look the result up.",
		Err: idempotency.ErrNotReplayable,
	}
}

// claimLost refuses a field whose resolver has given up because its claim was lost.
func claimLost(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: "This attempt has lost its claim to the key, so its answer does not count. Retry later with the same key.",
		Err:    err,
	}
}

// recordUnreadable refuses a replay of something that this package has not written.
func recordUnreadable(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: "Whether this field was executed is not known here, because its record cannot be read. Retry later with the " +
			"same key, not with a new one.",
		Err: errors.Join(idempotency.ErrRecordInvalid, err),
	}
}
