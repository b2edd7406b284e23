// Package shop is a small GraphQL API for tests and an example. It stands for the code that gqlgen generates from a schema: it
// collects and resolves fields by the functions of package graphql that generated code calls.
package shop

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
)

//go:embed schema.graphqls
var source string

var schema = gqlparser.MustLoadSchema(&ast.Source{Name: "schema.graphqls", Input: source})

// Order is the type of the schema, without the fields that have resolvers.
type Order struct {
	ID    string
	Cents int
}

// Resolvers are the functions behind the fields. A document that selects a field without its function gets an error.
type Resolvers struct {
	Pay    func(ctx context.Context, cents int) (*Order, error)
	Refund func(ctx context.Context, order string, cents int) (*Order, error)
	Attach func(ctx context.Context, file graphql.Upload) (string, error)
	Order  func(ctx context.Context, id string) (*Order, error)

	State func(ctx context.Context) (string, error)              // of an Order
	Note  func(ctx context.Context, upper bool) (*string, error) // of an Order
}

// New returns the API, for the functions of package handler.
func New(resolvers Resolvers) graphql.ExecutableSchema { return api{resolvers} }

type api struct{ resolvers Resolvers }

func (api) Schema() *ast.Schema { return schema }

func (api) Complexity(context.Context, string, string, int, map[string]any) (int, bool) {
	return 0, false
}

// Exec returns a function that executes the operation at its first call, and says at the second that there is no more.
func (a api) Exec(ctx context.Context) graphql.ResponseHandler {
	e := execution{a.resolvers, graphql.GetOperationContext(ctx)}
	isExecuted := false
	return func(ctx context.Context) *graphql.Response {
		if isExecuted {
			return nil
		}
		isExecuted = true
		var data bytes.Buffer
		e.root(ctx).MarshalGQL(&data)
		return &graphql.Response{Data: data.Bytes()}
	}
}

type execution struct {
	resolvers Resolvers
	operation *graphql.OperationContext
}

// root resolves the fields of the operation: one after the other for a mutation, and concurrently for a query.
func (e execution) root(ctx context.Context) graphql.Marshaler {
	object := schema.Query.Name
	if e.operation.Operation.Operation == ast.Mutation {
		object = schema.Mutation.Name
	}
	ctx = graphql.WithFieldContext(ctx, &graphql.FieldContext{Object: object})
	fields := graphql.CollectFields(e.operation, e.operation.Operation.SelectionSet, []string{object})
	return e.fieldSet(ctx, object, fields, func(out *graphql.FieldSet, i int, field graphql.CollectedField) {
		ctx := graphql.WithRootFieldContext(ctx, &graphql.RootFieldContext{Object: field.Name, Field: field})
		isNonNull := field.Definition.Type.NonNull
		resolve := func(ctx context.Context) graphql.Marshaler { return e.resolve(ctx, field, nil) }
		if object == schema.Query.Name {
			out.ResolveRootConcurrently(ctx, e.operation, i, true, isNonNull, resolve)
			return
		}
		out.Values[i] = e.operation.RootResolverMiddleware(ctx, resolve)
		if isNonNull && out.Values[i] == graphql.Null {
			out.Invalids++
		}
	})
}

// order resolves the selected fields of an Order concurrently.
func (e execution) order(ctx context.Context, selected ast.SelectionSet, order *Order) graphql.Marshaler {
	fields := graphql.CollectFields(e.operation, selected, []string{"Order"})
	return e.fieldSet(ctx, "Order", fields, func(out *graphql.FieldSet, i int, field graphql.CollectedField) {
		deferred := graphql.NewDeferredGroup(ctx)
		out.ResolveConcurrently(e.operation, &deferred, i, true, field.Definition.Type.NonNull,
			func(ctx context.Context) graphql.Marshaler { return e.resolve(ctx, field, order) })
	})
}

