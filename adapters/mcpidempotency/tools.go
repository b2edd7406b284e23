package mcpidempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// NeedsKey is the default of Options.Tools. NeedsKey reports whether calls of tool need a key to be safe to repeat. All
// tools need a key except tools with ReadOnlyHint or IdempotentHint in their annotations.
func NeedsKey(tool *mcp.Tool) bool {
	return tool.Annotations == nil || !tool.Annotations.ReadOnlyHint && !tool.Annotations.IdempotentHint
}

// findTool returns the called tool as the server lists it, because middleware cannot see the tools of a server otherwise.
// A tool that is not listed has only a name: it may be unknown, or hidden from lists by other middleware.
func findTool(ctx context.Context, request *mcp.CallToolRequest, next mcp.MethodHandler) *mcp.Tool {
	isCalled := func(tool *mcp.Tool) bool { return tool.Name == request.Params.Name }
	for cursor := ""; ; {
		result, err := next(ctx, "tools/list", &mcp.ListToolsRequest{
			Session: request.Session, Params: &mcp.ListToolsParams{Cursor: cursor}, Extra: request.Extra,
		})
		list, ok := result.(*mcp.ListToolsResult)
		if err != nil || !ok {
			break
		}
		if i := slices.IndexFunc(list.Tools, isCalled); i >= 0 {
			return list.Tools[i]
		}
		if cursor = list.NextCursor; cursor == "" {
			break
		}
	}
	return &mcp.Tool{Name: request.Params.Name}
}

// describeKeys returns list with the key in the input schemas and descriptions of the guarded tools.
func (g *guard) describeKeys(list *mcp.ListToolsResult) *mcp.ListToolsResult {
	described := *list // copies, because the server keeps the tools
	described.Tools = slices.Clone(list.Tools)
	for i, tool := range described.Tools {
		if !g.opts.Tools(tool) {
			continue
		}
		withKey := *tool
		withKey.Description = strings.TrimSpace(tool.Description + "\n\n" + g.describeKey())
		if schema, err := g.addKeyToSchema(tool); err == nil {
			withKey.InputSchema = schema
		}
		described.Tools[i] = &withKey
	}
	return &described
}

// describeKey returns the sentences about the key in the description of a tool.
func (g *guard) describeKey() string {
	begin := "The argument %s makes this tool safe to call again: "
	if !g.opts.Required {
		begin = "The optional argument %s makes this tool safe to call again: "
	}
	return fmt.Sprintf(begin+"send a new random UUID for each action. If a call fails or is not answered, repeat it with the "+
		"same UUID and the same arguments, and the action is carried out only once.", g.argumentName())
}

// argumentName returns the name of the argument with the key in texts for models.
func (g *guard) argumentName() string { return `"` + strings.Join(g.keyPath, ".") + `"` }

const keyDescription = "Identifies the action, so that the action is carried out only once. A new random UUID for each " +
	"action. The same UUID again to repeat a call."

// addKeyToSchema returns the input schema of tool with the argument of the key, or as it is if the tool knows the
// argument. The order of the properties remains, because models write arguments in this order.
func (g *guard) addKeyToSchema(tool *mcp.Tool) (any, error) {
	if declaresProperty(tool, g.keyPath[0]) {
		return tool.InputSchema, nil
	}
	text, err := json.Marshal(tool.InputSchema)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	property, err := json.Marshal(g.newKeySchema(g.keyPath[1:]))
	if err != nil {
		return nil, err
	}
	name, err := json.Marshal(g.keyPath[0])
	if err != nil {
		return nil, err
	}
	properties := bytes.TrimSuffix(bytes.TrimSpace(members["properties"]), []byte("}"))
	switch string(bytes.TrimSpace(properties)) {
	case "", "{", "null":
		properties = []byte("{")
	default:
		properties = append(slices.Clip(properties), ',')
	}
	members["properties"] = slices.Concat(properties, name, []byte(":"), property, []byte("}"))
	if !g.opts.Required {
		return members, nil
	}
	var required []string
	if raw := members["required"]; raw != nil {
		if err := json.Unmarshal(raw, &required); err != nil {
			return nil, err
		}
	}
	members["required"], err = json.Marshal(append(required, g.keyPath[0]))
	return members, err
}

// newKeySchema returns the schema of a key at path within an argument.
func (g *guard) newKeySchema(path []string) map[string]any {
	if len(path) == 0 {
		return map[string]any{"type": "string", "minLength": 1, "maxLength": 255, "description": keyDescription}
	}
	schema := map[string]any{"type": "object", "properties": map[string]any{path[0]: g.newKeySchema(path[1:])}}
	if g.opts.Required {
		schema["required"] = path[:1]
	}
	return schema
}

// declaresProperty reports whether the input schema of tool has a property with the given name.
func declaresProperty(tool *mcp.Tool, name string) bool {
	text, err := json.Marshal(tool.InputSchema)
	return err == nil && findMember(text, []string{"properties", name}) != nil
}
