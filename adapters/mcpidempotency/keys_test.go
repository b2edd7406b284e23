package mcpidempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
)

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := mcpidempotency.New(nil, nil, mcpidempotency.Options{MaxResponse: -1, Argument: "key"})
	for _, fault := range []string{
		"Runner is nil", "UserFunc is nil", "MaxResponse is -1", `"key" does not begin with a slash`,
	} {
		require.ErrorContains(t, err, fault)
	}
}

// A call with a key runs once. The key is in _meta or in the arguments.
func TestKeys(t *testing.T) {
	t.Parallel()
	optional, required := mcpidempotency.Options{}, mcpidempotency.Options{Required: true}
	nested := mcpidempotency.Options{Argument: "/meta/idempotency-key", MetaKey: "example.com/key"}
	uuids := mcpidempotency.Options{ValidateKey: idempotency.ValidateUUID}
	for name, tt := range map[string]struct {
		opts         mcpidempotency.Options
		meta         string // members of _meta, in JSON
		arguments    string // members beside cents, in JSON
		wantCode     string // of a refusal. Empty: the tool runs
		wantReplayed bool   // the second call is a replay
	}{
		"in _meta":                   {required, `"idempotency-key": "1"`, ``, "", true},
		"in the arguments":           {required, ``, `, "idempotency_key": "1"`, "", true},
		"in both":                    {required, `"idempotency-key": "1"`, `, "idempotency_key": "1"`, "", true},
		"name in _meta":              {nested, `"example.com/key": "1"`, ``, "", true},
		"other name in _meta":        {nested, `"idempotency-key": "1"`, ``, "", false},
		"pointer":                    {nested, ``, `, "meta": {"idempotency-key": "1"}`, "", true},
		"any character":              {required, `"idempotency-key": "a\\,;\"b"`, ``, "", true},
		"optional":                   {optional, ``, ``, "", false},
		"optional, null":             {optional, `"idempotency-key": null`, `, "idempotency_key": null`, "", false},
		"missing":                    {required, ``, ``, "key-missing", false},
		"null":                       {required, `"idempotency-key": null`, `, "idempotency_key": null`, "key-missing", false},
		"different":                  {required, `"idempotency-key": "1"`, `, "idempotency_key": "2"`, "key-invalid", false},
		"empty":                      {optional, ``, `, "idempotency_key": ""`, "key-invalid", false},
		"empty in _meta":             {optional, `"idempotency-key": ""`, ``, "key-invalid", false},
		"number":                     {optional, ``, `, "idempotency_key": 1`, "key-invalid", false},
		"number in _meta":            {optional, `"idempotency-key": 1`, ``, "key-invalid", false},
		"space":                      {required, `"idempotency-key": "a b"`, ``, "key-invalid", false},
		"no UUID":                    {uuids, `"idempotency-key": "1"`, ``, "key-invalid", false},
		"other case, a key in _meta": {required, `"idempotency-key": "1"`, `, "Idempotency_Key": "1"`, "body-invalid", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{guardOptions: tt.opts})
			params := &mcp.CallToolParams{Name: "charge", Arguments: json.RawMessage(`{"cents": 1` + tt.arguments + `}`)}
			require.NoError(t, json.Unmarshal([]byte(`{`+tt.meta+`}`), &params.Meta))
			got := s.call(params)
			require.NoError(t, got.err)
			require.Equal(t, tt.wantCode, got.Code, got.Text)
			again := s.call(params)
			if tt.wantCode != "" {
				require.Equal(t, tt.wantCode, again.Code)
				require.Zero(t, s.runs.Load())
				return
			}
			require.Equal(t, "charged 1", got.Text)
			require.False(t, got.Replayed)
			require.Equal(t, tt.wantReplayed, again.Replayed)
			require.Equal(t, got.withoutMarker(), again.withoutMarker())
		})
	}
}

