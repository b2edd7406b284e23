package gqlgenidempotency

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/idempotency-go/idempotency"
)

const (
	directiveName = "idempotent"
	argumentName  = "key"
	headerName    = "Idempotency-Key"
)

// isOurs reports whether d is directive @idempotent(key: String!) on FIELD.
func isOurs(d *ast.DirectiveDefinition) bool {
	key := d.Arguments.ForName(argumentName)
	return key != nil && key.Type.String() == "String!" && slices.Contains(d.Locations, ast.LocationField)
}

// keys has the keys of the guarded fields of an operation, by the names of the fields in the answer.
type keys map[string]string

// findKeys returns the keys of a mutation, or why it is refused.
func (e *Extension) findKeys(op *graphql.OperationContext) (keys, *idempotency.Error) {
	found, guarded := keys{}, map[*ast.Field]bool{}
	var bare, all []graphql.CollectedField
	for _, field := range graphql.CollectFields(op, op.Operation.SelectionSet, []string{e.schema.Mutation.Name}) {
		if strings.HasPrefix(field.Name, "__") {
			continue
		}
		all = append(all, field)
		directive := field.Directives.ForName(directiveName)
		if directive == nil {
			bare = append(bare, field)
			continue
		}
		id, err := directiveKey(directive, op.Variables)
		if err != nil {
			return nil, keyInvalid(field.Alias, err)
		}
		found[field.Alias], guarded[field.Field] = id, true
	}
	if stray := strayField(op.Operation.SelectionSet, guarded, map[string]bool{}); stray != nil {
		return nil, keyInvalid(stray.Alias, errors.New("the key must be on a field of the mutation itself, and on its first "+
			"occurrence in the document"))
	}
	header := op.Headers.Values(headerName)
	switch {
	case len(header) == 0 || len(bare) == 0:
		return found, e.missing(bare)
	case len(all) > 1:
		return nil, keyInvalid(bare[0].Alias, fmt.Errorf("the header field %s is the key of one mutation field, and the "+
			"document has %d: give each one its key by @%s", headerName, len(all), directiveName))
	}
	id, err := idempotency.ParseKey(header)
	if err != nil {
		return nil, keyInvalid(bare[0].Alias, err)
	}
	found[bare[0].Alias] = id
	return found, nil
}

// missing refuses a document in which one of the fields without a key needs one.
func (e *Extension) missing(bare []graphql.CollectedField) *idempotency.Error {
	for _, field := range bare {
		if e.opts.Required(field.Name) {
			return keyMissing(field.Name)
		}
	}
	return nil
}

var quote = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// directiveKey returns the key of a directive, by the rules for a header field. There, any key may stand in quotes.
func directiveKey(d *ast.Directive, variables map[string]any) (string, error) {
	key, _ := d.ArgumentMap(variables)[argumentName].(string)
	return idempotency.ParseKey([]string{`"` + quote.Replace(key) + `"`})
}

// strayField returns a field whose key would be ignored: it is no mutation field, or is merged into another one.
func strayField(set ast.SelectionSet, guarded map[*ast.Field]bool, seen map[string]bool) *ast.Field {
	for _, selection := range set {
		var within ast.SelectionSet
		switch s := selection.(type) {
		case *ast.Field:
			if s.Directives.ForName(directiveName) != nil && !guarded[s] {
				return s
			}
			within = s.SelectionSet
		case *ast.InlineFragment:
			within = s.SelectionSet
		case *ast.FragmentSpread:
			if seen[s.Name] {
				continue
			}
			seen[s.Name] = true
			within = s.Definition.SelectionSet
		}
		if stray := strayField(within, guarded, seen); stray != nil {
			return stray
		}
	}
	return nil
}

func keyInvalid(field string, reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Detail: fmt.Sprintf("Nothing was executed. Key of %s: %s.", field, reason),
		Err:    fmt.Errorf("%w: %w", idempotency.ErrKeyInvalid, reason),
	}
}

func keyMissing(field string) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-missing", Retry: idempotency.RetryNewKey,
		Detail: fmt.Sprintf("Nothing was executed. The field %s needs an idempotency key, such as a random UUID: "+
			"write @%s(%s: \"...\") behind its arguments.", field, directiveName, argumentName),
		Err: idempotency.ErrKeyMissing,
	}
}
