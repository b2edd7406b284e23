package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

// newClient connects to the Redis at url. Over TLS, url begins with rediss:.
func newClient(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	opts.PoolSize = 50 // times the number of instances, this must stay below maxclients of the server
	opts.DialTimeout = time.Second
	opts.ReadTimeout = time.Second // leaves time for a second try within StoreTimeout, 5 seconds
	opts.WriteTimeout = time.Second
	opts.ContextTimeoutEnabled = true // every call ends at its deadline
	opts.DisableIdentity = true       // the user of the service has no right to CLIENT SETINFO
	return redis.NewClient(opts), nil
}

// newStore checks the settings of the server.
func newStore(ctx context.Context, client redis.UniversalClient) (*idempotency.RedisStore, error) {
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	for _, finding := range idempotency.Findings(store.Check(ctx)) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if !ok || unsafe.Setting != "appendfsync" {
			return nil, finding // Redis does not answer, may forget records, or refuses a command
		}
		slog.WarnContext(ctx, "accepted: a loss of power costs the last second", "finding", finding)
	}
	return store, nil
}

// options require a key for each POST, and log the outcome of each request.
var options = idempotency.Options{Required: true, Observer: logOutcome}

func logOutcome(ctx context.Context, e idempotency.Event) {
	slog.InfoContext(ctx, "request", "outcome", e.Outcome, "endpoint", e.Key.Endpoint, "operation", e.Operation,
		"attempt", e.Attempt, "status", e.Status, "took", e.Total, "error", e.Err)
}

// identifyUser returns the user ID from your authentication. Users never share keys.
func identifyUser(r *http.Request) (string, error) { return demo.User(r) }

type service struct {
	idem   *idempotency.Middleware
	server *http.Server
}

func newService(ctx context.Context, client redis.UniversalClient) (*service, error) {
	store, err := newStore(ctx, client)
	if err != nil {
		return nil, err
	}
	idem, err := idempotency.New(store, identifyUser, options)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(chargeCard)))
	server := &http.Server{Handler: demo.Authenticate(mux), ReadTimeout: 10 * time.Second}
	return &service{idem, server}, nil
}

// chargeCard charges a card. All attempts at an operation give the provider the same key.
func chargeCard(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		http.Error(w, "try again", http.StatusBadGateway) // not stored: a retry runs chargeCard again
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "paid by charge %s", charge)
}

// run serves until ctx ends, answers all running requests, and stops. Afterwards, the caller closes the client.
func (s *service) run(ctx context.Context, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- s.server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(s.server.Shutdown(ctx), s.idem.Shutdown(ctx)) // wait for handlers, and for answers not stored yet
}
