package mcpidempotency

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
)

// refusalData is what a refusal tells programs.
type refusalData struct {
	Code       string `json:"code"`
	Retry      string `json:"retry,omitempty"`      // same-key, new-key or never
	RetryAfter int64  `json:"retryAfter,omitempty"` // seconds
}

func newRefusalData(e *idempotency.Error) refusalData {
	return refusalData{Code: e.Code, Retry: string(e.Retry), RetryAfter: retryAfterSeconds(e)}
}

// retryAfterSeconds rounds the delay of e up to whole seconds.
func retryAfterSeconds(e *idempotency.Error) int64 {
	return int64((e.RetryAfter + time.Second - 1) / time.Second)
}

// refuse answers a call of tool with the refusal e.
func (g *guard) refuse(tool *mcp.Tool, e *idempotency.Error) (mcp.Result, error) {
	shown := *e
	shown.Detail = describeRefusal(e)
	if g.opts.Refusal != nil {
		result, err := g.opts.Refusal(&shown)
		if err != nil {
			return nil, err
		}
		return result, nil
	}
	data := newRefusalData(e)
	result := &mcp.CallToolResult{
		Meta:    mcp.Meta{metaName: data},
		Content: []mcp.Content{&mcp.TextContent{Text: shown.Detail}},
		IsError: true,
	}
	if tool.OutputSchema == nil { // clients of the TypeScript SDK validate the structured content of errors, too
		result.StructuredContent = data
	}
	return result, nil
}

// textByCode has texts for models in place of the details of the [idempotency.Runner], which speak of requests.
var textByCode = map[string]string{
	"in-progress": "The same call may still be running. This call did nothing.",
	"key-reused": "Nothing was done: the idempotency key came before with other arguments. To repeat the earlier call, send " +
		"its arguments again. For a new action, call with a new random UUID as the key.",
	"not-replayable": "An earlier call has carried out the action, but its result was not kept. Do not call again, also not " +
		"with a new key. Look up what the action has done.",
	"outcome-unknown": "Whether the action was carried out is unknown, because an earlier call ended without a result. This " +
		"call did nothing. Do not call again, also not with a new key. Find out first what the earlier call has done.",
	"quota-exceeded": "Nothing was done by this call: too many idempotency keys of this user are kept.",
	"store-unavailable": "The server cannot tell at the moment whether the action was carried out. This call did nothing. Do " +
		"not use a new key.",
}

// describeRefusal returns the text of a refusal for models, with what to do next.
func describeRefusal(e *idempotency.Error) string {
	text := cmp.Or(e.Detail, e.Title, http.StatusText(e.Status))
	if e.Retry != idempotency.RetrySameKey {
		return text
	}
	const again = " Call again%s with the same key and the same arguments."
	switch seconds := retryAfterSeconds(e); seconds {
	case 0:
		return text + fmt.Sprintf(again, "")
	case 1:
		return text + fmt.Sprintf(again, " in 1 second")
	default:
		return text + fmt.Sprintf(again, fmt.Sprintf(" in %d seconds", seconds))
	}
}

// toRefusal returns the refusal in an error by [idempotency.Runner.Do], with a text for models.
func toRefusal(err error) *idempotency.Error {
	e, ok := errors.AsType[*idempotency.Error](err)
	if !ok {
		return refuseUnreadableRecord(err)
	}
	if errors.Is(err, idempotency.ErrClaimLost) {
		return refuseLostClaim(err)
	}
	shown := *e
	shown.Detail = cmp.Or(textByCode[e.Code], e.Detail)
	return &shown
}

func (g *guard) refuseMissingKey() *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-missing", Retry: idempotency.RetryNewKey,
		Detail: fmt.Sprintf("Nothing was done, because the call has no idempotency key. Call again with a new random UUID as the "+
			"argument %s. Send the same UUID again only to repeat the same call.", g.argumentName()),
		Err: idempotency.ErrKeyMissing,
	}
}

func refuseInvalidKey(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Detail: "Nothing was done, because the idempotency key is invalid: " + reason.Error() + ". Call again with a new random " +
			"UUID as the key.",
		Err: fmt.Errorf("%w: %w", idempotency.ErrKeyInvalid, reason),
	}
}

func refuseInvalidArguments(reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "body-invalid", Retry: idempotency.RetryNever,
		Detail: "Nothing was done by this call, because its arguments cannot be compared: " + reason.Error() + ".",
		Err:    fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, reason),
	}
}

// refuseUnknownUser refuses a call without a known user. err is the error of the UserFunc, or nil.
func refuseUnknownUser(err error) *idempotency.Error {
	if own, ok := errors.AsType[*idempotency.Error](err); ok {
		return own
	}
	return &idempotency.Error{
		Status: http.StatusUnauthorized, Code: "user-unknown", Retry: idempotency.RetrySameKey,
		Detail: "Nothing was done by this call, because the server does not know the user. The user has to sign in first.",
		Err:    errors.Join(idempotency.ErrUserUnknown, err),
	}
}

// refuseLostClaim refuses a call whose tool gave up after the claim was lost.
func refuseLostClaim(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusConflict, Code: "in-progress", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: "This call was too slow, so its result does not count. Another call with the same key may be running.",
		Err:    fmt.Errorf("%w: %w", idempotency.ErrClaimLost, err),
	}
}

// refuseUnreadableRecord refuses to replay a record that this package cannot decode.
func refuseUnreadableRecord(err error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusServiceUnavailable, Code: "store-unavailable", Retry: idempotency.RetrySameKey, RetryAfter: time.Second,
		Detail: textByCode["store-unavailable"], Err: errors.Join(idempotency.ErrRecordInvalid, err),
	}
}
