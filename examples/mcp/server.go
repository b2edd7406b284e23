package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func runServer() {
	store, err := sqlitestore.Open(context.Background(), os.Getenv("FILE"), sqlitestore.Options{})
	demo.Check(err)
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		Lease: 3 * time.Second, // how long a dead process blocks a payment; the default is longer
	})
	demo.Check(err)
	guard, err := mcpidempotency.New(runner, mcpidempotency.TokenUser, mcpidempotency.Options{Required: true})
	demo.Check(err)
	server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge", Description: "Charges the card of the user."}, chargeCard)
	server.AddReceivingMiddleware(guard)

	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	process.Serve(auth.RequireBearerToken(verifyToken, nil)(handler))
}

// payment has the arguments of the tool. The key is not one of them.
type payment struct {
	Cents int `json:"cents"`
}

// charged is the place where the program kills the server.
const charged = "the provider has charged, and nothing is recorded"

func chargeCard(ctx context.Context, _ *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, any, error) {
	op, _ := idempotency.FromContext(ctx)
	charge, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
		charge, err := provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
		process.HaltAt(charged)
		return charge, err
	})
	if err != nil {
		return nil, nil, errors.New("try again with the same key") // not stored: a repetition asks the provider again
	}
	id, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int64, error) {
		row, err := tx.ExecContext(ctx, "INSERT INTO payments (cents, charge) VALUES (?, ?)", p.Cents, charge)
		if err != nil {
			return 0, err
		}
		return row.LastInsertId()
	})
	if err != nil {
		return nil, nil, errors.New("try again with the same key") // not stored: a repetition finds the charge
	}
	text := fmt.Sprintf("payment %d: %d cents, paid by charge %s", id, p.Cents, charge)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// verifyToken stands for the verification of access tokens.
func verifyToken(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if token != "alice-token" {
		return nil, auth.ErrInvalidToken
	}
	return &auth.TokenInfo{UserID: "alice", Expiration: time.Now().Add(time.Hour)}, nil
}
