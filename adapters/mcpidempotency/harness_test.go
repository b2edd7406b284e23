package mcpidempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// payment has the arguments of the tools.
type payment struct {
	Cents int `json:"cents" jsonschema:"the amount"`
}

// receipt is the structured content of the tool refund.
type receipt struct {
	Receipt string `json:"receipt"`
}

// chargeTool implements the tool charge.
type chargeTool func(ctx context.Context, request *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, error)

// setup configures a service. The comments state the defaults of fields without a value.
type setup struct {
	charge        chargeTool        // returns a text with the amount
	store         idempotency.Store // a MemoryStore
	runnerOptions idempotency.RunnerOptions
	guardOptions  mcpidempotency.Options
	identifyUser  mcpidempotency.UserFunc // TokenUser
	addTools      func(*mcp.Server)
	inner         []mcp.Middleware // run inside the guard
	outer         []mcp.Middleware // run outside the guard
	serverOptions *mcp.ServerOptions
	clientOptions *mcp.ClientOptions
	isStateless   bool // without sessions, by the protocol of 2026-07-28
}

// service is a running server with a connected client of alice.
type service struct {
	t       *testing.T
	url     string
	session *mcp.ClientSession
	server  *mcp.Server
	runner  *idempotency.Runner
	guard   mcp.Middleware
	runs    atomic.Int64 // executions of all tools
}

// startService starts a server with a connected client, and stops both at the end of the test.
func startService(t *testing.T, s setup) *service {
	t.Helper()
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.identifyUser == nil {
		s.identifyUser = mcpidempotency.TokenUser
	}
	if s.runnerOptions.Logger == nil {
		s.runnerOptions.Logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{t: t}
	var err error
	sv.runner, err = idempotency.NewRunner(s.store, s.runnerOptions)
	require.NoError(t, err)
	sv.guard, err = mcpidempotency.New(sv.runner, s.identifyUser, s.guardOptions)
	require.NoError(t, err)
	sv.server = sv.newServer(s)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return sv.server }, &mcp.StreamableHTTPOptions{
		Stateless: s.isStateless, PropagateRequestCancellation: true,
	})
	listener := servertest.Listen(t)
	httpServer := &http.Server{Handler: auth.RequireBearerToken(verifyToken, nil)(handler)}
	go func() { _ = httpServer.Serve(listener) }()
	t.Cleanup(func() { _ = httpServer.Close() })
	t.Cleanup(func() {
		for session := range sv.server.Sessions() {
			_ = session.Close()
		}
	})
	sv.url = "http://" + listener.Addr().String()
	sv.session = sv.connect("alice", s.clientOptions)
	return sv
}

// newServer returns a server with the tools charge and refund, the read-only tool balance, and the idempotent tool limit.
func (s *service) newServer(config setup) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "1"}, config.serverOptions)
	charge := &mcp.Tool{Name: "charge", Description: "Charges a card."}
	mcp.AddTool(server, charge, func(ctx context.Context, r *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, any, error) {
		s.runs.Add(1)
		if config.charge == nil {
			return newTextResult("charged %d", p.Cents), nil, nil
		}
		result, err := config.charge(ctx, r, p)
		return result, nil, err
	})
	mcp.AddTool(server, &mcp.Tool{Name: "refund"}, func(
		_ context.Context, _ *mcp.CallToolRequest, p payment,
	) (*mcp.CallToolResult, receipt, error) {
		return nil, receipt{fmt.Sprint("refund ", s.runs.Add(1), " of ", p.Cents)}, nil
	})
	for name, annotations := range map[string]*mcp.ToolAnnotations{
		"balance": {ReadOnlyHint: true}, "limit": {IdempotentHint: true},
	} {
		mcp.AddTool(server, &mcp.Tool{Name: name, Annotations: annotations}, func(
			_ context.Context, _ *mcp.CallToolRequest, _ payment,
		) (*mcp.CallToolResult, any, error) {
			return newTextResult("run %d", s.runs.Add(1)), nil, nil
		})
	}
	if config.addTools != nil {
		config.addTools(server)
	}
	server.AddReceivingMiddleware(config.inner...)
	server.AddReceivingMiddleware(s.guard)
	server.AddReceivingMiddleware(config.outer...)
	return server
}

// newTextResult returns a result with a text.
func newTextResult(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// verifyToken accepts each token as the ID of its user. The token "nobody" has no user.
func verifyToken(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if token == "nobody" {
		token = ""
	}
	return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
}

// bearerTransport adds a token to each request.
type bearerTransport struct {
	http.RoundTripper
	token string
}

func (b bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// connect returns a session of user, which ends with the test.
func (s *service) connect(user string, opts *mcp.ClientOptions) *mcp.ClientSession {
	s.t.Helper()
	return s.connectVia(s.newTransport(user), opts)
}

// newTransport returns a transport that sends the token of user.
func (s *service) newTransport(user string) http.RoundTripper {
	dialer := &http.Transport{DialContext: servertest.Dial}
	s.t.Cleanup(dialer.CloseIdleConnections)
	return bearerTransport{dialer, user}
}

func (s *service) connectVia(transport http.RoundTripper, opts *mcp.ClientOptions) *mcp.ClientSession {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitLimit)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, opts)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: s.url, HTTPClient: &http.Client{Transport: transport}, MaxRetries: -1,
	}, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = session.Close() })
	return session
}

// answer is what a client receives for a call. Result is JSON without the member "idempotency" of _meta.
type answer struct {
	Result   string
	Text     string
	IsError  bool
	Replayed bool
	Code     string // of a refusal
	Marker   any    // the member "idempotency" of _meta

	structured any
	err        error
}

// withoutMarker returns the answer without the marker of a replay, to be compared with another answer.
func (a answer) withoutMarker() answer {
	a.Replayed, a.Marker = false, nil
	return a
}

// withKey returns the parameters of a call of the tool charge with a key in _meta. An empty key means no key.
func withKey(key string, cents int) *mcp.CallToolParams {
	params := &mcp.CallToolParams{Name: "charge", Arguments: map[string]any{"cents": cents}}
	if key != "" {
		params.Meta = mcp.Meta{"idempotency-key": key}
	}
	return params
}

// call calls a tool as alice.
func (s *service) call(params *mcp.CallToolParams) answer {
	s.t.Helper()
	return callTool(s.t.Context(), s.session, params)
}

func callTool(ctx context.Context, session *mcp.ClientSession, params *mcp.CallToolParams) answer {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	result, err := session.CallTool(ctx, params)
	if err != nil {
		return answer{err: err}
	}
	return newAnswer(result)
}

func newAnswer(result *mcp.CallToolResult) answer {
	var marker struct {
		Replayed bool
		Code     string
	}
	encoded, errMarker := json.Marshal(result.Meta["idempotency"])
	_ = json.Unmarshal(encoded, &marker) // fails if the tool has set the member
	got := answer{
		IsError: result.IsError, Replayed: marker.Replayed, Code: marker.Code,
		Marker: result.Meta["idempotency"], structured: result.StructuredContent,
	}
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			got.Text += text.Text
		}
	}
	delete(result.Meta, "idempotency")
	text, errResult := json.Marshal(result)
	got.Result, got.err = string(text), errors.Join(errMarker, errResult)
	return got
}

// waitLimit bounds the wait for events that are certain to happen.
const waitLimit = 30 * time.Second

// awaitValue returns the next value from c, and fails the test after waitLimit.
func awaitValue[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(waitLimit):
		t.Fatal("waited in vain")
	}
	return v
}
