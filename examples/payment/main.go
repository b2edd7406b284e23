// Payment is a service whose handler charges a card at a payment provider, and then writes a row: service.go is the whole service.
// The charge and the row are steps. All attempts at an order give the provider the same key, and the row is committed together
// with the result of its step. The database is the PostgreSQL at DATABASE_URL, or else a private server. The program kills the
// service at each point of an order, and then at random, while clients send retries. Each attempt continues where the previous
// attempt has stopped. The program ends with the line
//
//	81 orders, 13 deaths: 81 charges, 81 rows with 81 charges, 81 answers replayed
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/step"
)

// createPayments creates the table of the service. The table has no unique constraint, because a constraint would hide duplicate
// rows if the store failed.
const createPayments = "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY, pieces int, charge text)"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if process.IsService() {
		runService(ctx)
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	_, err := pool.Exec(ctx, createPayments)
	demo.Check(err)
	bank, stop := provider.Start()
	defer stop()

	sent := orders.New()
	defer sent.Stop()
	sent.DieAt(ctx, "claimed", "charged", "written, not committed", "committed", process.Stored)
	if calls := bank.Calls(); calls != 1 {
		log.Fatalf("this is broken: a charge took %d calls", calls)
	}
	sent.DieAtRandom(ctx, 8)
	replayed := sent.Replayed(ctx)
	var rows, distinct int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT charge) FROM payments").Scan(&rows, &distinct))
	verdict := fmt.Sprintf("%v: %d charges, %d rows with %d charges, %d answers replayed",
		sent, bank.Acts(), rows, distinct, replayed)
	fmt.Println(verdict)
	if verdict != "81 orders, 13 deaths: 81 charges, 81 rows with 81 charges, 81 answers replayed" {
		log.Fatal("this is broken")
	}
}

// runService runs the service until this process is killed. The service halts at the beginning and the end of steps, and inside
// the transaction.
func runService(ctx context.Context) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // hides the line for each request
	demo.Check(os.Setenv("DEVELOPMENT", "a private server has no fsync"))
	config := database.Config()
	config.ConnConfig.Tracer = haltAfterInsert{}
	pool, err := newPool(ctx, config)
	demo.Check(err)
	s, err := newService(ctx, pool, process.WithShortLease(options))
	demo.Check(err)
	s.server.BaseContext = func(net.Listener) context.Context { return step.WithTracer(ctx, haltAtStep) }
	demo.Check(s.run(ctx, process.Listen()))
}

// haltAfterInsert is a query tracer that halts the service between the INSERT and the commit.
type haltAfterInsert struct{}

type insertKey struct{}

func (haltAfterInsert) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, insertKey{}, strings.HasPrefix(data.SQL, "INSERT INTO payments"))
}

func (haltAfterInsert) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if isInsert, _ := ctx.Value(insertKey{}).(bool); isInsert {
		process.HaltAt("written, not committed")
	}
}

// haltAtStep is a tracer of steps. It prints the outcome of each step, and halts the service before and after a step.
func haltAtStep(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
	if name == "charge" {
		process.HaltAt("claimed")
	}
	return ctx, func(found bool, err error) {
		switch {
		case err != nil:
			process.Tell(name + " has failed: " + err.Error())
		case found:
			process.Tell(name + " is done already")
		default:
			process.Tell(name + " is done now")
		}
		process.HaltAt(map[string]string{"charge": "charged", "book": "committed"}[name])
	}
}
