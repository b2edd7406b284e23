package grpcidempotency

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idempotency-go/idempotency"
)

// guardedCall is the state of a guarded call.
type guardedCall struct {
	*Interceptor
	callContext context.Context
	key         idempotency.Key
	request     any
	runHandler  grpc.UnaryHandler

	operationContext context.Context // canceled with callContext until the handler begins
	detachFromClient func() bool     // ends this link, and reports whether the handler may begin
	recorder         metadataRecorder
	handlerResult
}

// handlerResult is the answer of the handler.
type handlerResult struct {
	reply         any
	handlerErr    error
	header        metadata.MD
	trailer       metadata.MD
	headerSent    bool  // the handler has called SendHeader
	unstorableErr error // the reason not to store the answer
	claimLost     bool  // the context of the handler ended because the claim was lost
}

// errClientLeft ends an operation whose client left before the handler began.
var errClientLeft = errors.New("grpcidempotency: client left before the handler began")

// execute runs the operation with payload as its fingerprinted content, and answers the call.
func (c *guardedCall) execute(payload []byte) (any, error) {
	end := c.enterOperation()
	defer end()
	resp, replayed, err := c.runner.Do(c.operationContext, c.key, payload, c.callHandler)
	switch {
	case replayed:
		return c.sendReplay(resp)
	case err != nil && err == c.unstorableErr && c.claimLost:
		return nil, newRefusal(c.callContext, refuseLostClaim())
	case err != nil && err == c.unstorableErr, err == nil:
		c.sendMetadata()
		return c.reply, c.handlerErr
	default:
		return nil, newRefusal(c.callContext, toRefusal(err))
	}
}

// enterOperation makes the context of the operation. The end of the call ends the wait for another attempt. Once the handler
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

// callHandler is the work of the operation: the owner of the claim runs the handler. With FailOpen, the handler also runs without
// a claim.
func (c *guardedCall) callHandler(ctx context.Context) (idempotency.Response, error) {
	if !c.detachFromClient() {
		idempotency.Decide(ctx, idempotency.Free)
		c.handlerErr, c.unstorableErr = status.FromContextError(c.callContext.Err()).Err(), errClientLeft
		return idempotency.Response{}, errClientLeft
	}
	c.reply, c.handlerErr = c.runHandler(c.handlerContext(ctx), c.request)
	c.header, c.trailer, c.headerSent = c.recorder.stopRecording()
	c.claimLost = ctx.Err() != nil && c.operationContext.Err() == nil
	resp, err := c.storableResponse()
	if err != nil { // the reply cannot be encoded: grpc-go would answer with this error, too
		c.reply, c.handlerErr = nil, status.Errorf(codes.Internal, "grpc: error while marshaling: %v", err)
		resp, err = c.storableResponse()
	}
	failure := sentStatus(c.handlerErr)
	if c.handlerErr != nil && (err != nil || failure.Code() == codes.OK || !c.endsOperation(ctx, failure)) {
		c.unstorableErr = fmt.Errorf("grpcidempotency: answer not storable: %w", c.handlerErr)
		return idempotency.Response{Status: httpStatus(failure.Code())}, c.unstorableErr
	}
	return resp, nil
}

// endsOperation reports whether a failure is stored as the answer of the operation. UNAUTHENTICATED and RESOURCE_EXHAUSTED
// release the claim because the handler has rejected the call without effects. A decision by the handler takes precedence.
func (c *guardedCall) endsOperation(ctx context.Context, failure *status.Status) bool {
	decided, ok := idempotency.Decided(ctx)
	switch {
	case ok:
		return decided == idempotency.Keep || decided == idempotency.Tombstone
	case c.opts.Storable(failure):
		return true
	case failure.Code() == codes.Unauthenticated || failure.Code() == codes.ResourceExhausted:
		idempotency.Decide(ctx, idempotency.Free)
	}
	return false
}

func (c *guardedCall) handlerContext(ctx context.Context) context.Context {
	ctx = context.WithValue(ctx, guardedContextKey{}, c.key)
	return grpc.NewContextWithServerTransportStream(ctx, &c.recorder)
}

type guardedContextKey struct{}

// storableResponse returns the stored form of the answer of the handler.
func (c *guardedCall) storableResponse() (idempotency.Response, error) {
	if c.handlerErr != nil {
		failure := sentStatus(c.handlerErr)
		return newResponse(failure.Code(), storableStatus(failure), c.header, c.trailer, c.opts.MaxResponse)
	}
	if c.reply == nil {
		return newResponse(codes.OK, nil, c.header, c.trailer, c.opts.MaxResponse)
	}
	reply, ok := asProtoMessage(c.reply)
	if !ok { // the reply cannot be stored, but the effects of the handler exist, so the client gets the reply
		return newTombstone(httpStatus(codes.OK)), nil
	}
	return newResponse(codes.OK, reply, c.header, c.trailer, c.opts.MaxResponse)
}

// sendReplay answers the call with the stored answer.
func (c *guardedCall) sendReplay(resp idempotency.Response) (any, error) {
	reply, err := decodeResponse(c.key.Endpoint, resp)
	if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
		return nil, newRefusal(c.callContext, refusal)
	}
	c.header = metadata.Join(metadata.MD(resp.Header.Header()), metadata.Pairs(replayMarkerKey, replayMarkerValue))
	c.trailer = metadata.MD(resp.Trailer.Header())
	c.sendMetadata()
	return reply, err
}

// sendMetadata passes the metadata of the answer to grpc-go. Errors are ignored: if an outer interceptor has already sent a
// header, or the client has left, the metadata is lost, but the answer remains valid.
func (c *guardedCall) sendMetadata() {
	if c.headerSent {
		_ = grpc.SendHeader(c.callContext, c.header)
	} else {
		_ = grpc.SetHeader(c.callContext, c.header)
	}
	_ = grpc.SetTrailer(c.callContext, c.trailer)
}
