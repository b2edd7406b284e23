package mcpidempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
	"github.com/idempotency-go/idempotency/step"
)

// answerWith returns a tool with a fixed result.
func answerWith(result *mcp.CallToolResult) chargeTool {
	return func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, error) { return result, nil }
}

// A replay is the result as it was, with the marker.
func TestReplays(t *testing.T) {
	t.Parallel()
	yes := true
	for name, result := range map[string]*mcp.CallToolResult{
		"text":  newTextResult("<charged> & \u2028"),
		"empty": {},
		"content": {Content: []mcp.Content{
			&mcp.TextContent{Text: "a", Meta: mcp.Meta{"b": "c"}, Annotations: &mcp.Annotations{Priority: 0.5}},
			&mcp.ImageContent{Data: []byte{0, 1}, MIMEType: "image/png"}, &mcp.AudioContent{Data: []byte{2}, MIMEType: "audio/wav"},
			&mcp.ResourceLink{URI: "file:///a", Name: "a"},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///b", Blob: []byte{3}}},
		}},
		"structured": {StructuredContent: map[string]any{"a": []any{nil, yes, 1.5}}, Content: []mcp.Content{}},
		"meta":       {Meta: mcp.Meta{"a": 1, "idempotency": "from the tool"}, Content: []mcp.Content{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{charge: answerWith(result)})
			first, again := s.call(withKey("1", 1)), s.call(withKey("1", 1))
			require.NoError(t, first.err)
			require.False(t, first.Replayed)
			require.Equal(t, map[string]any{"replayed": true}, again.Marker)
			require.Equal(t, first.withoutMarker(), again.withoutMarker())
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}

// Every digit of a replay is there, although the SDK decodes numbers into floats.
func TestReplayIsExact(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	request := &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Name: "charge", Meta: mcp.Meta{"idempotency-key": "1"}},
		Extra:  &mcp.RequestExtra{TokenInfo: newToken("alice")},
	}
	handler := s.guard(func(context.Context, string, mcp.Request) (mcp.Result, error) {
		return &mcp.CallToolResult{
			Meta:    mcp.Meta{"n": json.Number("12345678901234567890")},
			Content: []mcp.Content{}, StructuredContent: json.RawMessage(`{"n":12345678901234567890}`),
		}, nil
	})
	for _, want := range []string{
		`{"_meta":{"n":12345678901234567890},"content":[],"structuredContent":{"n":12345678901234567890}}`,
		`{"_meta":{"idempotency":{"replayed":true},"n":12345678901234567890},"content":[],` +
			`"structuredContent":{"n":12345678901234567890}}`,
	} {
		result, err := handler(t.Context(), "tools/call", request)
		require.NoError(t, err)
		text, err := json.Marshal(result)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

// The tool has acted, but its answer cannot be replayed: it is too large, nil, no JSON, or of another type.
func TestNotReplayable(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]mcp.Result{
		"too large":  newTextResult("%s", strings.Repeat("x", 100)),
		"nil":        (*mcp.CallToolResult)(nil),
		"no JSON":    &mcp.CallToolResult{StructuredContent: make(chan int)},
		"other type": &mcp.ListToolsResult{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{guardOptions: mcpidempotency.Options{MaxResponse: 100}})
			request := &mcp.CallToolRequest{
				Params: &mcp.CallToolParamsRaw{Name: "charge", Meta: mcp.Meta{"idempotency-key": "1"}},
				Extra:  &mcp.RequestExtra{TokenInfo: newToken("alice")},
			}
			runs := 0
			handler := s.guard(func(_ context.Context, method string, _ mcp.Request) (mcp.Result, error) {
				if method == "tools/call" {
					runs++
				}
				return result, nil
			})
			first, err := handler(t.Context(), "tools/call", request)
			require.NoError(t, err)
			require.Equal(t, result, first)
			second, err := handler(t.Context(), "tools/call", request)
			require.NoError(t, err)
			require.Equal(t, "not-replayable", newAnswer(second.(*mcp.CallToolResult)).Code)
			require.Equal(t, 1, runs)
		})
	}
}

