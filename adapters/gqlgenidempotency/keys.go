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
	strays := &straySearch{variables: op.Variables, guarded: guarded, seen: map[string]bool{}}
	if stray := strays.find(op.Operation.SelectionSet); stray != nil {
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

// straySearch looks for a field whose key would be ignored: it is no mutation field, or is merged into another one. What
// @skip or @include leaves out is not executed, so its key does not matter.
type straySearch struct {
	variables map[string]any
	guarded   map[*ast.Field]bool
	seen      map[string]bool // names of fragments
}

func (s *straySearch) find(set ast.SelectionSet) *ast.Field {
	for _, selection := range set {
		var within ast.SelectionSet
		switch node := selection.(type) {
		case *ast.Field:
			if s.leavesOut(node.Directives) {
				continue
			}
			if node.Directives.ForName(directiveName) != nil && !s.guarded[node] {
				return node
			}
			within = node.SelectionSet
		case *ast.InlineFragment:
			if s.leavesOut(node.Directives) {
				continue
			}
			within = node.SelectionSet
		case *ast.FragmentSpread:
			if s.leavesOut(node.Directives) || s.seen[node.Name] {
				continue
			}
			s.seen[node.Name] = true
			within = node.Definition.SelectionSet
		}
		if stray := s.find(within); stray != nil {
			return stray
		}
	}
	return nil
}

// leavesOut reports whether a selection with these directives is not executed (section 3.13 of the specification).
func (s *straySearch) leavesOut(directives ast.DirectiveList) bool {
	skip, include := directives.ForName("skip"), directives.ForName("include")
	return skip != nil && skip.ArgumentMap(s.variables)["if"] == true ||
		include != nil && include.ArgumentMap(s.variables)["if"] == false
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