// With the option Header, the key may be in the header of the HTTP request.
func TestHeader(t *testing.T) {
	t.Parallel()
	inHeader := mcpidempotency.Options{Header: "Idempotency-Key"}
	for name, tt := range map[string]struct {
		opts         mcpidempotency.Options
		header       string
		key          string // in _meta
		wantCode     string
		wantReplayed bool
	}{
		"key":       {inHeader, `"1"`, "", "", true},
		"same":      {inHeader, "1", "1", "", true},
		"different": {inHeader, "1", "2", "key-invalid", false},
		"malformed": {inHeader, "a b", "", "key-invalid", false},
		"no option": {mcpidempotency.Options{}, "1", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{guardOptions: tt.opts})
			session := s.connectVia(headerTransport{s.newTransport("alice"), tt.header}, nil)
			callTool(t.Context(), session, withKey(tt.key, 1))
			again := callTool(t.Context(), session, withKey(tt.key, 1))
			require.NoError(t, again.err)
			require.Equal(t, tt.wantCode, again.Code)
			require.Equal(t, tt.wantReplayed, again.Replayed)
		})
	}
}

// headerTransport adds the field Idempotency-Key to each request.
type headerTransport struct {
	http.RoundTripper
	key string
}

func (h headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Idempotency-Key", h.key)
	return h.RoundTripper.RoundTrip(r)
}

// A key is a key of a user and a tool. The user comes from the token.
func TestScope(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	for _, user := range []string{"alice", "bob"} {
		session := s.connect(user, nil)
		for _, tool := range []string{"charge", "refund"} {
			params := withKey("1", 1)
			params.Name = tool
			got := callTool(t.Context(), session, params)
			require.NoError(t, got.err)
			require.False(t, got.Replayed)
		}
	}
	require.Equal(t, int64(4), s.runs.Load())
}

// Sessions of a user share keys, because an agent that lost its connection repeats the call in a new session.
func TestNewSession(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	first := s.call(withKey("1", 1))
	again := callTool(t.Context(), s.connect("alice", nil), withKey("1", 1))
	require.True(t, again.Replayed)
	require.Equal(t, first.withoutMarker(), again.withoutMarker())
}

func TestUserUnknown(t *testing.T) {
	t.Parallel()
	user := func(err error) mcpidempotency.UserFunc {
		return func(context.Context, *mcp.RequestExtra) (string, error) { return "", err }
	}
	closed := &idempotency.Error{Code: "account-closed", Detail: "The account is closed."}
	for name, tt := range map[string]struct {
		user     mcpidempotency.UserFunc
		token    string
		wantCode string
		wantText string
	}{
		"token without a user": {mcpidempotency.TokenUser, "nobody", "user-unknown", "does not know the user"},
		"empty":                {user(nil), "alice", "user-unknown", "does not know the user"},
		"error":                {user(errors.New("who?")), "alice", "user-unknown", "does not know the user"},
		"own refusal":          {user(fmt.Errorf("closed: %w", closed)), "alice", "account-closed", "The account is closed."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{identifyUser: tt.user})
			got := callTool(t.Context(), s.connect(tt.token, nil), withKey("1", 1))
			require.Equal(t, tt.wantCode, got.Code)
			require.Contains(t, got.Text, tt.wantText)
			require.NotContains(t, got.Text, "who?")
			require.Zero(t, s.runs.Load())
		})
	}
}

// A call without a token, as over stdio, has no user for TokenUser, and SingleUser needs none.
func TestWithoutToken(t *testing.T) {
	t.Parallel()
	_, err := mcpidempotency.TokenUser(t.Context(), &mcp.RequestExtra{})
	require.Error(t, err)
	user, err := mcpidempotency.SingleUser(t.Context(), &mcp.RequestExtra{})
	require.NoError(t, err)
	require.NotEmpty(t, user)
}

// Tools that are read-only or idempotent by their annotations pass, unless the option Tools guards them. PageSize is 1,
// so the tool is found on a later page of the list.
func TestTools(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tools        func(*mcp.Tool) bool
		tool         string
		wantReplayed bool
	}{
		"read-only":          {nil, "balance", false},
		"idempotent":         {nil, "limit", false},
		"neither":            {nil, "refund", true},
		"read-only, guarded": {func(tool *mcp.Tool) bool { return tool.Annotations.ReadOnlyHint }, "balance", true},
		"left out":           {func(tool *mcp.Tool) bool { return tool.Name != "refund" }, "refund", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{
				guardOptions:  mcpidempotency.Options{Tools: tt.tools},
				serverOptions: &mcp.ServerOptions{PageSize: 1},
			})
			params := withKey("1", 1)
			params.Name = tt.tool
			first, again := s.call(params), s.call(params)
			require.NoError(t, again.err)
			require.Equal(t, tt.wantReplayed, again.Replayed)
			require.Equal(t, tt.wantReplayed, first.Result == again.Result)
		})
	}
}

