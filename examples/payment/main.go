// Payment is a service whose handler charges a card at a payment provider, and then writes a row: service.go has all of it.
// Charge and row are steps. The provider gets the same key from all attempts, and the row is committed together with its
// result. The database is the PostgreSQL at DATABASE_URL or else a private one. The service is killed at each point of an
// order, and then at random, and the clients try again: the next attempt goes on where the one before has stopped. It
// ends with the line
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

// createPayments makes the table of the service. It has no unique constraint, which would hide what the store does.
const createPayments = "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY, pieces int, charge text)"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if process.IsService() {
		serve(ctx)
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

// serve runs the service until this process is killed. The service halts where a step begins or ends, and in a transaction.
func serve(ctx context.Context) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // its log has a line for each request
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

// haltAfterInsert is a tracer of the database.
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

// haltAtStep prints what becomes of a step.
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
