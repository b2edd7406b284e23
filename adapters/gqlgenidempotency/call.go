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

// guardedField is the state of a guarded mutation field.
type guardedField struct {
	*Extension
	fieldContext    context.Context
	field           graphql.CollectedField
	callNext        graphql.RootResolver
	selectionDigest string // identifies the selected fields of the result

	resolverProgress
	fieldResult
}

// resolverProgress is the progress of the resolver, which InterceptField reports.
type resolverProgress struct {
	hasBegun    bool // the resolver was called
	hasReturned bool // the resolver has returned without a panic
	resolverErr error
}

// fieldResult is the result of the resolver.
type fieldResult struct {
	data          []byte
	unstorableErr error // the reason not to store the answer
	claimLost     bool  // the context of the resolver ended because the claim was lost
}

type guardedContextKey struct{}

// errClientLeft ends an operation whose client left before the resolver began.
var errClientLeft = errors.New("gqlgenidempotency: client left before the resolver began")

// execute runs the operation with the key id, and returns the result of the resolver or the replay of a stored result. The error
// is a refusal.
func (c *guardedField) execute(id string) (graphql.Marshaler, *gqlerror.Error) {
	user, err := c.userOf(c.fieldContext)
	if err != nil || user == "" {
		return nil, refuseUnknownUser(err)
	}
	payload, err := c.fingerprintArguments()
	if err != nil {
		return nil, newRefusal(refuseInvalidRequest(err))
	}
	key := idempotency.Key{User: user, Endpoint: "graphql " + c.schema.Mutation.Name + "." + c.field.Name, ID: id}
	ctx, detach, end := newOperationContext(c.fieldContext)
	defer end()
	resp, replayed, err := c.runner.Do(ctx, key, payload, func(ctx context.Context) (idempotency.Response, error) {
		if !detach() {
			idempotency.Decide(ctx, idempotency.Free)
			c.unstorableErr = errClientLeft
			return idempotency.Response{}, errClientLeft
		}
		return c.runResolver(ctx)
	})
	switch {
	case replayed:
		return c.sendReplay(resp)
	case err != nil && (err != c.unstorableErr || c.claimLost):
		return nil, newRefusal(toRefusal(err))
	}
	return unmarshalResult(c.data), nil
}

// newOperationContext returns a context that ends with ctx until the call of detach. A client that leaves thus ends the wait for
// another attempt, but leaves the resolver running. detach returns false if ctx has already ended.
func newOperationContext(ctx context.Context) (operationContext context.Context, detach func() bool, end func()) {
	operationContext, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	detach = context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return operationContext, detach, func() {
		detach()
		cancel(nil)
	}
}

// runResolver runs the resolver of the field, and the resolvers of all selected fields of the result. gqlgen recovers from
// panics of resolvers and turns panics into errors.
func (c *guardedField) runResolver(ctx context.Context) (idempotency.Response, error) {
	errorCount := len(graphql.GetErrors(ctx))
	c.data = marshalResult(c.callNext(context.WithValue(ctx, guardedContextKey{}, c)))
	errs := graphql.GetErrors(ctx)[errorCount:]
	c.claimLost = errors.Is(context.Cause(ctx), idempotency.ErrClaimLost)
	switch {
	case !c.hasBegun: // an argument is invalid, or an outer interceptor has rejected the field
		idempotency.Decide(ctx, idempotency.Free)
	case !c.hasReturned:
		idempotency.Decide(ctx, idempotency.Unknown)
	case c.resolverErr == nil:
		return newResponse(statusSucceeded, c.newStoredAnswer(errs), c.opts.MaxResponse), nil
	case keepsFailure(ctx):
		return newResponse(statusFailed, c.newStoredAnswer(errs), c.opts.MaxResponse), nil
	}
	c.unstorableErr = fmt.Errorf("gqlgenidempotency: answer not kept: %w", errors.Join(errs, c.resolverErr))
	if c.claimLost {
		c.unstorableErr = fmt.Errorf("%w: %w", idempotency.ErrClaimLost, c.unstorableErr)
	}
	return idempotency.Response{Status: statusFailed}, c.unstorableErr
}

// keepsFailure reports whether the resolver has decided that its error is the answer of the operation.
func keepsFailure(ctx context.Context) bool {
	decided, _ := idempotency.Decided(ctx)
	return decided == idempotency.Keep || decided == idempotency.Tombstone
}

// marshalResult returns the JSON of a result.
func marshalResult(result graphql.Marshaler) []byte {
	var data bytes.Buffer
	result.MarshalGQL(&data)
	return data.Bytes()
}

// unmarshalResult returns a result with the JSON data. gqlgen recognizes null in place of a non-null type only as [graphql.Null].
func unmarshalResult(data []byte) graphql.Marshaler {
	if string(data) == "null" {
		return graphql.Null
	}
	return graphql.WriterFunc(func(w io.Writer) { _, _ = w.Write(data) })
}
