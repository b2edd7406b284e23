package gqlgenidempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
)

// call is a guarded field and its answer.
type call struct {
	*Extension
	ctx       context.Context // of the field
	field     graphql.CollectedField
	next      graphql.RootResolver
	selection string // what is asked of the result

	resolver
	outcome
}

// resolver says how far the resolver of a call has come.
type resolver struct {
	begun    bool // set by InterceptField
	returned bool // the resolver has not panicked
	failure  error
}

// outcome is what becomes of the answer of a call.
type outcome struct {
	data    []byte
	passing error // why the answer is not kept
	lost    bool  // the store has ended the context of the resolver
}

type callKey struct{}

// errLeft is why an operation is not begun.
var errLeft = errors.New("gqlgenidempotency: client left before the resolver began")

// answer returns the result of the field: of its resolver, or of the store. An error is a refusal.
func (c *call) answer(id string) (graphql.Marshaler, *gqlerror.Error) {
	user, err := c.user(c.ctx)
	if err != nil || user == "" {
		return nil, userUnknown(err)
	}
	payload, err := c.fingerprint()
	if err != nil {
		return nil, refusal(requestInvalid(err))
	}
	key := idempotency.Key{User: user, Endpoint: "graphql " + c.schema.Mutation.Name + "." + c.field.Name, ID: id}
	ctx, detach, end := lasting(c.ctx)
	defer end()
	resp, replayed, err := c.runner.Do(ctx, key, payload, func(ctx context.Context) (idempotency.Response, error) {
		if !detach() {
			idempotency.Decide(ctx, idempotency.Free)
			c.passing = errLeft
			return idempotency.Response{}, errLeft
		}
		return c.work(ctx)
	})
	switch {
	case replayed:
		return c.replay(resp)
	case err != nil && (err != c.passing || c.lost):
		return nil, refusal(refusalFrom(err))
	}
	return marshaled(c.data), nil
}

// lasting returns a context that ends with ctx until detach is called: a client that leaves ends the wait for another
// attempt, but not the resolver. Detach reports whether the client was there until then.
func lasting(ctx context.Context) (lasts context.Context, detach func() bool, end func()) {
	lasts, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	detach = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return lasts, detach, func() {
		detach()
		cancel(nil)
	}
}

// work runs the resolver, and those of all fields that are asked of its result. gqlgen answers for those that panic.
func (c *call) work(ctx context.Context) (idempotency.Response, error) {
	before := len(graphql.GetErrors(ctx))
	c.data = written(c.next(context.WithValue(ctx, callKey{}, c)))
	errs := graphql.GetErrors(ctx)[before:]
	c.lost = errors.Is(context.Cause(ctx), idempotency.ErrClaimLost)
	switch {
	case !c.begun: // an argument was not valid, or an outer interceptor has turned the field away
		idempotency.Decide(ctx, idempotency.Free)
	case !c.returned:
		idempotency.Decide(ctx, idempotency.Unknown)
	case c.failure == nil:
		return newResponse(statusOK, c.stored(errs), c.opts.MaxResponse), nil
	case kept(ctx):
		return newResponse(statusFailed, c.stored(errs), c.opts.MaxResponse), nil
	}
	c.passing = fmt.Errorf("gqlgenidempotency: answer not kept: %w", errors.Join(errs, c.failure))
	if c.lost {
		c.passing = fmt.Errorf("%w: %w", idempotency.ErrClaimLost, c.passing)
	}
	return idempotency.Response{Status: statusFailed}, c.passing
}

// kept reports whether the resolver has decided to keep its failure.
func kept(ctx context.Context) bool {
	decided, _ := idempotency.Decided(ctx)
	return decided == idempotency.Keep || decided == idempotency.Tombstone
}

// written returns what a result is in the answer.
func written(result graphql.Marshaler) []byte {
	var data bytes.Buffer
	result.MarshalGQL(&data)
	return data.Bytes()
}

// marshaled is the opposite of written. By [graphql.Null], gqlgen recognises a null where the schema allows none.
func marshaled(data []byte) graphql.Marshaler {
	if string(data) == "null" {
		return graphql.Null
	}
	return graphql.WriterFunc(func(w io.Writer) { _, _ = w.Write(data) })
}
