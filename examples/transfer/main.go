// Transfer is a whole service that moves money between accounts. It makes its tables, checks the server, cleans up, and stops
// in order. With an address it serves until it is interrupted:
//
//	DATABASE_URL=postgres://localhost/bank go run ./examples/transfer -listen localhost:8080
//	curl -i -u alice:secret -H 'Idempotency-Key: rent-11' -d '{"to":"bob","amount":30}' localhost:8080/transfers
//
// A server for development that runs without fsync needs -development. Without an address the service is a client of its
// own, in the PostgreSQL at DATABASE_URL or else in a private one. It ends with the line
//
//	6 requests, 1 transfer: alice has 70, bob has 30
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	address := flag.String("listen", "", "serve at this address")
	development := flag.Bool("development", false, "accept a server without fsync")
	lease := flag.Duration("lease", 10*time.Second, "how long a transfer is blocked if the process dies in it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *address == "" {
		demonstrate(ctx)
		return
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	demo.Check(err)
	defer pool.Close()
	listener, err := net.Listen("tcp", *address)
	demo.Check(err)
	fmt.Println("listening on", listener.Addr())
	demo.Check(serve(ctx, pool, listener, *lease, *development))
}

// demonstrate runs the service for a client, and stops it.
func demonstrate(ctx context.Context) {
	pool, drop := database.Create(ctx)
	defer drop()
	listener := demo.Listen()
	ended := make(chan error)
	serving, stop := context.WithCancel(ctx)
	go func() { ended <- serve(serving, pool, listener, 10*time.Second, true) }()

	c := client{url: "http://" + listener.Addr().String()}
	for range 3 {
		c.transfer("rent-11", 30, 201) // the first one, and two retries
	}
	for range 2 {
		c.transfer("rent-12", 500, 422) // more than alice has, and a retry
	}
	c.transfer("", 10, 400) // no key
	verdict := fmt.Sprintf("%d requests, 1 transfer: alice has %s, bob has %s", c.sent, c.balance("alice"), c.balance("bob"))
	stop()
	demo.Check(<-ended)
	fmt.Println(verdict)
	if verdict != "6 requests, 1 transfer: alice has 70, bob has 30" {
		log.Fatal("this is broken")
	}
}
