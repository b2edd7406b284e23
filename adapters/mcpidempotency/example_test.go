package mcpidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
)

// A server over stdio has a single user. A transport in memory stands for mcp.StdioTransport.
func ExampleSingleUser() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // a store in a file outlives the process
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := mcpidempotency.New(runner, mcpidempotency.SingleUser, mcpidempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	type payment struct {
		Cents int `json:"cents"`
	}
	charges := 0
	mcp.AddTool(server, &mcp.Tool{Name: "charge"}, func(
		_ context.Context, _ *mcp.CallToolRequest, p payment,
	) (*mcp.CallToolResult, any, error) {
		charges++
		text := fmt.Sprintf("charge %d: %d cents", charges, p.Cents)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	server.AddReceivingMiddleware(guard)

	ctx := context.Background()
	serverSide, clientSide := mcp.NewInMemoryTransports()
	go func() { _ = server.Run(ctx, serverSide) }()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, clientSide, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	for range 2 {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{
			Name: "charge", Arguments: map[string]any{"cents": 4200, "idempotency_key": "order-1"},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Content[0].(*mcp.TextContent).Text, result.Meta["idempotency"])
	}
	// Output:
	// charge 1: 4200 cents <nil>
	// charge 1: 4200 cents map[replayed:true]
}

// A server over HTTP takes the user from the verified token.
func ExampleTokenUser() {
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := mcpidempotency.New(runner, mcpidempotency.TokenUser, mcpidempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	server.AddReceivingMiddleware(guard)
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return nil, auth.ErrInvalidToken // set TokenInfo.UserID to the subject of a valid token
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	http.Handle("/mcp", auth.RequireBearerToken(verify, nil)(handler))
}

// Users of several tenants may have the same ID, so the tenant belongs to the user.
func ExampleUserFunc() {
	var tenantUser mcpidempotency.UserFunc = func(_ context.Context, extra *mcp.RequestExtra) (string, error) {
		if extra.TokenInfo == nil {
			return "", errors.New("no token")
		}
		return fmt.Sprintf("%v %s", extra.TokenInfo.Extra["tenant"], extra.TokenInfo.UserID), nil
	}
	user, err := tenantUser(context.Background(), &mcp.RequestExtra{
		TokenInfo: &auth.TokenInfo{UserID: "alice", Extra: map[string]any{"tenant": "acme"}},
	})
	fmt.Println(user, err)
	// Output: acme alice <nil>
}

// All tools but one are guarded by their annotations.
func ExampleNeedsKey() {
	opts := mcpidempotency.Options{Tools: func(tool *mcp.Tool) bool {
		return tool.Name != "log" && mcpidempotency.NeedsKey(tool)
	}}
	for _, tool := range []*mcp.Tool{
		{Name: "charge"}, {Name: "log"}, {Name: "balance", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
	} {
		fmt.Println(tool.Name, opts.Tools(tool))
	}
	// Output:
	// charge true
	// log false
	// balance false
}

// The tools of the Universal Commerce Protocol have the key in their member meta.
func ExampleUCP() {
	opts := mcpidempotency.UCP()
	opts.Tools = func(tool *mcp.Tool) bool { return tool.Name == "complete_checkout" || tool.Name == "cancel_checkout" }
	opts.Required = true
	fmt.Println(opts.Argument)
	// Output: /meta/idempotency-key
}
