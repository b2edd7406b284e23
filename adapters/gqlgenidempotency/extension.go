package gqlgenidempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
)

// UserFunc returns the ID of the authenticated user. The keys of different users are separate. If UserFunc returns an error or an
// empty ID, the field is refused with USER_UNKNOWN. If the error is a [*gqlerror.Error], the field is refused with that error.
type UserFunc func(context.Context) (string, error)

// SingleUser is the UserFunc of a service with a single caller, or without any way to tell callers apart. Several callers share
// their keys under SingleUser, so a caller may get the answer to the mutation of another caller.
func SingleUser(context.Context) (string, error) { return "single", nil }

// Options are the settings of an [Extension]. The zero value of each field is its default.
type Options struct {
	// Required reports whether a mutation field, such as "createOrder", needs a key. A document with the field and without a key
	// is refused with KEY_MISSING before any execution. Nil means that keys are optional for all fields. A field with a key is
	// guarded even if the key is optional.
	Required func(field string) bool

	// MaxResponse is the size of the largest answer of a field to store, in bytes. A larger answer is sent, and retries are refused
	// with NOT_REPLAYABLE. Zero means 1 MiB.
	MaxResponse int64
}

// Extension makes the mutation fields of a single gqlgen server safe to repeat. Pass the Extension to the method Use of the
// server. An Extension is safe for concurrent use.
type Extension struct {
	runner *idempotency.Runner
	userOf UserFunc
	opts   Options
	schema *ast.Schema // set by Validate
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationContextMutator
	graphql.RootFieldInterceptor
	graphql.FieldInterceptor
	graphql.ResponseInterceptor
} = (*Extension)(nil)

// New returns an Extension that executes operations with runner. The Extension calls user to identify the caller of each guarded
// field. The error reports all faults of the arguments.
func New(runner *idempotency.Runner, user UserFunc, opts Options) (*Extension, error) {
	var faults []error
	if runner == nil {
		faults = append(faults, errors.New("gqlgenidempotency: Runner is nil"))
	}
	if user == nil {
		faults = append(faults, errors.New("gqlgenidempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	if opts.MaxResponse < 0 {
		faults = append(faults, fmt.Errorf("gqlgenidempotency: MaxResponse is %d: it must not be negative", opts.MaxResponse))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	opts.MaxResponse = cmp.Or(opts.MaxResponse, 1<<20)
	if opts.Required == nil {
		opts.Required = func(string) bool { return false }
	}
	return &Extension{runner: runner, userOf: user, opts: opts}, nil
}

const extensionName = "Idempotency"

// ExtensionName implements [graphql.HandlerExtension].
func (e *Extension) ExtensionName() string { return extensionName }

// Validate implements [graphql.HandlerExtension]. Validate returns an error for a schema without mutations, and for a schema that
// declares the directive differently from the documentation of the package. The method Use of the server panics with the error.
func (e *Extension) Validate(es graphql.ExecutableSchema) error {
	e.schema = es.Schema()
	if e.schema.Mutation == nil {
		return errors.New("gqlgenidempotency: the schema has no mutations")
	}
	if d := e.schema.Directives[directiveName]; d != nil && !isIdempotentDirective(d) {
		return errors.New("gqlgenidempotency: the schema must say: directive @idempotent(key: String!) on FIELD")
	}
	return nil
}

// MutateOperationContext implements [graphql.OperationContextMutator]. MutateOperationContext reads the keys of a document, or
// refuses the document before the execution.
func (e *Extension) MutateOperationContext(_ context.Context, op *graphql.OperationContext) *gqlerror.Error {
	if op.Operation.Operation != ast.Mutation {
		return nil
	}
	found, refusal := e.findKeys(op)
	if refusal != nil {
		return newRefusal(refusal)
	}
	op.Stats.SetExtension(extensionName, found)
	return nil
}

// InterceptRootField implements [graphql.RootFieldInterceptor]. InterceptRootField answers fields with a key.
func (e *Extension) InterceptRootField(ctx context.Context, next graphql.RootResolver) graphql.Marshaler {
	found, _ := graphql.GetOperationContext(ctx).Stats.GetExtension(extensionName).(keysByAlias)
	field := graphql.GetRootFieldContext(ctx).Field
	id, guarded := found[field.Alias]
	if !guarded {
		return next(ctx)
	}
	c := &guardedField{Extension: e, fieldContext: ctx, field: field, callNext: next}
	data, err := c.execute(id)
	if err != nil {
		graphql.AddError(ctx, placeOnField(err, field))
		return graphql.Null
	}
	return data
}

// InterceptField implements [graphql.FieldInterceptor]. InterceptField records whether the resolver of a guarded field was called
// and has returned.
func (e *Extension) InterceptField(ctx context.Context, next graphql.Resolver) (any, error) {
	field := graphql.GetFieldContext(ctx)
	if field.Object != e.schema.Mutation.Name {
		return next(ctx)
	}
	c, guarded := ctx.Value(guardedContextKey{}).(*guardedField)
	if !guarded || c.field.Field != field.Field.Field {
		return next(ctx)
	}
	c.hasBegun = true
	result, err := next(ctx)
	c.hasReturned, c.resolverErr = true, err
	return result, err
}

// InterceptResponse implements [graphql.ResponseInterceptor]. InterceptResponse adds the errors of replays and the marker
// "replayed" to the response. The errors bypass the ErrorPresenter, because they were presented before they were stored.
func (e *Extension) InterceptResponse(ctx context.Context, next graphql.ResponseHandler) *graphql.Response {
	replayed := new(replayedFields)
	resp := next(context.WithValue(ctx, replaysContextKey{}, replayed))
	if resp == nil || len(replayed.aliases) == 0 {
		return resp
	}
	resp.Errors = append(resp.Errors, replayed.fieldErrors...)
	if resp.Extensions == nil {
		resp.Extensions = make(map[string]any, 1)
	}
	resp.Extensions["idempotency"] = map[string]any{"replayed": replayed.aliases}
	return resp
}
