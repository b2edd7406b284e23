// Order is a service whose handler has three steps: it reserves the goods, charges a card, and ships. The service is killed
// between any two of them, and then at random. The next attempt goes on where the one before has stopped. First the results
// of the steps are in the Redis at REDIS_URL or else in a private one. Then the store is a transactional one, in the
// PostgreSQL at DATABASE_URL or else in a private one: the row of an order is rolled back with each death, and the steps
// are not. It ends with the line
//
//	PostgreSQL: 41 orders, 9 deaths: 123 acts, 41 rows, 41 answers replayed
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/step"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve(ctx)
		return
	}
	redis()
	postgres(ctx)
}

func redis() {
	ctx := context.Background()
	_, drop := database.CreateRedis(ctx)
	defer drop()
	demo.Check(os.Setenv("STORE", "Redis"))
	sent, bank, replayed := order(ctx)
	conclude("Redis: %v: %d acts, %d answers replayed", "Redis: 41 orders, 9 deaths: 123 acts, 41 answers replayed",
		sent, bank.Acts(), replayed)
}

func postgres(ctx context.Context) {
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	// There is no unique constraint: it would hide what the store does.
	_, err := pool.Exec(ctx, "CREATE TABLE orders (reservation text, charge text, parcel text)")
	demo.Check(err)
	demo.Check(os.Setenv("STORE", "PostgreSQL"))
	sent, bank, replayed := order(ctx)
	var rows int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&rows))
	conclude("PostgreSQL: %v: %d acts, %d rows, %d answers replayed",
		"PostgreSQL: 41 orders, 9 deaths: 123 acts, 41 rows, 41 answers replayed", sent, bank.Acts(), rows, replayed)
}

// order sends orders while the service dies again and again.
func order(ctx context.Context) (sent *orders.Orders, bank *provider.Provider, replayed int) {
	fmt.Println("The steps are in", os.Getenv("STORE")+".")
	bank, stop := provider.Start()
	defer stop()
	sent = orders.New()
	defer sent.Stop()
	sent.DieAt(ctx, "claimed", "reserved", "charged", "shipped", process.Stored)
	if calls := bank.Calls(); calls != 3 {
		log.Fatalf("this is broken: three steps of one order made %d calls", calls)
	}
	sent.DieAtRandom(ctx, 4)
	return sent, bank, sent.Replayed(ctx)
}

func conclude(format, want string, args ...any) {
	verdict := fmt.Sprintf(format, args...)
	fmt.Println(verdict)
	if verdict != want {
		log.Fatal("this is broken")
	}
}

func serve(ctx context.Context) {
	store, err := open(ctx)
	demo.Check(err)
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required:     true,
		Lease:        time.Second,      // how long an order is blocked if its process dies; the default is more patient
		StoreTimeout: time.Second,      // so that a slow disk is none of the failures that are shown here
		Wait:         10 * time.Second, // for the lease of a process that has died
	})
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(handle)))
}

func open(ctx context.Context) (idempotency.Store, error) {
	if os.Getenv("STORE") == "Redis" {
		return database.ConnectRedis(), nil
	}
	// The steps have a pool of their own: a handler that holds a transaction never waits for a connection of others.
	tx, steps := database.Connect(ctx), database.Connect(ctx)
	return step.Beside(pgxstore.NewTx(tx, pgxstore.Options{}), pgxstore.New(steps, pgxstore.Options{}))
}

func handle(w http.ResponseWriter, r *http.Request) {
	process.HaltAt("claimed")
	answer, err := carryOut(step.WithTracer(r.Context(), tell))
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry finds the steps that are done
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, answer)
}

func carryOut(ctx context.Context) (answer string, err error) {
	reservation, err := call(ctx, "reserve")
	if err != nil {
		return "", err
	}
	process.HaltAt("reserved")
	charge, err := call(ctx, "charge")
	if err != nil {
		return "", err
	}
	process.HaltAt("charged")
	parcel, err := call(ctx, "ship")
	if err != nil {
		return "", err
	}
	process.HaltAt("shipped")
	if tx, ok := pgxstore.Tx(ctx); ok { // its row is committed together with the answer
		_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3)", reservation, charge, parcel)
	}
	return fmt.Sprintf("reservation %s, charge %s, parcel %s", reservation, charge, parcel), err
}

// call has the provider act, in a step of that name.
func call(ctx context.Context, name string) (number string, err error) {
	return step.Do(ctx, name, func(ctx context.Context) (string, error) {
		op, _ := idempotency.FromContext(ctx)
		return provider.Call(ctx, provider.Request{Key: op.DownstreamKey(name)})
	})
}

// tell prints what becomes of a step.
func tell(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
	return ctx, func(found bool, err error) {
		switch {
		case err != nil:
			process.Tell(name + " has failed: " + err.Error())
		case found:
			process.Tell(name + " is done already")
		default:
			process.Tell(name + " is done now")
		}
	}
}
