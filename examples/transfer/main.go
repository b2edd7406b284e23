// Transfer is a complete service that moves money between accounts. The service creates its tables, checks the server, deletes
// expired records, and stops in order. With an address, the program serves until it is interrupted:
//
//	DATABASE_URL=postgres://localhost/bank go run ./examples/transfer -listen localhost:8080
//	curl -i -u alice:secret -H 'Idempotency-Key: rent-11' -d '{"to":"bob","amount":30}' localhost:8080/transfers
//
// A database server for development that runs without fsync needs -development. Without an address, the program is also the client
// of its service, with the PostgreSQL at DATABASE_URL, or else with a private server. The program then ends with the line
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
		runDemo(ctx)
		return
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	demo.Check(err)
	defer pool.Close()
	listener, err := net.Listen("tcp", *address)
	demo.Check(err)
	fmt.Println("listening on", listener.Addr())
	demo.Check(runService(ctx, pool, listener, *lease, *development))
}

// runDemo starts the service, sends requests to the service, and stops the service.
func runDemo(ctx context.Context) {
	pool, drop := database.Create(ctx)
	defer drop()
	listener := demo.Listen()
	ended := make(chan error)
	serving, stop := context.WithCancel(ctx)
	go func() { ended <- runService(serving, pool, listener, 10*time.Second, true) }()

	c := client{baseURL: "http://" + listener.Addr().String()}
	for range 3 {
		c.sendTransfer("rent-11", 30, 201) // the first request, and two retries
	}
	for range 2 {
		c.sendTransfer("rent-12", 500, 422) // more than alice has, and its retry
	}
	c.sendTransfer("", 10, 400) // no key
	verdict := fmt.Sprintf("%d requests, 1 transfer: alice has %s, bob has %s",
		c.requestCount, c.readBalance("alice"), c.readBalance("bob"))
	stop()
	demo.Check(<-ended)
	fmt.Println(verdict)
	if verdict != "6 requests, 1 transfer: alice has 70, bob has 30" {
		log.Fatal("this is broken")
	}
}
