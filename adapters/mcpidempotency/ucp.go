package mcpidempotency

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
)

// UCP returns the options for tools of the Universal Commerce Protocol. The key is the member meta.idempotency-key of the
// arguments, or the field Idempotency-Key of a signed HTTP request. A refusal is a JSON-RPC error with the code -32000,
// or -32602 for a missing or invalid key, and -32603 for a fault of the server. The data of the error has code, content,
// retry and retry_after.
//
// UCP compares repeated requests by all bytes. The middleware compares the arguments, because the other bytes differ
// between repetitions, such as the ID of the JSON-RPC request. UCP also demands the HTTP status of a refusal, such as 409,
// but the SDK chooses the HTTP status.
func UCP() Options {
	return Options{Argument: "/meta/idempotency-key", Header: "Idempotency-Key", Refusal: refuseAsError}
}

// serverError is the JSON-RPC code that UCP uses for refusals with the HTTP status 401, 403, 409, 429 and 503.
const serverError = -32000

// refuseAsError returns the JSON-RPC error that UCP demands for a refusal.
func refuseAsError(e *idempotency.Error) (*mcp.CallToolResult, error) {
	code := int64(serverError)
	switch e.Status {
	case http.StatusBadRequest:
		code = jsonrpc.CodeInvalidParams
	case http.StatusInternalServerError:
		code = jsonrpc.CodeInternalError
	}
	data, err := json.Marshal(struct {
		Code       string            `json:"code"`
		Content    string            `json:"content"`
		Retry      idempotency.Retry `json:"retry,omitempty"`
		RetryAfter int64             `json:"retry_after,omitempty"`
	}{strings.ReplaceAll(e.Code, "-", "_"), e.Detail, e.Retry, retryAfterSeconds(e)})
	if err != nil {
		return nil, err
	}
	return nil, &jsonrpc.Error{Code: code, Message: e.Detail, Data: data}
}
