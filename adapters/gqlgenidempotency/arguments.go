package gqlgenidempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// fingerprint returns what distinguishes the field from others with its key: its arguments. It also finds out what is
// asked of the result, which is no part of the fingerprint.
func (c *call) fingerprint() ([]byte, error) {
	op := graphql.GetOperationContext(c.ctx)
	of := inputs{c.schema, op.Variables}
	arguments, err := of.arguments(c.field.Field)
	if err != nil {
		return nil, err
	}
	selected, err := of.selection(op, c.field)
	if err != nil {
		return nil, err
	}
	selection, err := digest(selected)
	if err != nil {
		return nil, err
	}
	c.selection = selection.String()
	payload, err := digest(arguments)
	return payload[:], err
}

// inputs coerces input values, see section 6.4.1 of the specification of GraphQL.
type inputs struct {
	schema    *ast.Schema
	variables map[string]any
}

// arguments returns the coerced arguments of a field. One that has its default value is left out, as it may be by the
// client. So a new argument with a default value does not change the fingerprints of the requests before it.
func (in inputs) arguments(field *ast.Field) (map[string]any, error) {
	coerced := map[string]any{}
	for _, def := range field.Definition.Arguments {
		argument := field.Arguments.ForName(def.Name)
		if argument == nil {
			continue
		}
		if _, given := in.variables[argument.Value.Raw]; argument.Value.Kind == ast.Variable && !given {
			continue
		}
		value, err := argument.Value.Value(in.variables)
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", def.Name, err)
		}
		if err := in.put(coerced, def.Name, def.Type, value, def.DefaultValue); err != nil {
			return nil, fmt.Errorf("argument %s: %w", def.Name, err)
		}
	}
	return coerced, nil
}

// put adds a value to an object, unless it is its default value.
func (in inputs) put(object map[string]any, name string, t *ast.Type, value any, byDefault *ast.Value) error {
	value, err := in.value(t, value)
	if err != nil {
		return err
	}
	object[name] = value
	if byDefault == nil {
		return nil
	}
	same, err := in.isDefault(t, value, byDefault)
	if same {
		delete(object, name)
	}
	return err
}

func (in inputs) isDefault(t *ast.Type, coerced any, byDefault *ast.Value) (bool, error) {
	value, err := byDefault.Value(nil)
	if err != nil {
		return false, err
	}
	if value, err = in.value(t, value); err != nil {
		return false, err
	}
	want, err := digest(value)
	if err != nil {
		return false, err
	}
	have, err := digest(coerced)
	return have == want, err
}

// value coerces a value of a type.
func (in inputs) value(t *ast.Type, value any) (any, error) {
	if value == nil {
		return nil, nil
	}
	if t.Elem != nil {
		return in.list(t.Elem, value)
	}
	if upload, ok := value.(graphql.Upload); ok {
		return uploaded(upload)
	}
	def := in.schema.Types[t.NamedType]
	object, ok := value.(map[string]any)
	switch {
	case def.Kind == ast.InputObject && ok:
		return in.object(def, object)
	case t.NamedType == "ID":
		return fmt.Sprint(value), nil // it may be written as a number
	}
	return value, nil
}

// list coerces a list. A single value stands for a list with this element.
func (in inputs) list(elem *ast.Type, value any) (any, error) {
	values := reflect.ValueOf(value) // []any, or what gqlparser has made of a single value
	if values.Kind() != reflect.Slice {
		coerced, err := in.value(elem, value)
		return []any{coerced}, err
	}
	coerced := make([]any, values.Len())
	for i := range coerced {
		var err error
		if coerced[i], err = in.value(elem, values.Index(i).Interface()); err != nil {
			return nil, err
		}
	}
	return coerced, nil
}

func (in inputs) object(def *ast.Definition, object map[string]any) (any, error) {
	coerced := map[string]any{}
	for _, field := range def.Fields {
		value, given := object[field.Name]
		if !given {
			continue
		}
		if err := in.put(coerced, field.Name, field.Type, value, field.DefaultValue); err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return coerced, nil
}

// uploaded tells a file from others by its name, type and content. The resolver then reads it from the beginning.
func uploaded(file graphql.Upload) (any, error) {
	content := sha256.New()
	if _, err := io.Copy(content, file.File); err != nil {
		return nil, err
	}
	_, err := file.File.Seek(0, io.SeekStart)
	return []string{file.Filename, file.ContentType, hex.EncodeToString(content.Sum(nil))}, err
}

// selection describes what is asked of the result of a field: the same for documents that differ only in how they are
// written. Fragments, @skip and @include are resolved.
func (in inputs) selection(op *graphql.OperationContext, field graphql.CollectedField) ([]any, error) {
	var selected []any
	for _, child := range graphql.CollectFields(op, field.Selections, nil) {
		arguments := map[string]any{}
		if child.Definition != nil { // __typename has none
			var err error
			if arguments, err = in.arguments(child.Field); err != nil {
				return nil, err
			}
		}
		within, err := in.selection(op, child)
		if err != nil {
			return nil, err
		}
		selected = append(selected, []any{child.ObjectDefinition.Name, child.Alias, child.Name, arguments, within})
	}
	return selected, nil
}

// asJSON is a request that has a body of JSON.
var asJSON = &http.Request{URL: new(url.URL), Header: http.Header{"Content-Type": {"application/json"}}}

// digest returns the same for values that are the same JSON.
func digest(value any) (idempotency.Fingerprint, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return idempotency.Fingerprint{}, err
	}
	return fingerprint.JSON(asJSON, text)
}
