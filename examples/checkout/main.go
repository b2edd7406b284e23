// Checkout shows on a page why a payment needs idempotency keys. A customer presses "Pay", the answer gets lost, and the
// customer presses again, ten times at once. The server is killed in the middle, and started again. The page shows the
// charges without the middleware and with the middleware side by side, and each request with its answer. One button plays
// the whole story. The connections really break, the process really dies, and the charges are rows of a ledger that survives
// the process.
//
//	go run ./examples/checkout            # serves the page until it is interrupted
//	go run ./examples/checkout -load 500  # 500 orders, answers that get lost, and a kill while they are under way
//
// The ledger and the keys are in a file, or in the database that the environment names: see store.go.
//
// With -console, no transaction spans a charge. If the server dies during a payment, retries are refused until an operator
// has found out whether the card was charged. The flag is the address of the operators' console:
//
//	go run ./examples/checkout -console 127.0.0.1:8081
//
// Stop the server during a payment: the page retries, and gets a 409. The page then links to the operation in the console,
// and to /charges at the same address, which lists the charges. Enter the result in the console, and try again: the customer
// gets the receipt.
//
// With -run, the program plays the story without a browser, and ends with the line
//
//	2 orders, 15 presses: 15 charges without the middleware, 2 with it
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
)

func main() {
	if process.IsService() {
		serveShop()
		return
	}
	address := flag.String("listen", "", "serve at this address; the page is at 127.0.0.1:8080 else")
	run := flag.Bool("run", false, "play the story without a browser, and end")
	operators := flag.String("console", "", "refuse what nobody knows the outcome of, and serve the operators' console at this address")
	orders := flag.Int("load", 0, "pay for this many orders, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ends := *run || *orders > 0
	listener, err := net.Listen("tcp", addressOf(*address, ends))
	demo.Check(err)
	if *operators != "" && ends {
		log.Fatal("-console is for the page")
	}
	if *operators != "" {
		demo.Check(os.Setenv(consoleVariable, "yes"))
	}
	supervisor, end := newSupervisor(ctx)
	defer end()
	if *operators != "" {
		defer startConsole(ctx, *operators, supervisor)()
	}
	defer startServer(listener, supervisor.newHandler())()
	customer := newCustomer("http://" + listener.Addr().String())
	switch {
	case *run:
		playStory(ctx, customer)
	case *orders > 0:
		supervisor.restartPause = 0
		runLoad(ctx, customer, supervisor, *orders)
	default:
		fmt.Println("Open " + customer.baseURL)
		if supervisor.consoleURL != "" {
			fmt.Println("The console is at " + supervisor.consoleURL)
		}
		<-ctx.Done()
	}
}

// addressOf returns the address to listen at. A program that ends by itself takes any free port.
func addressOf(address string, ends bool) string {
	if address == "" && ends {
		return "127.0.0.1:0"
	}
	return cmp.Or(address, "127.0.0.1:8080")
}
