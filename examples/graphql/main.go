// Graphql guards a mutation of a gqlgen server. The client is a JavaScript program with urql, whose retry exchange repeats the
// mutation: first the connection breaks while the card is being charged, the second attempt finds the server busy, and a later
// attempt gets the answer. The example needs Node.js, and npm to install urql. Package shop stands for the code that gqlgen
// generates. The program ends with the line
//
//	payments: 1, charges: 1
package main

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/transport"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	demo.Check(err)
	guard, err := gqlgenidempotency.New(runner, gqlgenidempotency.SingleUser, gqlgenidempotency.Options{
		Required: func(field string) bool { return field == "pay" },
	})
	demo.Check(err)
	bank := &bank{secondAnswered: make(chan struct{})}
	graph := handler.New(shop.New(shop.Resolvers{Pay: bank.payOrder, State: bank.orderState}))
	graph.AddTransport(transport.POST{})
	graph.Use(guard)
	server := httptest.NewServer(bank.breakFirstConnection(graph))

	demo.Check(runClient(server.URL))
	server.Close()
	demo.Check(runner.Shutdown(context.Background()))
	fmt.Printf("payments: 1, charges: %d\n", bank.chargeCount.Load())
	if bank.chargeCount.Load() != 1 || bank.requestCount.Load() < 4 {
		log.Fatal("this is broken")
	}
}

// bank has the resolvers of the server.
type bank struct {
	chargeCount, requestCount atomic.Int64
	secondAnswered            chan struct{} // closed when the second request is answered; a charge waits for this
}

func (b *bank) payOrder(_ context.Context, cents int) (*shop.Order, error) {
	<-b.secondAnswered
	return &shop.Order{ID: fmt.Sprint("charge ", b.chargeCount.Add(1)), Cents: cents}, nil
}

func (b *bank) orderState(context.Context) (string, error) { return "charged", nil }

// breakFirstConnection stands for a network that breaks the connection of the first request.
func (b *bank) breakFirstConnection(graph http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		demo.Check(err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch b.requestCount.Add(1) {
		case 1:
			conn, _, err := http.NewResponseController(w).Hijack()
			demo.Check(err)
			demo.Check(conn.Close())
			graph.ServeHTTP(httptest.NewRecorder(), r)
		case 2:
			graph.ServeHTTP(w, r)
			close(b.secondAnswered)
		default:
			graph.ServeHTTP(w, r)
		}
	})
}

//go:embed client
var client embed.FS

// runClient installs the JavaScript client, and runs the client against url.
func runClient(url string) error {
	dir, err := os.MkdirTemp("", "graphql")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, client); err != nil {
		return err
	}
	dir = filepath.Join(dir, "client")
	install := exec.Command("npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm: %w: %s", err, output)
	}
	run := exec.Command("node", "pay.js", url)
	run.Dir, run.Stdout, run.Stderr = dir, os.Stdout, os.Stderr
	return run.Run()
}
