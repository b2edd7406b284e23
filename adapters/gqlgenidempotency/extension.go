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

// UserFunc returns the ID of the authenticated caller of an operation. Different users never share a key. An error or an
// empty ID refuses the field with USER_UNKNOWN. If the error is a [*gqlerror.Error], that is the answer.
type UserFunc func(context.Context) (string, error)

// SingleUser is the UserFunc of a service that has one caller only, or cannot tell its callers apart. If there are
// several, they share their keys, and one may get the answer to another.
func SingleUser(context.Context) (string, error) { return "single", nil }

// Options are the settings of an [Extension]. The zero value of each field is its default.
type Options struct {
	// Required reports whether a mutation field, such as "createOrder", needs a key. A document that has the field without
	// a key is refused with KEY_MISSING, and nothing of it is executed. Nil means that no field needs one. A field with a
	// key is guarded, whether it needs the key or not.
	Required func(field string) bool

	// MaxResponse is the largest answer of a field that is stored, in bytes. A larger one is sent, and its operation is not
	// run again: retries are refused as not replayable. Zero means 1 MiB.
	MaxResponse int64
}

// Extension makes the mutation fields of one gqlgen server safe to send again. Give it to the server's Use. It is safe
// for concurrent use.
type Extension struct {
	runner *idempotency.Runner
	user   UserFunc
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

// New returns an Extension that runs operations by runner and calls user for the caller of each guarded field. The error
// reports every fault at once.
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
	return &Extension{runner: runner, user: user, opts: opts}, nil
}

const extensionName = "Idempotency"

// ExtensionName implements [graphql.HandlerExtension].
func (e *Extension) ExtensionName() string { return extensionName }

// Validate implements [graphql.HandlerExtension]. The server's Use panics with its error. It reports a schema without
// mutations, and one whose directive is not the one that [Extension] reads.
func (e *Extension) Validate(es graphql.ExecutableSchema) error {
	e.schema = es.Schema()
	if e.schema.Mutation == nil {
		return errors.New("gqlgenidempotency: the schema has no mutations")
	}
	if d := e.schema.Directives[directiveName]; d != nil && !isOurs(d) {
		return errors.New("gqlgenidempotency: the schema must say: directive @idempotent(key: String!) on FIELD")
	}
	return nil
}

// MutateOperationContext implements [graphql.OperationContextMutator]. It finds the keys of a document, or refuses the
// document before anything of it is executed.
func (e *Extension) MutateOperationContext(_ context.Context, op *graphql.OperationContext) *gqlerror.Error {
	if op.Operation.Operation != ast.Mutation {
		return nil
	}
	found, refused := e.findKeys(op)
	if refused != nil {
		return refusal(refused)
	}
	op.Stats.SetExtension(extensionName, found)
	return nil
}

// InterceptRootField implements [graphql.RootFieldInterceptor]. It answers guarded fields.
func (e *Extension) InterceptRootField(ctx context.Context, next graphql.RootResolver) graphql.Marshaler {
	found, _ := graphql.GetOperationContext(ctx).Stats.GetExtension(extensionName).(keys)
	field := graphql.GetRootFieldContext(ctx).Field
	id, guarded := found[field.Alias]
	if !guarded {
		return next(ctx)
	}
	c := &call{Extension: e, ctx: ctx, field: field, next: next}
	data, err := c.answer(id)
	if err != nil {
		graphql.AddError(ctx, onField(err, field))
		return graphql.Null
	}
	return data
}

// InterceptField implements [graphql.FieldInterceptor]. It learns what became of the resolver of a guarded field.
func (e *Extension) InterceptField(ctx context.Context, next graphql.Resolver) (any, error) {
	field := graphql.GetFieldContext(ctx)
	if field.Object != e.schema.Mutation.Name {
		return next(ctx)
	}
	c, guarded := ctx.Value(callKey{}).(*call)
	if !guarded || c.field.Field != field.Field.Field {
		return next(ctx)
	}
	c.begun = true
	result, err := next(ctx)
	c.returned, c.failure = true, err
	return result, err
}

// InterceptResponse implements [graphql.ResponseInterceptor]. It adds what replays have beside their data: errors, which
// no ErrorPresenter is to present again, and a mark.
func (e *Extension) InterceptResponse(ctx context.Context, next graphql.ResponseHandler) *graphql.Response {
	r := new(replays)
	resp := next(context.WithValue(ctx, replaysKey{}, r))
	if resp == nil || len(r.fields) == 0 {
		return resp
	}
	resp.Errors = append(resp.Errors, r.errors...)
	if resp.Extensions == nil {
		resp.Extensions = make(map[string]any, 1)
	}
	resp.Extensions["idempotency"] = map[string]any{"replayed": r.fields}
	return resp
}
