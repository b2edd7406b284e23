// Workflow is a service that passes an order to a workflow engine, DBOS, and answers with the result. The ID of the operation is
// the ID of the workflow, so all attempts at an order share one workflow. The engine finishes the workflow even if the client
// never retries. Records and workflows are in the PostgreSQL at DATABASE_URL, or else in a private server. The program kills the
// service between any two steps of the workflow, and ends with the line
//
//	1 orders, 4 deaths: 1 workflows, 2 acts, 1 answers replayed, a key used for another order: 422
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		runService(ctx)
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	bank, stop := provider.Start()
	defer stop()

	sent := orders.New()
	sent.DieAt(ctx, "claimed", "charged", "shipped", process.Stored)
	defer sent.Stop()
	replayed := sent.Replayed(ctx)
	var workflows int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'").Scan(&workflows))
	_, err := pool.Exec(ctx, "DELETE FROM idempotency_records") // simulates the loss of all records
	demo.Check(err)
	reused := sent.Send(ctx, sent.Keys[0], 1000)
	verdict := fmt.Sprintf("%v: %d workflows, %d acts, %d answers replayed, a key used for another order: %d",
		sent, workflows, bank.Acts(), replayed, reused.Status)
	fmt.Println(verdict)
	if verdict != "1 orders, 4 deaths: 1 workflows, 2 acts, 1 answers replayed, a key used for another order: 422" {
		log.Fatal("this is broken")
	}
}

func runService(ctx context.Context) {
	pool := database.Connect(ctx)
	engine, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "orders", SystemDBPool: pool, Logger: slog.New(slog.DiscardHandler),
	})
	demo.Check(err)
	dbos.RegisterWorkflow(engine, fulfilOrder)
	demo.Check(dbos.Launch(engine)) // continues the workflows of the killed process

	idem, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser,
		process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		placeOrder(engine, w, r)
	})))
}

// request is the input of a workflow.
type request struct {
	Operation   uuid.UUID
	Fingerprint idempotency.Fingerprint
}

// result is the output of a workflow.
type result struct {
	Fingerprint idempotency.Fingerprint // of the request that has started the workflow
	Answer      string
}

// placeOrder starts the workflow of the operation unless an earlier attempt has started it, and waits for the result.
func placeOrder(engine dbos.Context, w http.ResponseWriter, r *http.Request) {
	process.HaltAt("claimed")
	op, _ := idempotency.FromContext(r.Context())
	workflow, err := dbos.RunWorkflow(engine, fulfilOrder, request{op.ID, op.Fingerprint}, dbos.WithWorkflowID(op.ID.String()))
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	done, err := workflow.GetResult()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case done.Fingerprint != op.Fingerprint: // the record is lost or expired, so the middleware could not compare
		idempotency.Decide(r.Context(), idempotency.Free) // frees the key for a retry of the first order
		http.Error(w, "the key was used for another order", http.StatusUnprocessableEntity)
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, done.Answer)
	}
}

// fulfilOrder is the workflow. The engine stores the result of each step.
func fulfilOrder(ctx dbos.Context, order request) (result, error) {
	charge, err := callProvider(ctx, order.Operation, "charge")
	if err != nil {
		return result{}, err
	}
	process.HaltAt("charged")
	parcel, err := callProvider(ctx, order.Operation, "ship")
	process.HaltAt("shipped")
	return result{order.Fingerprint, fmt.Sprintf("charge %s, parcel %s", charge, parcel)}, err
}

// callProvider calls the provider in a step of the workflow.
func callProvider(ctx dbos.Context, id uuid.UUID, name string) (string, error) {
	return dbos.RunAsStep(ctx, func(ctx context.Context) (string, error) {
		return provider.Call(ctx, provider.Request{Key: idempotency.Operation{ID: id}.DownstreamKey(name)})
	}, dbos.WithStepName(name))
}
