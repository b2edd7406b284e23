package mcpidempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
)

// metaName is the member of _meta that marks replays and refusals.
const metaName = "idempotency"

// The statuses of stored results, for people who read records, and for stores that roll back the transaction of a refused
// operation.
const (
	statusSucceeded = http.StatusOK
	statusFailed    = http.StatusUnprocessableEntity // the result has IsError
)

// newResponse returns the stored form of a result: its JSON, or a tombstone if the result is nil, cannot be encoded, or
// has more than maxBody bytes.
func newResponse(result *mcp.CallToolResult, maxBody int64) idempotency.Response {
	if result == nil {
		return idempotency.Response{Status: statusSucceeded, Omitted: true}
	}
	status := statusSucceeded
	if result.IsError {
		status = statusFailed
	}
	body, err := json.Marshal(result)
	if err != nil || int64(len(body)) > maxBody {
		return idempotency.Response{Status: status, Omitted: true}
	}
	header := idempotency.NewFields(http.Header{"Content-Type": {"application/json"}})
	return idempotency.Response{Status: status, Header: header, Body: body}
}

// decodeReplay returns the stored result with the marker of a replay.
func decodeReplay(resp idempotency.Response) (*mcp.CallToolResult, error) {
	var result mcp.CallToolResult
	if err := json.Unmarshal(resp.Body, &result); err != nil {
		return nil, err
	}
	var exact struct { // with every digit of a number, because the SDK decodes numbers into floats
		Meta              mcp.Meta        `json:"_meta"`
		Content           json.RawMessage `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
	}
	reader := json.NewDecoder(bytes.NewReader(resp.Body))
	reader.UseNumber()
	if err := reader.Decode(&exact); err != nil {
		return nil, err
	}
	if exact.Content == nil && exact.StructuredContent == nil {
		return nil, errors.New("the record has no content")
	}
	result.Meta = exact.Meta
	if result.Meta == nil {
		result.Meta = make(mcp.Meta, 1)
	}
	result.Meta[metaName] = map[string]any{"replayed": true}
	if exact.StructuredContent != nil {
		result.StructuredContent = exact.StructuredContent
	}
	return &result, nil
}
