package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

const schema = `
CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS transfers (
	id bigint GENERATED ALWAYS AS IDENTITY,
	sender text NOT NULL, recipient text NOT NULL, amount bigint NOT NULL, note text NOT NULL
);
INSERT INTO accounts VALUES ('alice', 100), ('bob', 0) ON CONFLICT DO NOTHING`

// runService runs the service until ctx ends, and then stops the service. After runService, the caller may close pool.
func runService(ctx context.Context, pool *pgxpool.Pool, listener net.Listener, lease time.Duration, development bool) error {
	defer listener.Close()
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	if err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}); err != nil {
		return err
	}
	store := pgxstore.New(pool, pgxstore.Options{})
	if err := checkStore(ctx, store, development); err != nil {
		return err
	}
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true, Lease: lease})
	if err != nil {
		return err
	}

	var janitor sync.WaitGroup
	defer janitor.Wait()
	ctx, stopJanitor := context.WithCancel(ctx)
	defer stopJanitor()
	janitor.Go(func() { store.Janitor(ctx, 5*time.Minute, func(err error) { log.Print(err) }) })

	server := &http.Server{Handler: newRoutes(pool, idem), ReadTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the time limit of the running requests
		defer cancel()
		return errors.Join(server.Shutdown(ctx), idem.Shutdown(ctx))
	}
}

// checkStore returns the findings with which the service must not start.
func checkStore(ctx context.Context, store *pgxstore.Store, development bool) (seriousFindings error) {
	for _, finding := range idempotency.Findings(store.Check(ctx)) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if ok && unsafe.Setting == "fsync" && development {
			log.Print(finding)
		} else {
			seriousFindings = errors.Join(seriousFindings, finding)
		}
	}
	return seriousFindings
}

func newRoutes(pool *pgxpool.Pool, idem *idempotency.Middleware) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /transfers", idem.Handler(http.HandlerFunc(transferMoney)))
	mux.Handle("GET /balance", balanceHandler(pool))
	return demo.Authenticate(mux)
}
