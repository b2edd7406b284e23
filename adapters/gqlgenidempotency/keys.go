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

// isIdempotentDirective reports whether d is directive @idempotent(key: String!) on FIELD.
func isIdempotentDirective(d *ast.DirectiveDefinition) bool {
	key := d.Arguments.ForName(argumentName)
	return key != nil && key.Type.String() == "String!" && slices.Contains(d.Locations, ast.LocationField)
}

// keysByAlias has the keys of the guarded fields of a document, by the names of the fields in the answer.
type keysByAlias map[string]string

// findKeys returns the keys of a mutation document, or a refusal of the document.
func (e *Extension) findKeys(op *graphql.OperationContext) (keysByAlias, *idempotency.Error) {
	found, guardedFields := keysByAlias{}, map[*ast.Field]bool{}
	var fieldsWithoutKey, allFields []graphql.CollectedField
	for _, field := range graphql.CollectFields(op, op.Operation.SelectionSet, []string{e.schema.Mutation.Name}) {
		if strings.HasPrefix(field.Name, "__") {
			continue
		}
		allFields = append(allFields, field)
		directive := field.Directives.ForName(directiveName)
		if directive == nil {
			fieldsWithoutKey = append(fieldsWithoutKey, field)
			continue
		}
		id, err := parseDirectiveKey(directive, op.Variables)
		if err != nil {
			return nil, refuseInvalidKey(field.Alias, err)
		}
		found[field.Alias], guardedFields[field.Field] = id, true
	}
	strays := &strayKeySearch{variablesByName: op.Variables, guardedFields: guardedFields, seenFragments: map[string]bool{}}
	if stray := strays.findStray(op.Operation.SelectionSet); stray != nil {
		return nil, refuseInvalidKey(stray.Alias, errors.New("the key must be on a field of the mutation itself, and on its first "+
			"occurrence in the document"))
	}
	header := op.Headers.Values(headerName)
	switch {
	case len(header) == 0 || len(fieldsWithoutKey) == 0:
		return found, e.checkRequired(fieldsWithoutKey)
	case len(allFields) > 1:
		reason := fmt.Errorf("the header field %s is the key of one mutation field, and the document has %d: give each one its "+
			"key by @%s", headerName, len(allFields), directiveName)
		return nil, refuseInvalidKey(fieldsWithoutKey[0].Alias, reason)
	}
	id, err := idempotency.ParseKey(header)
	if err != nil {
		return nil, refuseInvalidKey(fieldsWithoutKey[0].Alias, err)
	}
	found[fieldsWithoutKey[0].Alias] = id
	return found, nil
}

// checkRequired returns a refusal if a field without a key needs a key.
func (e *Extension) checkRequired(fieldsWithoutKey []graphql.CollectedField) *idempotency.Error {
	for _, field := range fieldsWithoutKey {
		if e.opts.Required(field.Name) {
			return refuseMissingKey(field.Name)
		}
	}
	return nil
}

var quoteEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// parseDirectiveKey returns the key of a directive. The rules are the rules for the header field with the key in quotes.
func parseDirectiveKey(d *ast.Directive, variables map[string]any) (string, error) {
	key, _ := d.ArgumentMap(variables)[argumentName].(string)
	return idempotency.ParseKey([]string{`"` + quoteEscaper.Replace(key) + `"`})
}

// strayKeySearch looks for a key that the execution would ignore, because its field is below the mutation or is merged into
// another field. Selections that @skip or @include leaves out may have any key, because the selections are not executed.
type strayKeySearch struct {
	variablesByName map[string]any
	guardedFields   map[*ast.Field]bool
	seenFragments   map[string]bool // names of fragments
}

func (s *strayKeySearch) findStray(set ast.SelectionSet) *ast.Field {
	for _, selection := range set {
		var children ast.SelectionSet
		switch node := selection.(type) {
		case *ast.Field:
			if s.isLeftOut(node.Directives) {
				continue
			}
			if node.Directives.ForName(directiveName) != nil && !s.guardedFields[node] {
				return node
			}
			children = node.SelectionSet
		case *ast.InlineFragment:
			if s.isLeftOut(node.Directives) {
				continue
			}
			children = node.SelectionSet
		case *ast.FragmentSpread:
			if s.isLeftOut(node.Directives) || s.seenFragments[node.Name] {
				continue
			}
			s.seenFragments[node.Name] = true
			children = node.Definition.SelectionSet
		}
		if stray := s.findStray(children); stray != nil {
			return stray
		}
	}
	return nil
}

// isLeftOut reports whether @skip or @include exclude a selection from the execution (GraphQL specification, section 3.13).
func (s *strayKeySearch) isLeftOut(directives ast.DirectiveList) bool {
	skip, include := directives.ForName("skip"), directives.ForName("include")
	return skip != nil && skip.ArgumentMap(s.variablesByName)["if"] == true ||
		include != nil && include.ArgumentMap(s.variablesByName)["if"] == false
}

func refuseInvalidKey(field string, reason error) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-invalid", Retry: idempotency.RetryNewKey,
		Detail: fmt.Sprintf("Nothing was executed. Key of %s: %s.", field, reason),
		Err:    fmt.Errorf("%w: %w", idempotency.ErrKeyInvalid, reason),
	}
}

func refuseMissingKey(field string) *idempotency.Error {
	return &idempotency.Error{
		Status: http.StatusBadRequest, Code: "key-missing", Retry: idempotency.RetryNewKey,
		Detail: fmt.Sprintf("Nothing was executed. The field %s needs an idempotency key, such as a random UUID: "+
			"write @%s(%s: \"...\") behind its arguments.", field, directiveName, argumentName),
		Err: idempotency.ErrKeyMissing,
	}
}