// fieldSet calls add for each field of an object, and returns the object: null if a field is null that must not be.
func (e execution) fieldSet(ctx context.Context, object string, fields []graphql.CollectedField,
	add func(*graphql.FieldSet, int, graphql.CollectedField)) graphql.Marshaler {
	out := graphql.NewFieldSet(fields)
	for i, field := range fields {
		if field.Name == "__typename" {
			out.Values[i] = graphql.MarshalString(object)
			continue
		}
		add(out, i, field)
	}
	out.Dispatch(ctx)
	if out.Invalids > 0 {
		return graphql.Null
	}
	return out
}

// resolve resolves a field; parent is the Order that has it, or nil for a field of the operation.
func (e execution) resolve(ctx context.Context, field graphql.CollectedField, parent *Order) graphql.Marshaler {
	call := func(ctx context.Context) (any, error) { return e.call(ctx, graphql.GetFieldContext(ctx), parent) }
	return graphql.ResolveField(ctx, e.operation, field, e.fieldContext, call, nil, e.marshal, true, field.Definition.Type.NonNull)
}

// fieldContext coerces the arguments of a field. If that fails, the field is not resolved.
func (e execution) fieldContext(ctx context.Context, field graphql.CollectedField) (*graphql.FieldContext, error) {
	fc := &graphql.FieldContext{
		Object: field.ObjectDefinition.Name, Field: field, IsMethod: true, IsResolver: true,
		Args: field.ArgumentMap(e.operation.Variables),
	}
	ctx = graphql.WithFieldContext(ctx, fc)
	for name, value := range fc.Args {
		coerced, err := coerce(field.Definition.Arguments.ForName(name).Type.Name(), value)
		if err != nil {
			e.operation.Error(ctx, graphql.ErrorOnPath(graphql.WithPathContext(ctx, graphql.NewPathWithField(name)), err))
			return fc, err
		}
		fc.Args[name] = coerced
	}
	return fc, nil
}

func coerce(typeName string, value any) (any, error) {
	switch typeName {
	case "ID":
		return graphql.UnmarshalID(value)
	case "Int":
		return graphql.UnmarshalInt(value)
	case "Boolean":
		return graphql.UnmarshalBoolean(value)
	case "Upload":
		return graphql.UnmarshalUpload(value)
	case "PayInput": // of which the resolver gets the cents
		return graphql.UnmarshalInt(value.(map[string]any)["cents"])
	}
	return value, nil
}

func (e execution) call(ctx context.Context, fc *graphql.FieldContext, parent *Order) (any, error) {
	switch fc.Object + "." + fc.Field.Name {
	case "Mutation.pay":
		return e.resolvers.Pay(ctx, fc.Args["input"].(int))
	case "Mutation.refund":
		return e.resolvers.Refund(ctx, fc.Args["order"].(string), fc.Args["cents"].(int))
	case "Mutation.attach":
		return e.resolvers.Attach(ctx, fc.Args["file"].(graphql.Upload))
	case "Query.order":
		return e.resolvers.Order(ctx, fc.Args["id"].(string))
	case "Order.id":
		return parent.ID, nil
	case "Order.cents":
		return parent.Cents, nil
	case "Order.state":
		return e.resolvers.State(ctx)
	case "Order.note":
		return e.resolvers.Note(ctx, fc.Args["upper"].(bool))
	}
	return nil, fmt.Errorf("no resolver for %s.%s", fc.Object, fc.Field.Name)
}

func (e execution) marshal(ctx context.Context, selected ast.SelectionSet, result any) graphql.Marshaler {
	switch result := result.(type) {
	case *Order:
		if result != nil {
			return e.order(ctx, selected, result)
		}
		if t := graphql.GetFieldContext(ctx).Field.Definition.Type; t.NonNull {
			graphql.AddInvalidNullError(ctx, t.String())
		}
	case *string:
		if result != nil {
			return graphql.MarshalString(*result)
		}
	case string:
		return graphql.MarshalString(result)
	case int:
		return graphql.MarshalInt(result)
	}
	return graphql.Null
}
