// Graphql guards a mutation of a gqlgen server. The client is a program in JavaScript with urql, whose retry exchange sends
// the mutation again: the connection breaks while the card is being charged, then the server is still busy, and then the
// client gets its answer. It needs Node.js, and npm to get urql. Package shop stands for what gqlgen generates. The program
// ends with the line
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
	bank := &bank{busy: make(chan struct{})}
	graph := handler.New(shop.New(shop.Resolvers{Pay: bank.pay, State: bank.state}))
	graph.AddTransport(transport.POST{})
	graph.Use(guard)
	server := httptest.NewServer(bank.unlucky(graph))

	demo.Check(pay(server.URL))
	server.Close()
	demo.Check(runner.Shutdown(context.Background()))
	fmt.Printf("payments: 1, charges: %d\n", bank.charges.Load())
	if bank.charges.Load() != 1 || bank.requests.Load() < 4 {
		log.Fatal("this is broken")
	}
}

// bank has the resolvers.
type bank struct {
	charges, requests atomic.Int64
	busy              chan struct{} // closed when the second request is answered
}

func (b *bank) pay(_ context.Context, cents int) (*shop.Order, error) {
	<-b.busy
	return &shop.Order{ID: fmt.Sprint("charge ", b.charges.Add(1)), Cents: cents}, nil
}

func (b *bank) state(context.Context) (string, error) { return "charged", nil }

// unlucky is a network on which the connection of the first request breaks.
func (b *bank) unlucky(graph http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		demo.Check(err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch b.requests.Add(1) {
		case 1:
			conn, _, err := http.NewResponseController(w).Hijack()
			demo.Check(err)
			demo.Check(conn.Close())
			graph.ServeHTTP(httptest.NewRecorder(), r)
		case 2:
			graph.ServeHTTP(w, r)
			close(b.busy)
		default:
			graph.ServeHTTP(w, r)
		}
	})
}

//go:embed client
var client embed.FS

// pay installs the client, and runs it.
func pay(url string) error {
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
	if said, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm: %w: %s", err, said)
	}
	run := exec.Command("node", "pay.js", url)
	run.Dir, run.Stdout, run.Stderr = dir, os.Stdout, os.Stderr
	return run.Run()
}
