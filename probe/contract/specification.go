package contract

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// KeyUse is what a description says of the key of an operation.
type KeyUse string

const (
	// KeyRequired means that the header parameter of the key is required.
	KeyRequired KeyUse = "required"

	// KeyOptional means that the operation has a header parameter for the key.
	KeyOptional KeyUse = "optional"

	// KeyUndeclared means that the operation has no parameter for the key.
	KeyUndeclared KeyUse = "none"
)

// operation is one operation of a description.
type operation struct {
	method, path string
	keyUse       KeyUse
	statuses     []string
	definition   *openapi3.Operation
	parameters   openapi3.Parameters
}

func (o *operation) name() string { return o.method + " " + o.path }

// listOperations returns the operations with one of methods, in the order of paths and methods.
func listOperations(document *openapi3.T, methods []string, header string) []*operation {
	var operations []*operation
	for _, path := range slices.Sorted(maps.Keys(document.Paths.Map())) {
		item := document.Paths.Value(path)
		for _, method := range slices.Sorted(maps.Keys(item.Operations())) {
			if !slices.Contains(methods, method) {
				continue
			}
			found := &operation{method: method, path: path, definition: item.Operations()[method]}
			found.parameters = slices.Concat(found.definition.Parameters, item.Parameters)
			found.keyUse = findKeyUse(found.parameters, header)
			if found.definition.Responses != nil {
				found.statuses = slices.Sorted(maps.Keys(found.definition.Responses.Map()))
			}
			operations = append(operations, found)
		}
	}
	return operations
}

// findKeyUse returns what the parameters say of the key.
func findKeyUse(parameters openapi3.Parameters, header string) KeyUse {
	for _, parameter := range parameters {
		if parameter.Value == nil || parameter.Value.In != openapi3.ParameterInHeader || !strings.EqualFold(parameter.Value.Name, header) {
			continue
		}
		if parameter.Value.Required {
			return KeyRequired
		}
		return KeyOptional
	}
	return KeyUndeclared
}

// documents reports whether the description has a response for status.
func (o *operation) documents(status string) bool {
	return slices.ContainsFunc(o.statuses, func(documented string) bool {
		return documented == status || documented == "default" || strings.EqualFold(documented, status[:1]+"XX")
	})
}

// errNoExample reports that a request cannot be made from the description.
var errNoExample = errors.New("idempotency: the description has no example")

// exampleRequests returns functions that make a request from each example of the operation, at most two. The key is left out.
func (o *operation) exampleRequests(header string) ([]func(string) *http.Request, error) {
	target, fields, err := o.fillParameters(header)
	if err != nil {
		return nil, err
	}
	bodies, contentType, err := o.exampleBodies()
	if err != nil {
		return nil, err
	}
	var requests []func(string) *http.Request
	for _, body := range bodies {
		requests = append(requests, func(string) *http.Request {
			r, err := http.NewRequest(o.method, target, bytes.NewReader(body))
			if err != nil {
				return nil
			}
			r.Header = fields.Clone()
			if contentType != "" {
				r.Header.Set("Content-Type", contentType)
			}
			return r
		})
	}
	return requests, nil
}

// fillParameters returns the path and query, and the header fields, with the examples of the required parameters.
func (o *operation) fillParameters(header string) (target string, fields http.Header, err error) {
	path, query, fields := o.path, make(url.Values), make(http.Header)
	for _, reference := range o.parameters {
		parameter := reference.Value
		if parameter == nil || !parameter.Required || strings.EqualFold(parameter.Name, header) {
			continue
		}
		value, ok := exampleOf(parameter)
		if !ok {
			return "", nil, fmt.Errorf("%w for the parameter %s", errNoExample, parameter.Name)
		}
		switch parameter.In {
		case openapi3.ParameterInPath:
			path = strings.ReplaceAll(path, "{"+parameter.Name+"}", url.PathEscape(value))
		case openapi3.ParameterInQuery:
			query.Set(parameter.Name, value)
		case openapi3.ParameterInHeader:
			fields.Set(parameter.Name, value)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path, fields, nil
}

// exampleOf returns an example of a parameter as a text.
func exampleOf(parameter *openapi3.Parameter) (string, bool) {
	value := parameter.Example
	if value == nil {
		for _, name := range slices.Sorted(maps.Keys(parameter.Examples)) {
			value = cmp.Or(value, parameter.Examples[name].Value.Value)
		}
	}
	if schema := parameter.Schema; value == nil && schema != nil && schema.Value != nil {
		value = cmp.Or(schema.Value.Example, schema.Value.Default)
		if value == nil && len(schema.Value.Enum) > 0 {
			value = schema.Value.Enum[0]
		}
	}
	switch typed := value.(type) {
	case nil:
		return "", false
	case string:
		return typed, true
	case float64:
		return strconv.FormatFloat(typed, 'f', -1, 64), true
	}
	return fmt.Sprint(value), true
}

// exampleBodies returns the examples of the request body, or one nil for an operation without a body.
func (o *operation) exampleBodies() (bodies [][]byte, contentType string, err error) {
	reference := o.definition.RequestBody
	if reference == nil || reference.Value == nil {
		return [][]byte{nil}, "", nil
	}
	for _, contentType := range slices.Sorted(maps.Keys(reference.Value.Content)) {
		for _, example := range examplesOf(reference.Value.Content[contentType]) {
			if text, isText := example.(string); isText && !strings.Contains(contentType, "json") {
				bodies = append(bodies, []byte(text))
				continue
			}
			encoded, err := json.Marshal(example)
			if err != nil {
				return nil, "", err
			}
			bodies = append(bodies, encoded)
		}
		if len(bodies) > 0 {
			return bodies, contentType, nil
		}
	}
	return nil, "", fmt.Errorf("%w for the body", errNoExample)
}

// examplesOf returns the examples of a media type: the named ones, or the one of the media type or of its schema.
func examplesOf(media *openapi3.MediaType) []any {
	var examples []any
	for _, name := range slices.Sorted(maps.Keys(media.Examples)) {
		if named := media.Examples[name].Value; named != nil && named.Value != nil {
			examples = append(examples, named.Value)
		}
	}
	switch {
	case len(examples) > 0:
		return examples
	case media.Example != nil:
		return []any{media.Example}
	case media.Schema != nil && media.Schema.Value != nil && media.Schema.Value.Example != nil:
		return []any{media.Schema.Value.Example}
	}
	return nil
}
