package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// agent stands for a model with a client of the Model Context Protocol.
type agent struct {
	url     string
	answers []string // without the answers that tell the agent to call again
}

// call calls the tool charge in a new session, and prints the call and what comes back.
func (a *agent) call(ctx context.Context, arguments string) {
	fmt.Println("agent: charge", arguments)
	result, err := a.callTool(ctx, arguments)
	if err != nil {
		fmt.Println("agent: no answer")
		return
	}
	printText(readText(result))
}

// printText prints each sentence of a tool on a line.
func printText(text string) {
	fmt.Println("tool: ", strings.ReplaceAll(text, ". ", ".\n       "))
}

// callUntilAnswered calls the tool charge until the tool no longer tells the agent to call again.
func (a *agent) callUntilAnswered(ctx context.Context, arguments string) {
	fmt.Println("agent: the same call again")
	for lastRefusal := ""; ; {
		result, err := a.callTool(ctx, arguments)
		demo.Check(err)
		text, marker := readText(result), readMarker(result)
		if marker.Replayed {
			text += " (a replay)"
		}
		if marker.Code == "" || marker.Code != lastRefusal {
			printText(text)
		}
		if marker.Retry != "same-key" {
			a.answers = append(a.answers, readText(result))
			return
		}
		lastRefusal = marker.Code
		time.Sleep(time.Duration(marker.RetryAfter) * time.Second)
	}
}

func (a *agent) callTool(ctx context.Context, arguments string) (*mcp.CallToolResult, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: a.url, HTTPClient: &http.Client{Transport: bearer{}}, MaxRetries: -1, DisableStandaloneSSE: true,
	}, nil)
	demo.Check(err)
	defer session.Close()
	return session.CallTool(ctx, &mcp.CallToolParams{Name: "charge", Arguments: json.RawMessage(arguments)})
}

// bearer sends the token of alice.
type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer alice-token")
	return http.DefaultTransport.RoundTrip(r)
}

func readText(result *mcp.CallToolResult) (text string) {
	for _, content := range result.Content {
		if c, ok := content.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	return text
}

// marker is what the middleware tells programs in _meta.
type marker struct {
	Replayed   bool
	Code       string // of a refusal
	Retry      string
	RetryAfter int // seconds
}

func readMarker(result *mcp.CallToolResult) (m marker) {
	encoded, err := json.Marshal(result.Meta["idempotency"])
	demo.Check(err)
	demo.Check(json.Unmarshal(encoded, &m))
	return m
}
