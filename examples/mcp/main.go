// Mcp is a server of the Model Context Protocol with a tool that charges a card and writes a row. The server is killed when
// the provider has charged the card and nothing is recorded. The agent does what the texts of the server say, and calls
// again with the same key. The tool then runs again, and gets the same charge from the provider, because the provider
// compares keys. Records and rows are in a file, so the program needs nothing else to run. The program ends with the line
//
//	answers: 2, both the same: true, charges: 1, rows: 1
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

func main() {
	if process.IsService() {
		runServer()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "mcp")
	demo.Check(err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "payments.db")
	demo.Check(os.Setenv("FILE", file))
	db, err := sql.Open("sqlite", file)
	demo.Check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE TABLE payments (id INTEGER PRIMARY KEY, cents INTEGER, charge TEXT)")
	demo.Check(err)
	bank, stop := provider.Start()
	defer stop()
	server := process.New()
	defer server.Stop()
	server.Start(ctx, "HALT="+charged)

	a := &agent{url: server.URL}
	a.call(ctx, `{"cents": 4200}`)
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		server.AwaitHalt()
		fmt.Println("       The card is charged, and the server is killed. A new server starts.")
		server.Kill()
		server.Start(ctx)
	}()
	payment := `{"cents": 4200, "idempotency_key": "0b6d1f6e-6a0c-4f0f-9a2b-5a1d3c8e7f21"}`
	a.call(ctx, payment)
	<-restarted
	for range 2 {
		a.callUntilAnswered(ctx, payment)
	}

	server.Stop()
	var rows int
	demo.Check(db.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&rows))
	verdict := fmt.Sprintf("answers: %d, both the same: %t, charges: %d, rows: %d",
		len(a.answers), a.answers[0] == a.answers[1], bank.Acts(), rows)
	fmt.Println(verdict)
	if verdict != "answers: 2, both the same: true, charges: 1, rows: 1" {
		log.Fatal("this is broken")
	}
}