// A tool that other middleware hides from the list is guarded, because its annotations are unknown.
func TestHiddenTool(t *testing.T) {
	t.Parallel()
	hide := func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "tools/list" {
				return nil, errors.New("hidden")
			}
			return next(ctx, method, req)
		}
	}
	s := startService(t, setup{inner: []mcp.Middleware{hide}})
	require.False(t, s.call(withKey("1", 1)).Replayed)
	require.True(t, s.call(withKey("1", 1)).Replayed)
}

// The list of tools tells models about the key. The tool gets its arguments without the key, unless the tool knows the
// argument.
func TestListedTools(t *testing.T) {
	t.Parallel()
	const (
		key = `{"type": "string", "minLength": 1, "maxLength": 255, "description": "Identifies the action, so that the action is ` +
			`carried out only once. A new random UUID for each action. The same UUID again to repeat a call."}`
		text = ` argument "idempotency_key" makes this tool safe to call again: send a new random UUID for each action. If a ` +
			`call fails or is not answered, repeat it with the same UUID and the same arguments, and the action is carried out only once.`
	)
	own := map[string]any{"type": "object", "properties": map[string]any{"idempotency_key": map[string]any{"type": "string"}}}
	nested := mcpidempotency.Options{Argument: "/meta/idempotency-key"}
	nestedRequired := mcpidempotency.Options{Argument: "/meta/idempotency-key", Required: true}
	for name, tt := range map[string]struct {
		opts            mcpidempotency.Options
		schema          any // of the tool
		wantSchema      string
		wantDescription string
		arguments       string
		wantArguments   string // of the tool
	}{
		"optional": {
			mcpidempotency.Options{}, json.RawMessage(`{"type": "object", "required": ["b"], "properties": {"b": {}, "a": {}}}`),
			`{"type": "object", "required": ["b"], "properties": {"b": {}, "a": {}, "idempotency_key": ` + key + `}}`,
			"Does it.\n\nThe optional" + text, `{"a": 12345678901234567890, "idempotency_key": "1"}`, `{"a":12345678901234567890}`,
		},
		"required": {
			mcpidempotency.Options{Required: true}, map[string]any{"type": "object", "required": []string{"b"}},
			`{"type": "object", "required": ["b", "idempotency_key"], "properties": {"idempotency_key": ` + key + `}}`,
			"Does it.\n\nThe" + text, `{"idempotency_key": "1"}`, `{}`,
		},
		"no properties": {
			mcpidempotency.Options{}, map[string]any{"type": "object", "properties": map[string]any{}},
			`{"type": "object", "properties": {"idempotency_key": ` + key + `}}`,
			"Does it.\n\nThe optional" + text, `{"idempotency_key": "1"}`, `{}`,
		},
		"known to the tool": {
			mcpidempotency.Options{}, own, `{"type": "object", "properties": {"idempotency_key": {"type": "string"}}}`,
			"Does it.\n\nThe optional" + text, `{"idempotency_key": "1"}`, `{"idempotency_key":"1"}`,
		},
		"nested": {
			nested, map[string]any{"type": "object"},
			`{"type": "object", "properties": {"meta": {"type": "object", "properties": {"idempotency-key": ` + key + `}}}}`,
			"Does it.\n\nThe optional" + strings.Replace(text, "idempotency_key", "meta.idempotency-key", 1),
			`{"meta": {"idempotency-key": "1"}}`, `{}`,
		},
		"nested, required": {
			nestedRequired, map[string]any{"type": "object"},
			`{"type": "object", "required": ["meta"], "properties": {"meta": {"type": "object", "required": ["idempotency-key"],
				"properties": {"idempotency-key": ` + key + `}}}}`,
			"Does it.\n\nThe" + strings.Replace(text, "idempotency_key", "meta.idempotency-key", 1),
			`{"meta": {"idempotency-key": "1"}}`, `{}`,
		},
		"nested, known to the tool": {
			nested, map[string]any{"type": "object", "properties": map[string]any{"meta": map[string]any{"$ref": "#/$defs/meta"}}},
			`{"type": "object", "properties": {"meta": {"$ref": "#/$defs/meta"}}}`,
			"Does it.\n\nThe optional" + strings.Replace(text, "idempotency_key", "meta.idempotency-key", 1),
			`{"meta": {"idempotency-key": "1"}}`, `{"meta":{"idempotency-key":"1"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arguments := make(chan string, 2)
			s := startService(t, setup{guardOptions: tt.opts, addTools: func(server *mcp.Server) {
				tool := &mcp.Tool{Name: "do", Description: "Does it.", InputSchema: tt.schema}
				server.AddTool(tool, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					arguments <- string(r.Params.Arguments)
					return newTextResult("done"), nil
				})
			}})
			for range 2 { // the list is not the tools of the server, which stay as they are
				tools := make(map[string]*mcp.Tool)
				for tool, err := range s.session.Tools(t.Context(), nil) {
					require.NoError(t, err)
					tools[tool.Name] = tool
				}
				schema, err := json.Marshal(tools["do"].InputSchema)
				require.NoError(t, err)
				require.JSONEq(t, tt.wantSchema, string(schema))
				require.Equal(t, tt.wantDescription, tools["do"].Description)
				require.Empty(t, tools["balance"].Description)
			}
			params := &mcp.CallToolParams{Name: "do", Arguments: json.RawMessage(tt.arguments)}
			require.Equal(t, "done", s.call(params).Text)
			require.Equal(t, tt.wantArguments, awaitValue(t, arguments))
			require.True(t, s.call(params).Replayed)
		})
	}
}

// Models write arguments in the order of the schema, so the key comes last, and the other properties keep their order.
func TestOrderOfProperties(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	schema := json.RawMessage(`{"type": "object", "properties": {"street": {}, "city": {}}}`)
	tool := &mcp.Tool{Name: "move", InputSchema: schema}
	list := &mcp.ListToolsResult{Tools: []*mcp.Tool{tool}}
	result, err := s.guard(func(context.Context, string, mcp.Request) (mcp.Result, error) {
		return list, nil
	})(t.Context(), "tools/list", &mcp.ListToolsRequest{})
	require.NoError(t, err)
	require.Same(t, tool, list.Tools[0], "other middleware may keep the list")
	listed, err := json.Marshal(result.(*mcp.ListToolsResult).Tools[0].InputSchema)
	require.NoError(t, err)
	require.Regexp(t, `"street".*"city".*"idempotency_key"`, string(listed))
}

// Order and spelling of the arguments are irrelevant, and every digit counts.
func TestArguments(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first, second string
		wantCode      string
	}{
		"order and space":        {`{"a": 1, "b": [2]}`, `{ "b":[2], "a":1.0 }`, ""},
		"place of the key":       {`{"a": 1}`, `{"a": 1, "idempotency_key": "1"}`, ""},
		"none, and an empty one": {``, `{}`, ""},
		"other value":            {`{"a": 1}`, `{"a": 2}`, "key-reused"},
		"large numbers":          {`{"a": 12345678901234567890}`, `{"a": 12345678901234567891}`, "key-reused"},
		"more":                   {`{"a": 1}`, `{"a": 1, "b": null}`, "key-reused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{addTools: func(server *mcp.Server) {
				tool := &mcp.Tool{Name: "do", InputSchema: map[string]any{"type": "object"}}
				server.AddTool(tool, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					return newTextResult("done"), nil
				})
			}})
			call := func(arguments string) answer {
				params := &mcp.CallToolParams{Name: "do", Meta: mcp.Meta{"idempotency-key": "1"}}
				if arguments != "" {
					params.Arguments = json.RawMessage(arguments)
				}
				return s.call(params)
			}
			require.Equal(t, "done", call(tt.first).Text)
			again := call(tt.second)
			require.NoError(t, again.err)
			require.Equal(t, tt.wantCode, again.Code)
			require.Equal(t, tt.wantCode == "", again.Replayed)
		})
	}
}
