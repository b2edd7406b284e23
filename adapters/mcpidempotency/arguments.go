package mcpidempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
)

// readKey returns the key of a call, or "" without a key.
func (g *guard) readKey(request *mcp.CallToolRequest) (string, *idempotency.Error) {
	metaValue, err := json.Marshal(request.Params.Meta[g.opts.MetaKey])
	if err != nil {
		return "", refuseInvalidKey(err)
	}
	inMeta, errMeta := parseKeyValue(metaValue)
	inArguments, errArguments := parseKeyValue(findMember(request.Params.Arguments, g.keyPath))
	inHeader, errHeader := g.parseHeader(request.Extra)
	if err := cmp.Or(errMeta, errArguments, errHeader); err != nil {
		return "", refuseInvalidKey(err)
	}
	id := cmp.Or(inMeta, inArguments, inHeader)
	for _, sent := range []string{inMeta, inArguments, inHeader} {
		if sent != "" && sent != id {
			return "", refuseInvalidKey(errors.New("the call has different keys"))
		}
	}
	return id, nil
}

// parseHeader returns the key in the header of the HTTP request, if Options.Header names a field.
func (g *guard) parseHeader(extra *mcp.RequestExtra) (string, error) {
	if g.opts.Header == "" || extra == nil || len(extra.Header.Values(g.opts.Header)) == 0 {
		return "", nil
	}
	id, err := idempotency.ParseKey(extra.Header.Values(g.opts.Header))
	if err != nil {
		return "", errKeySyntax
	}
	return id, nil
}

var errKeySyntax = errors.New("a key has 1 to 255 visible ASCII characters")

var quoteEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// parseKeyValue returns the key in a JSON value. A missing value and null are no key. The rules for the string are the
// rules for the header field with the key in quotes.
func parseKeyValue(value json.RawMessage) (string, error) {
	if value == nil || string(value) == "null" {
		return "", nil
	}
	var key string
	if err := json.Unmarshal(value, &key); err != nil {
		return "", errors.New("the key is not a string")
	}
	id, err := idempotency.ParseKey([]string{`"` + quoteEscaper.Replace(key) + `"`})
	if err != nil {
		return "", errKeySyntax
	}
	return id, nil
}

// findMember returns the value at path in a JSON object, or nil if there is none.
func findMember(object json.RawMessage, path []string) json.RawMessage {
	for _, name := range path {
		var members map[string]json.RawMessage
		if json.Unmarshal(object, &members) != nil {
			return nil
		}
		object = members[name]
	}
	return bytes.TrimSpace(object)
}

// removeKey returns the request for a tool. The key is removed if the tool does not know the argument.
func (g *guard) removeKey(request *mcp.CallToolRequest, tool *mcp.Tool) *mcp.CallToolRequest {
	name := g.keyPath[0]
	if findMember(request.Params.Arguments, g.keyPath) == nil || declaresProperty(tool, name) {
		return request
	}
	var arguments map[string]json.RawMessage
	if json.Unmarshal(request.Params.Arguments, &arguments) != nil {
		return request
	}
	delete(arguments, name)
	rest, err := json.Marshal(arguments)
	if err != nil {
		return request
	}
	params := *request.Params
	params.Arguments = rest
	return &mcp.CallToolRequest{Session: request.Session, Params: &params, Extra: request.Extra}
}
