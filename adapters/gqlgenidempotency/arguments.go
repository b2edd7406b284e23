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

// fingerprintArguments returns a digest of the arguments, by which a retry is recognized. fingerprintArguments also sets
// selectionDigest, which is separate from the fingerprint because a retry with a different selection is the same operation.
func (c *guardedField) fingerprintArguments() ([]byte, error) {
	op := graphql.GetOperationContext(c.fieldContext)
	coercer := inputCoercer{c.schema, op.Variables}
	arguments, err := coercer.coerceArguments(c.field.Field)
	if err != nil {
		return nil, err
	}
	selected, err := coercer.describeSelection(op, c.field)
	if err != nil {
		return nil, err
	}
	selection, err := hashJSON(selected)
	if err != nil {
		return nil, err
	}
	c.selectionDigest = selection.String()
	payload, err := hashJSON(arguments)
	return payload[:], err
}

// inputCoercer coerces input values (GraphQL specification, section 6.4.1).
type inputCoercer struct {
	schema          *ast.Schema
	variablesByName map[string]any
}

// coerceArguments returns the coerced arguments of a field. Arguments with their default value are left out, because a client may
// leave them out, too. A new argument with a default value therefore changes no fingerprint of earlier requests.
func (in inputCoercer) coerceArguments(field *ast.Field) (map[string]any, error) {
	coerced := map[string]any{}
	for _, def := range field.Definition.Arguments {
		argument := field.Arguments.ForName(def.Name)
		if argument == nil {
			continue
		}
		if _, given := in.variablesByName[argument.Value.Raw]; argument.Value.Kind == ast.Variable && !given {
			continue
		}
		value, err := argument.Value.Value(in.variablesByName)
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", def.Name, err)
		}
		if err := in.putUnlessDefault(coerced, def.Name, def.Type, value, def.DefaultValue); err != nil {
			return nil, fmt.Errorf("argument %s: %w", def.Name, err)
		}
	}
	return coerced, nil
}

// putUnlessDefault adds the coerced value to object, unless the value equals byDefault.
func (in inputCoercer) putUnlessDefault(object map[string]any, name string, t *ast.Type, value any, byDefault *ast.Value) error {
	value, err := in.coerceValue(t, value)
	if err != nil {
		return err
	}
	object[name] = value
	if byDefault == nil {
		return nil
	}
	same, err := in.isDefaultValue(t, value, byDefault)
	if same {
		delete(object, name)
	}
	return err
}

func (in inputCoercer) isDefaultValue(t *ast.Type, coerced any, byDefault *ast.Value) (bool, error) {
	value, err := byDefault.Value(nil)
	if err != nil {
		return false, err
	}
	if value, err = in.coerceValue(t, value); err != nil {
		return false, err
	}
	want, err := hashJSON(value)
	if err != nil {
		return false, err
	}
	have, err := hashJSON(coerced)
	return have == want, err
}

// coerceValue coerces a value of type t.
func (in inputCoercer) coerceValue(t *ast.Type, value any) (any, error) {
	if value == nil {
		return nil, nil
	}
	if t.Elem != nil {
		return in.coerceList(t.Elem, value)
	}
	if upload, ok := value.(graphql.Upload); ok {
		return describeUpload(upload)
	}
	def := in.schema.Types[t.NamedType]
	object, ok := value.(map[string]any)
	switch {
	case def.Kind == ast.InputObject && ok:
		return in.coerceObject(def, object)
	case t.NamedType == "ID":
		return fmt.Sprint(value), nil // a client may write an ID as a number
	}
	return value, nil
}

// coerceList coerces a list. A single value stands for a list with a single element.
func (in inputCoercer) coerceList(elem *ast.Type, value any) (any, error) {
	values := reflect.ValueOf(value) // []any, or a single value by gqlparser
	if values.Kind() != reflect.Slice {
		coerced, err := in.coerceValue(elem, value)
		return []any{coerced}, err
	}
	coerced := make([]any, values.Len())
	for i := range coerced {
		var err error
		if coerced[i], err = in.coerceValue(elem, values.Index(i).Interface()); err != nil {
			return nil, err
		}
	}
	return coerced, nil
}

func (in inputCoercer) coerceObject(def *ast.Definition, object map[string]any) (any, error) {
	coerced := map[string]any{}
	for _, field := range def.Fields {
		value, given := object[field.Name]
		if !given {
			continue
		}
		if err := in.putUnlessDefault(coerced, field.Name, field.Type, value, field.DefaultValue); err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return coerced, nil
}

// describeUpload returns name, type and hash of an uploaded file, and rewinds the file for the resolver.
func describeUpload(file graphql.Upload) (any, error) {
	content := sha256.New()
	if _, err := io.Copy(content, file.File); err != nil {
		return nil, err
	}
	_, err := file.File.Seek(0, io.SeekStart)
	return []string{file.Filename, file.ContentType, hex.EncodeToString(content.Sum(nil))}, err
}

// describeSelection returns the selection of field in a form that is independent of the layout of the document. Fragments, @skip
// and @include are resolved.
func (in inputCoercer) describeSelection(op *graphql.OperationContext, field graphql.CollectedField) ([]any, error) {
	var selected []any
	for _, child := range graphql.CollectFields(op, field.Selections, nil) {
		arguments := map[string]any{}
		if child.Definition != nil { // __typename has none
			var err error
			if arguments, err = in.coerceArguments(child.Field); err != nil {
				return nil, err
			}
		}
		childSelection, err := in.describeSelection(op, child)
		if err != nil {
			return nil, err
		}
		selected = append(selected, []any{child.ObjectDefinition.Name, child.Alias, child.Name, arguments, childSelection})
	}
	return selected, nil
}

// jsonRequest is a request with a JSON body, for fingerprint.JSON.
var jsonRequest = &http.Request{URL: new(url.URL), Header: http.Header{"Content-Type": {"application/json"}}}

// hashJSON returns the hash of the canonical JSON of value.
func hashJSON(value any) (idempotency.Fingerprint, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return idempotency.Fingerprint{}, err
	}
	return fingerprint.JSON(jsonRequest, text)
}
