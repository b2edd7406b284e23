// Unique is a service whose handler charges a card and writes a row, without a transaction that includes the record: the records
// are in the Redis at REDIS_URL, and the rows are in the PostgreSQL at DATABASE_URL, or else in private servers. The primary key of
// a row is the ID of its operation, and the row also holds the fingerprint of the request. The program kills the service at each
// step of an order, and then at random, while clients send retries. At each kill, Redis also loses all records. The program ends
// with the line
//
//	81 orders, 12 deaths: 81 charges, 81 rows, a key used for another order: 422
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		runService(ctx)
		return
	}
	pool, dropTables := database.Create(ctx)
	defer dropTables()
	emptyRedis, drop := database.CreateRedis(ctx)
	defer drop()
	_, err := pool.Exec(ctx, "CREATE TABLE payments (operation uuid PRIMARY KEY, fingerprint bytea, charge text)")
	demo.Check(err)
	bank, stop := provider.Start()
	defer stop()

	sent := orders.New()
	sent.WhenDead = emptyRedis
	sent.DieAt(ctx, claimed, charged, written, process.Stored)
	sent.DieAtRandom(ctx, 8)
	defer sent.Stop()
	emptyRedis()
	sent.Replayed(ctx) // the handler runs again, and returns the same answers
	emptyRedis()
	reused := sent.Send(ctx, sent.Keys[0], 1000)
	var rows int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*) FROM payments").Scan(&rows))
	verdict := fmt.Sprintf("%v: %d charges, %d rows, a key used for another order: %d", sent, bank.Acts(), rows, reused.Status)
	fmt.Println(verdict)
	if verdict != "81 orders, 12 deaths: 81 charges, 81 rows, a key used for another order: 422" {
		log.Fatal("this is broken")
	}
}

// Places where the program kills the service.
const claimed, charged, written = "the key is claimed", "the card is charged", "the row is written"

func runService(ctx context.Context) {
	idem, err := idempotency.New(database.ConnectRedis(), idempotency.SingleUser,
		process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(shop{database.Connect(ctx)}))
}

type shop struct{ pool *pgxpool.Pool }

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	op, _ := idempotency.FromContext(r.Context())
	p, err := s.findPayment(r.Context(), op.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		p, err = s.makePayment(r.Context(), op)
	}
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, so a retry gets the same charge
	case !bytes.Equal(p.fingerprint, op.Fingerprint[:]): // the record is lost or expired, so the middleware could not compare
		idempotency.Decide(r.Context(), idempotency.Free) // frees the key for a retry of the first order
		http.Error(w, "the key was used for another order", http.StatusUnprocessableEntity)
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%d pieces, paid by charge %s", pieces, p.charge)
	}
}

type payment struct {
	fingerprint []byte // of the request that has made the payment
	charge      string
}

// makePayment charges the card, and writes the row unless another attempt has written it.
func (s shop) makePayment(ctx context.Context, op idempotency.Operation) (p payment, err error) {
	charge, err := provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		return p, err
	}
	process.HaltAt(charged)
	_, err = s.pool.Exec(ctx, "INSERT INTO payments (operation, fingerprint, charge) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
		op.ID, op.Fingerprint[:], charge)
	if err != nil {
		return p, err
	}
	process.HaltAt(written)
	return s.findPayment(ctx, op.ID)
}

// findPayment returns the payment of operation, or pgx.ErrNoRows if the operation has no payment yet.
func (s shop) findPayment(ctx context.Context, operation uuid.UUID) (p payment, err error) {
	const query = "SELECT fingerprint, charge FROM payments WHERE operation = $1"
	err = s.pool.QueryRow(ctx, query, operation).Scan(&p.fingerprint, &p.charge)
	return p, err
}