// An error of a tool may be tried again with the same key, unless the tool or Storable decides to keep the error.
func TestErrors(t *testing.T) {
	t.Parallel()
	decide := func(v idempotency.Verdict) chargeTool {
		return func(ctx context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, error) {
			idempotency.Decide(ctx, v)
			return nil, errors.New("declined")
		}
	}
	keepAll := mcpidempotency.Options{Storable: func(*mcp.CallToolResult) bool { return true }}
	for name, tt := range map[string]struct {
		charge    chargeTool
		opts      mcpidempotency.Options
		abandoned idempotency.Abandoned
		wantRuns  int64
		wantCode  string // of the second call
	}{
		"error":             {decide(0), mcpidempotency.Options{}, idempotency.ReExecute, 2, ""},
		"error, refuse":     {decide(0), mcpidempotency.Options{}, idempotency.Refuse, 2, ""},
		"keep":              {decide(idempotency.Keep), mcpidempotency.Options{}, idempotency.ReExecute, 1, ""},
		"tombstone":         {decide(idempotency.Tombstone), mcpidempotency.Options{}, idempotency.ReExecute, 1, "not-replayable"},
		"storable":          {decide(0), keepAll, idempotency.ReExecute, 1, ""},
		"storable, free":    {decide(idempotency.Free), keepAll, idempotency.ReExecute, 2, ""},
		"unknown":           {decide(idempotency.Unknown), mcpidempotency.Options{}, idempotency.ReExecute, 2, ""},
		"unknown, refuse":   {decide(idempotency.Unknown), mcpidempotency.Options{}, idempotency.Refuse, 1, "outcome-unknown"},
		"own error, stored": {answerWith(&mcp.CallToolResult{IsError: true}), keepAll, idempotency.ReExecute, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{
				charge: tt.charge, guardOptions: tt.opts,
				runnerOptions: idempotency.RunnerOptions{Abandoned: tt.abandoned, Lease: waitForLease(tt.wantCode)},
			})
			first := s.call(withKey("1", 1))
			require.True(t, first.IsError)
			require.False(t, first.Replayed)
			again := s.callUntilEnded(withKey("1", 1))
			require.True(t, again.IsError)
			require.Equal(t, tt.wantCode, again.Code)
			require.Equal(t, tt.wantRuns == 1 && tt.wantCode == "", again.Replayed)
			if tt.wantCode == "" {
				require.Equal(t, first.withoutMarker(), again.withoutMarker())
			}
			require.Equal(t, tt.wantRuns, s.runs.Load())
		})
	}
}

