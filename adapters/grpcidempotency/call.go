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

// call is a guarded call and its answer.
type call struct {
	*Interceptor
	ctx     context.Context // of the call
	key     idempotency.Key
	req     any
	handler grpc.UnaryHandler

	operation context.Context // ends with the context of the call until the handler begins
	detach    func() bool     // reports whether the handler may still begin
	recorder  recorder
	outcome
}

// outcome is how the handler of a call has ended.
type outcome struct {
	reply   any
	err     error
	header  metadata.MD // of the answer
	trailer metadata.MD
	sent    bool  // the header is sent whatever the answer is
	passing error // why the answer is not kept
	lost    bool  // the store has ended the context of the handler
}

// errLeft is the cause of the end of an operation that has not begun.
var errLeft = errors.New("grpcidempotency: client left before the handler began")

// answer answers the call with the result of its operation.
func (c *call) answer(payload []byte) (any, error) {
	end := c.enter()
	defer end()
	resp, replayed, err := c.runner.Do(c.operation, c.key, payload, c.work)
	switch {
	case replayed:
		return c.replay(resp)
	case err != nil && err == c.passing && c.lost:
		return nil, refuse(c.ctx, claimLost())
	case err != nil && err == c.passing, err == nil:
		c.send()
		return c.reply, c.err
	default:
		return nil, refuse(c.ctx, refusalFrom(err))
	}
}

// enter makes the context of the operation. A client that leaves ends the wait for another attempt, but not the handler.
func (c *call) enter() (end func()) {
	if c.opts.CancelWithClient {
		c.operation, c.detach = c.ctx, func() bool { return true }
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	c.operation = ctx
	c.detach = context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return func() {
		c.detach()
		cancel(nil)
	}
}

// work runs the handler, for the owner of the operation or, with FailOpen, for nobody.
func (c *call) work(ctx context.Context) (idempotency.Response, error) {
	if !c.detach() {
		idempotency.Decide(ctx, idempotency.Free)
		c.err, c.passing = status.FromContextError(c.ctx.Err()).Err(), errLeft
		return idempotency.Response{}, errLeft
	}
	c.reply, c.err = c.handler(c.handlerContext(ctx), c.req)
	c.header, c.trailer, c.sent = c.recorder.finish()
	c.lost = ctx.Err() != nil && c.operation.Err() == nil
	resp, err := c.response()
	if err != nil { // grpc-go would have found that later, and answered the same
		c.reply, c.err = nil, status.Errorf(codes.Internal, "grpc: error while marshaling: %v", err)
		resp, err = c.response()
	}
	failure := statusOf(c.err)
	if c.err != nil && (err != nil || failure.Code() == codes.OK || !c.ends(ctx, failure)) {
		c.passing = fmt.Errorf("grpcidempotency: answer not storable: %w", c.err)
		return idempotency.Response{Status: httpStatus(failure.Code())}, c.passing
	}
	return resp, nil
}

// ends reports whether a failure ends the operation. If the handler has turned the call away, nothing has happened.
func (c *call) ends(ctx context.Context, failure *status.Status) bool {
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

func (c *call) handlerContext(ctx context.Context) context.Context {
	ctx = context.WithValue(ctx, guardedKey{}, c.key)
	return grpc.NewContextWithServerTransportStream(ctx, &c.recorder)
}

type guardedKey struct{}

// response returns what is stored of the answer, if it is.
func (c *call) response() (idempotency.Response, error) {
	if c.err != nil {
		failure := statusOf(c.err)
		return newResponse(failure.Code(), storedStatus(failure), c.header, c.trailer, c.opts.MaxResponse)
	}
	if c.reply == nil {
		return newResponse(codes.OK, nil, c.header, c.trailer, c.opts.MaxResponse)
	}
	reply, ok := protoOf(c.reply)
	if !ok { // its effects exist, so the client gets it
		return omitted(httpStatus(codes.OK)), nil
	}
	return newResponse(codes.OK, reply, c.header, c.trailer, c.opts.MaxResponse)
}

// replay answers with a stored answer.
func (c *call) replay(resp idempotency.Response) (any, error) {
	reply, err := readResponse(c.key.Endpoint, resp)
	if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
		return nil, refuse(c.ctx, refusal)
	}
	c.header = metadata.Join(metadata.MD(resp.Header.Header()), metadata.Pairs(markerKey, markerValue))
	c.trailer = metadata.MD(resp.Trailer.Header())
	c.send()
	return reply, err
}

// send hands the metadata of the answer to grpc-go. If an outer interceptor has sent a header before, or the client has
// left, it reaches nobody, and the answer stands all the same.
func (c *call) send() {
	if c.sent {
		_ = grpc.SendHeader(c.ctx, c.header)
	} else {
		_ = grpc.SetHeader(c.ctx, c.header)
	}
	_ = grpc.SetTrailer(c.ctx, c.trailer)
}
