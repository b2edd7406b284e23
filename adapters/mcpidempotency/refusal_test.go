package mcpidempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
)

// requireRefused requires a refusal with the given code and advice. retryAfter is in seconds.
func requireRefused(t *testing.T, got answer, code, retry string, retryAfter float64) {
	t.Helper()
	require.NoError(t, got.err)
	require.True(t, got.IsError)
	want := map[string]any{"code": code, "retry": retry}
	if retryAfter != 0 {
		want["retryAfter"] = retryAfter
	}
	require.Equal(t, want, got.Marker)
	require.Equal(t, want, got.structured)
	require.NotEmpty(t, got.Text)
}

// Each refusal tells a model what has happened, and what to do.
func TestRefusals(t *testing.T) {
	t.Parallel()
	fails := func(err error) *adaptertest.FaultyStore {
		return &adaptertest.FaultyStore{BeginErr: err}
	}
	unknown := func(ctx context.Context, _ *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, error) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return nil, errors.New("no answer")
	}
	const again = " Call again in 1 second with the same key and the same arguments."
	for name, tt := range map[string]struct {
		setup          setup
		first          *mcp.CallToolParams // nil: none
		refused        *mcp.CallToolParams
		wantCode       string
		wantRetry      string
		wantRetryAfter float64
		wantText       string
	}{
		"missing": {
			setup{guardOptions: mcpidempotency.Options{Required: true}}, nil, withKey("", 1), "key-missing", "new-key", 0,
			`Nothing was done, because the call has no idempotency key. Call again with a new random UUID as the argument ` +
				`"idempotency_key". Send the same UUID again only to repeat the same call.`,
		},
		"invalid": {
			setup{guardOptions: mcpidempotency.Options{ValidateKey: idempotency.ValidateUUID}}, nil, withKey("1", 1),
			"key-invalid", "new-key", 0,
			`Nothing was done, because the idempotency key is invalid: a UUID has 36 characters, not 1. Call again with a new ` +
				`random UUID as the key.`,
		},
		"reused": {
			setup{}, withKey("1", 1), withKey("1", 2), "key-reused", "new-key", 0,
			`Nothing was done: the idempotency key came before with other arguments. To repeat the earlier call, send its arguments ` +
				`again. For a new action, call with a new random UUID as the key.`,
		},
		"unknown": {
			setup{charge: unknown, runnerOptions: idempotency.RunnerOptions{
				Abandoned: idempotency.Refuse, Lease: waitForLease("outcome-unknown"),
			}},
			withKey("1", 1), withKey("1", 1), "outcome-unknown", "never", 0,
			`Whether the action was carried out is unknown, because an earlier call ended without a result. This call did nothing. ` +
				`Do not call again, also not with a new key. Find out first what the earlier call has done.`,
		},
		"too large": {
			setup{guardOptions: mcpidempotency.Options{MaxResponse: 1}}, withKey("1", 1), withKey("1", 1),
			"not-replayable", "never", 0,
			`An earlier call has carried out the action, but its result was not kept. Do not call again, also not with a new key. ` +
				`Look up what the action has done.`,
		},
		"store down": {
			setup{store: fails(errors.New("refused"))}, nil, withKey("1", 1), "store-unavailable", "same-key", 1,
			`The server cannot tell at the moment whether the action was carried out. This call did nothing. Do not use a ` +
				`new key.` + again,
		},
		"quota": {
			setup{store: fails(idempotency.ErrUserQuota)}, nil, withKey("1", 1), "quota-exceeded", "same-key", 60,
			`Nothing was done by this call: too many idempotency keys of this user are kept. Call again in 60 seconds with the same ` +
				`key and the same arguments.`,
		},
		"user": {
			setup{identifyUser: func(context.Context, *mcp.RequestExtra) (string, error) { return "", nil }}, nil, withKey("1", 1),
			"user-unknown", "same-key", 0,
			`Nothing was done by this call, because the server does not know the user. The user has to sign in first. Call again ` +
				`with the same key and the same arguments.`,
		},
		"duplicate names": {
			setup{}, nil, &mcp.CallToolParams{
				Name: "charge", Arguments: json.RawMessage(`{"cents": 1, "cents": 2}`), Meta: mcp.Meta{"idempotency-key": "1"},
			},
			"body-invalid", "never", 0, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, tt.setup)
			if tt.first != nil {
				require.Empty(t, s.call(tt.first).Code)
			}
			runs := s.runs.Load()
			got := s.callUntilEnded(tt.refused)
			requireRefused(t, got, tt.wantCode, tt.wantRetry, tt.wantRetryAfter)
			if tt.wantText != "" {
				require.Equal(t, tt.wantText, got.Text)
			}
			require.Equal(t, runs, s.runs.Load())
		})
	}
}