// A JSON-RPC error is no result: it goes out as it is, and is never stored.
func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	failure := &jsonrpc.Error{Code: -32099, Message: "broken", Data: json.RawMessage(`{"a":1}`)}
	for name, tt := range map[string]struct {
		tool     string
		wantCode int64
		wantText string
	}{
		"of the tool":  {"charge", -32099, "broken"},
		"unknown tool": {"transfer", jsonrpc.CodeInvalidParams, `unknown tool "transfer"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{charge: func(
				ctx context.Context, _ *mcp.CallToolRequest, _ payment,
			) (*mcp.CallToolResult, error) {
				idempotency.Decide(ctx, idempotency.Keep)
				return nil, failure
			}})
			for range 2 {
				params := withKey("1", 1)
				params.Name = tt.tool
				got := s.call(params)
				wire, ok := errors.AsType[*jsonrpc.Error](got.err)
				require.True(t, ok, "%v", got.err)
				require.Equal(t, tt.wantCode, wire.Code)
				require.Contains(t, wire.Message, tt.wantText)
			}
		})
	}
}

// A call that the SDK turns away leaves its key free, so that the corrected call can have the same key.
func TestInvalidCallLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	for name, invalid := range map[string]*mcp.CallToolParams{
		"wrong type": {Name: "charge", Arguments: map[string]any{"cents": "many"}},
		"missing":    {Name: "charge", Arguments: map[string]any{}},
		"unknown":    {Name: "charge", Arguments: map[string]any{"cents": 1, "amount": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{runnerOptions: idempotency.RunnerOptions{Abandoned: idempotency.Refuse}})
			invalid.Meta = mcp.Meta{"idempotency-key": "1"}
			got := s.call(invalid)
			require.True(t, got.IsError)
			require.Contains(t, got.Text, "validating")
			require.Zero(t, s.runs.Load())
			got = s.call(withKey("1", 1))
			require.Equal(t, "charged 1", got.Text)
			require.True(t, s.call(withKey("1", 1)).Replayed)
		})
	}
}

// A tool that asks the user for input ends its operation with the call that has the answer, and a replay asks nobody.
func TestToolThatAsks(t *testing.T) {
	t.Parallel()
	for _, isStateless := range []bool{true, false} {
		t.Run(fmt.Sprintf("stateless=%t", isStateless), func(t *testing.T) {
			t.Parallel()
			questions := 0
			ask := &mcp.ElicitParams{
				Message: "sure?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
			}
			accept := func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				questions++
				return &mcp.ElicitResult{Action: "accept"}, nil
			}
			s := startService(t, setup{
				isStateless: isStateless,
				charge: func(_ context.Context, r *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, error) {
					if r.Params.InputResponses == nil {
						return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"sure": ask}}, nil
					}
					return newTextResult("charged"), nil
				},
				clientOptions: &mcp.ClientOptions{ElicitationHandler: accept},
			})
			first := s.call(withKey("1", 1))
			require.NoError(t, first.err)
			require.Equal(t, "charged", first.Text)
			again := s.call(withKey("1", 1))
			require.True(t, again.Replayed)
			require.Equal(t, first.withoutMarker(), again.withoutMarker())
			require.Equal(t, 1, questions)
			require.Equal(t, int64(2), s.runs.Load())
		})
	}
}

// Steps and DownstreamKey work within a tool: the second run finds the charge of the first run.
func TestSteps(t *testing.T) {
	t.Parallel()
	charges := make(map[string]int)
	failing := true
	s := startService(t, setup{charge: func(
		ctx context.Context, _ *mcp.CallToolRequest, p payment,
	) (*mcp.CallToolResult, error) {
		op, ok := idempotency.FromContext(ctx)
		require.True(t, ok)
		require.Equal(t, idempotency.Key{User: "alice", Endpoint: "tools/call charge", ID: "1"}, op.Key)
		charge, err := step.Do(ctx, "charge", func(context.Context) (string, error) {
			charges[op.DownstreamKey("charge")]++
			return fmt.Sprint("charge of ", p.Cents), nil
		})
		if failing {
			failing = false
			return nil, errors.New("try again")
		}
		return newTextResult("%s", charge), err
	}})
	require.True(t, s.call(withKey("1", 4200)).IsError)
	require.Equal(t, "charge of 4200", s.call(withKey("1", 4200)).Text)
	require.Len(t, charges, 1)
	for _, n := range charges {
		require.Equal(t, 1, n)
	}
}

// A panic goes on to the SDK, which ends the process. The operation may be tried again.
func TestPanic(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	request := &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{
			Name: "charge", Arguments: []byte(`{"cents": 1}`), Meta: mcp.Meta{"idempotency-key": "1"},
		},
		Extra: &mcp.RequestExtra{TokenInfo: newToken("alice")},
	}
	panicking := s.guard(func(_ context.Context, method string, _ mcp.Request) (mcp.Result, error) {
		if method == "tools/call" {
			panic("broken")
		}
		return nil, errors.New("no list")
	})
	require.PanicsWithValue(t, "broken", func() { _, _ = panicking(t.Context(), "tools/call", request) })
	require.Equal(t, "charged 1", s.callUntilEnded(withKey("1", 1)).Text)
}

// An operator, or Reconcile, resolves an operation with a result in JSON.
func TestReconcile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ body, wantText, wantCode string }{
		"result":    {`{"content": [{"type": "text", "text": "charged by hand"}]}`, "charged by hand", ""},
		"no result": {`{"id": 7}`, "cannot tell", "store-unavailable"},
		"no JSON":   {`charged`, "cannot tell", "store-unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{
				runnerOptions: idempotency.RunnerOptions{
					Abandoned: idempotency.Refuse, Lease: waitForLease("outcome-unknown"),
					Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
						return &idempotency.Response{Status: 200, Body: []byte(tt.body)}, nil
					},
				},
				charge: func(ctx context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, error) {
					idempotency.Decide(ctx, idempotency.Unknown)
					return nil, errors.New("no answer")
				},
			})
			require.True(t, s.call(withKey("1", 1)).IsError)
			got := s.callUntilEnded(withKey("1", 1))
			require.Contains(t, got.Text, tt.wantText)
			require.Equal(t, tt.wantCode, got.Code)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}
