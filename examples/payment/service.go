package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// newPool connects to the database.
func newPool(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	config.MaxConns = 10 // times all instances: below max_connections of the server
	return pgxpool.NewWithConfig(ctx, config)
}

// newStore makes the table for the records, and checks the server.
func newStore(ctx context.Context, pool *pgxpool.Pool) (*pgxstore.Store, error) {
	if err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}); err != nil {
		return nil, err
	}
	store := pgxstore.New(pool, pgxstore.Options{})
	for _, finding := range idempotency.Findings(store.Check(ctx)) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if !ok || unsafe.Setting != "fsync" || os.Getenv("DEVELOPMENT") == "" {
			return nil, finding // the server may lose a record, or the store cannot work
		}
		slog.InfoContext(ctx, "accepted for development", "finding", finding)
	}
	return store, nil
}

var options = idempotency.Options{Required: true, Observer: logOutcome}

func logOutcome(ctx context.Context, e idempotency.Event) {
	slog.InfoContext(ctx, "request", "outcome", e.Outcome, "endpoint", e.Key.Endpoint, "operation", e.Operation,
		"attempt", e.Attempt, "status", e.Status, "took", e.Total, "error", e.Err)
}

// identifyUser returns the user ID from your authentication.
func identifyUser(r *http.Request) (string, error) { return demo.User(r) }

type service struct {
	store  *pgxstore.Store
	idem   *idempotency.Middleware
	server *http.Server
}

func newService(ctx context.Context, pool *pgxpool.Pool, opts idempotency.Options) (*service, error) {
	store, err := newStore(ctx, pool)
	if err != nil {
		return nil, err
	}
	idem, err := idempotency.New(store, identifyUser, opts)
	if err != nil {
		return nil, err
	}
	s := &service{store: store, idem: idem}
	mux := http.NewServeMux()
	for pattern, handler := range s.routes() {
		mux.Handle(pattern, handler)
	}
	s.server = &http.Server{Handler: demo.Authenticate(mux), ReadTimeout: 10 * time.Second}
	return s, nil
}

func (s *service) routes() map[string]http.Handler {
	return map[string]http.Handler{
		"POST /orders": s.idem.Handler(http.HandlerFunc(placeOrder)),
	}
}

// placeOrder charges the card, and then writes the row.
func placeOrder(w http.ResponseWriter, r *http.Request) {
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // refuse before the charge
		return
	}
	ctx := r.Context()
	op, _ := idempotency.FromContext(ctx)
	charge, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
		return provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
	})
	if err != nil {
		http.Error(w, "try again", http.StatusBadGateway) // not stored: a retry asks again, with the same key
		return
	}
	id, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (id int64, err error) {
		const insert = "INSERT INTO payments (pieces, charge) VALUES ($1, $2) RETURNING id"
		err = tx.QueryRow(ctx, insert, pieces, charge).Scan(&id)
		return id, err
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry finds the charge, and writes the row
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "payment %d, paid by charge %s", id, charge)
}

// run serves until ctx ends, and answers all running requests.
func (s *service) run(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	var janitor sync.WaitGroup
	janitor.Go(func() { s.store.Janitor(ctx, 5*time.Minute, nil) })
	defer janitor.Wait()
	defer stop()

	failed := make(chan error, 1)
	go func() { failed <- s.server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(s.server.Shutdown(ctx), s.idem.Shutdown(ctx))
}
