package mcpidempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
)

// guardedCall is the state of a guarded call.
type guardedCall struct {
	*guard
	tool        *mcp.Tool
	callContext context.Context
	key         idempotency.Key
	runTool     func(context.Context) (mcp.Result, error)

	operationContext context.Context // canceled with callContext until the tool begins
	detachFromClient func() bool     // ends this link, and reports whether the tool may begin
	toolAnswer
}

// toolAnswer is the answer of the tool.
type toolAnswer struct {
	result        mcp.Result
	toolErr       error // a JSON-RPC error
	unstorableErr error // the reason not to store the answer
	claimLost     bool  // the context of the tool ended because the claim was lost
}

var (
	// errClientLeft ends an operation whose client left before the tool began.
	errClientLeft = errors.New("mcpidempotency: client left before the tool began")

	errNotStorable = errors.New("mcpidempotency: answer not storable")
)

// execute runs the operation with payload as its fingerprinted content, and answers the call.
func (c *guardedCall) execute(payload []byte) (mcp.Result, error) {
	end := c.enterOperation()
	defer end()
	resp, replayed, err := c.runner.Do(c.operationContext, c.key, payload, c.callTool)
	switch {
	case replayed:
		result, err := decodeReplay(resp)
		if err != nil {
			return c.refuse(c.tool, refuseUnreadableRecord(err))
		}
		return result, nil
	case err != nil && err == c.unstorableErr && c.claimLost:
		return c.refuse(c.tool, refuseLostClaim(err))
	case err != nil && err == c.unstorableErr, err == nil:
		return c.result, c.toolErr
	default:
		return c.refuse(c.tool, toRefusal(err))
	}
}

// enterOperation makes the context of the operation. The end of the call ends the wait for another attempt. Once the tool
// has begun, the end of the call has no effect.
func (c *guardedCall) enterOperation() (end func()) {
	if c.opts.CancelWithClient {
		c.operationContext, c.detachFromClient = c.callContext, func() bool { return true }
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.callContext))
	c.operationContext = ctx
	c.detachFromClient = context.AfterFunc(c.callContext, func() { cancel(context.Cause(c.callContext)) })
	return func() {
		c.detachFromClient()
		cancel(nil)
	}
}

// callTool is the work of the operation: the owner of the claim runs the tool. With FailOpen, the tool also runs without
// a claim.
func (c *guardedCall) callTool(ctx context.Context) (idempotency.Response, error) {
	if !c.detachFromClient() {
		idempotency.Decide(ctx, idempotency.Free)
		c.toolErr, c.unstorableErr = context.Cause(c.callContext), errClientLeft
		return idempotency.Response{}, errClientLeft
	}
	c.result, c.toolErr = c.runTool(ctx)
	c.claimLost = errors.Is(context.Cause(ctx), idempotency.ErrClaimLost)
	result, _ := c.result.(*mcp.CallToolResult)
	if c.endsOperation(ctx, result) {
		return newResponse(result, c.opts.MaxResponse), nil
	}
	if _, ok := idempotency.Decided(ctx); !ok && c.isInvalidCall(result) {
		idempotency.Decide(ctx, idempotency.Free)
	}
	c.unstorableErr = errNotStorable
	if c.toolErr != nil {
		c.unstorableErr = fmt.Errorf("%w: %w", errNotStorable, c.toolErr)
	}
	return idempotency.Response{Status: statusFailed}, c.unstorableErr
}

// endsOperation reports whether the answer of the tool is stored. A JSON-RPC error and a question to the user (SEP-2322)
// are never stored. A decision by the tool takes precedence over Options.Storable. result is nil if the tool has returned
// nil, or other middleware a result of another type.
func (c *guardedCall) endsOperation(ctx context.Context, result *mcp.CallToolResult) bool {
	decided, ok := idempotency.Decided(ctx)
	switch {
	case c.toolErr != nil, result != nil && (result.NeedsInput() || result.InputRequests != nil):
		return false
	case ok:
		return decided == idempotency.Keep || decided == idempotency.Tombstone
	default:
		return result == nil || c.opts.Storable(result)
	}
}

// isInvalidCall reports whether the SDK has turned the call away before the tool: the tool is unknown, or the arguments
// violate the input schema. A corrected call may then have the same key. The SDK has no type for the error of validation,
// so its text must do. If the text changes, the corrected call needs a new key.
func (c *guardedCall) isInvalidCall(result *mcp.CallToolResult) bool {
	if failure, ok := errors.AsType[*jsonrpc.Error](c.toolErr); ok {
		return failure.Code == jsonrpc.CodeInvalidParams || failure.Code == jsonrpc.CodeMethodNotFound
	}
	return result != nil && result.GetError() != nil &&
		strings.HasPrefix(result.GetError().Error(), `validating "arguments":`)
}