// The text of in-progress has the seconds, rounded up.
func TestInProgress(t *testing.T) {
	t.Parallel()
	for after, seconds := range map[time.Duration]string{time.Second: "1 second", 1100 * time.Millisecond: "2 seconds"} {
		s := startService(t, setup{store: &adaptertest.FaultyStore{BeginErr: &idempotency.Error{
			Status: 409, Code: "in-progress", Retry: idempotency.RetrySameKey, RetryAfter: after,
		}}})
		require.Equal(t, "The same call may still be running. This call did nothing. Call again in "+seconds+
			" with the same key and the same arguments.", s.call(withKey("1", 1)).Text)
	}
}

// Clients of the TypeScript SDK validate the structured content of errors against the output schema, so a refusal of a
// tool with such a schema has none.
func TestRefusalOfAToolWithAnOutputSchema(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{guardOptions: mcpidempotency.Options{Required: true}})
	got := s.call(&mcp.CallToolParams{Name: "refund", Arguments: map[string]any{"cents": 1}})
	require.True(t, got.IsError)
	require.Equal(t, map[string]any{"code": "key-missing", "retry": "new-key"}, got.Marker)
	require.Nil(t, got.structured)
}

// A service can word refusals itself. The function gets the reason and the text for models.
func TestOwnRefusal(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{guardOptions: mcpidempotency.Options{
		Required: true,
		Refusal: func(e *idempotency.Error) (*mcp.CallToolResult, error) {
			require.ErrorIs(t, e, idempotency.ErrKeyMissing)
			return newTextResult("no: %s", e.Detail), nil
		},
	}})
	require.Contains(t, s.call(withKey("", 1)).Text, "no: Nothing was done")
}

// UCP has the key in meta of the arguments, and refusals are JSON-RPC errors.
func TestUCP(t *testing.T) {
	t.Parallel()
	type meta struct {
		Key string `json:"idempotency-key"`
	}
	type checkout struct {
		Meta meta   `json:"meta"`
		ID   string `json:"id"`
	}
	down := new(adaptertest.FaultyStore)
	down.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	s := startService(t, setup{store: down, guardOptions: mcpidempotency.UCP(), addTools: func(server *mcp.Server) {
		mcp.AddTool(server, &mcp.Tool{Name: "complete_checkout"}, func(
			_ context.Context, _ *mcp.CallToolRequest, c checkout,
		) (*mcp.CallToolResult, any, error) {
			return newTextResult("%s completed with %s", c.ID, c.Meta.Key), nil, nil
		})
	}})
	complete := func(id, key string) answer {
		return s.call(&mcp.CallToolParams{Name: "complete_checkout", Arguments: checkout{meta{key}, id}})
	}
	require.Equal(t, "checkout-1 completed with key-1", complete("checkout-1", "key-1").Text)
	require.True(t, complete("checkout-1", "key-1").Replayed)
	requireWireError(t, complete("checkout-2", "key-1"), -32000, "key_reused", "new-key", 0)
	requireWireError(t, complete("checkout-2", "a b"), -32602, "key_invalid", "new-key", 0)
	down.BeginErr = errors.New("refused")
	requireWireError(t, complete("checkout-1", "key-1"), -32000, "store_unavailable", "same-key", 1)
}

// requireWireError requires a JSON-RPC error.
func requireWireError(t *testing.T, got answer, wantCode int64, code, retry string, retryAfter int) {
	t.Helper()
	wire, ok := errors.AsType[*jsonrpc.Error](got.err)
	require.True(t, ok, "%v", got.err)
	require.Equal(t, wantCode, wire.Code)
	require.NotEmpty(t, wire.Message)
	want := map[string]any{"code": code, "content": wire.Message, "retry": retry}
	if retryAfter > 0 {
		want["retry_after"] = retryAfter
	}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.JSONEq(t, string(text), string(wire.Data))
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{
		store: &adaptertest.FaultyStore{BeginErr: errors.New("refused")}, runnerOptions: idempotency.RunnerOptions{FailOpen: true},
	})
	for range 2 {
		require.Equal(t, "charged 1", s.call(withKey("1", 1)).Text)
	}
	require.Equal(t, int64(2), s.runs.Load())
}
