package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// startConsole serves the handler of the operators at address until stop is called, and has the page link to the console.
func startConsole(ctx context.Context, address string, s *supervisor) (stop func()) {
	listener, err := net.Listen("tcp", address)
	demo.Check(err)
	s.consoleURL = fmt.Sprintf("http://%s/idempotency/", listener.Addr())
	return startServer(listener, newOperatorHandler(ctx, s.ledger))
}

// newOperatorHandler returns the handler for the operators: the console, and the list of charges that a provider would show.
// Both work while the shop is dead.
func newOperatorHandler(ctx context.Context, ledger *ledger) http.Handler {
	_, store := openStore(ctx)
	pages, err := console.New(store.(idempotency.Inspector), console.Options{
		// Every user of this machine is the operator here. A real service returns the user who has logged in.
		Operator: func(*http.Request) (string, error) { return "operator", nil },
		Show:     func(*http.Request) bool { return true },
	})
	demo.Check(err)
	mux := http.NewServeMux()
	mux.Handle("/idempotency/", pages)
	mux.HandleFunc("GET /charges", func(w http.ResponseWriter, r *http.Request) {
		lines, err := ledger.listCharges(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	})
	return mux
}
