// Package soak runs every store of the repository under a small load for a long time, injects faults, and measures whether
// memory, rows, keys, goroutines, or connections grow.
//
// Clients send payments over HTTP with keys that expire after seconds. Some clients hang up, and some clients send a request
// twice at the same time. Some handlers fail, panic, send a long answer, or run for longer than their lease. Repeatedly, a
// server stands still, dies, or loses its connections.
//
// A soak requires of the payments:
//
//   - More than half of the payments are answered.
//   - Each payment is made at most once.
//   - All answers to a payment are the same.
//   - An acknowledged payment has been made.
//
// A gauge grows if the last third of its values is larger than the second third, see [Series.Grows].
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Options say how a soak runs.
type Options struct {
	For       time.Duration
	Clients   int           // for each store; each client makes a few payments a second
	Faults    time.Duration // the pause between two faults
	NoJanitor bool          // leaves expired rows in the tables, which shows that a soak can fail
	Progress  io.Writer
}

const (
	ttl   = 5 * time.Second
	lease = 2 * time.Second
)

// Result has the counts, the violations and the series of a soak.
type Result struct {
	Requests, Payments, Answered, Faults int64
	Broken                               []error // broken promises
	Series                               []Series
}

// run is a running soak.
type run struct {
	Options
	redisServer    *servertest.Server
	postgresServer *servertest.Database
	redisClient    *redis.Client
	postgresPool   *pgxpool.Pool
	services       []*service

	requestCount, faultCount atomic.Int64

	mu         sync.Mutex
	violations []error
}

// Run runs a soak until opts.For is over or ctx ends. The error says why the soak could not start, or could not measure.
func Run(ctx context.Context, opts Options) (_ Result, err error) {
	r := &run{Options: opts}
	defer r.close()
	if err := r.startServices(ctx); err != nil {
		return Result{}, err
	}
	until, cancel := context.WithTimeout(ctx, opts.For)
	defer cancel()
	var running sync.WaitGroup
	for _, s := range r.services {
		for range opts.Clients {
			running.Go(func() { r.makePayments(until, s) })
		}
	}
	running.Go(func() { r.injectFaults(until) })
	series, err := r.sampleGauges(until)
	cancel()
	running.Wait()
	result := Result{Requests: r.requestCount.Load(), Faults: r.faultCount.Load(), Series: series}
	for _, s := range r.services {
		payments, answered := s.paymentCount.Load(), s.answeredCount.Load()
		if 2*answered <= payments {
			r.addViolation("%s: only %d of %d payments were answered", s.name, answered, payments)
		}
		result.Payments += payments
		result.Answered += answered
	}
	result.Broken = r.violations
	return result, err
}

// startServices starts the database servers, and one service for each store.
func (r *run) startServices(ctx context.Context) (err error) {
	if r.redisServer, err = servertest.StartRedis("--appendonly", "yes", "--appendfsync", "always"); err != nil {
		return err
	}
	if r.postgresServer, err = servertest.StartPostgres(); err != nil {
		return err
	}
	r.redisClient = redis.NewClient(&redis.Options{
		Addr: r.redisServer.Addr(), Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 32,
	})
	config, err := pgxpool.ParseConfig(r.postgresServer.URL())
	if err != nil {
		return err
	}
	config.MaxConns, config.MaxConnIdleTime, config.HealthCheckPeriod = 32, 10*time.Second, 5*time.Second
	if r.postgresPool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if _, err = r.postgresPool.Exec(ctx, "CREATE TABLE ledger (payment text); CREATE INDEX ON ledger (payment)"); err != nil {
		return err
	}
	plain, divided := pgxstore.Options{Table: "plain"}, pgxstore.Options{Table: "divided", PartitionDays: 1}
	ofRows := pgxstore.Options{Table: "of_rows", IdleTimeout: 10 * time.Second}
	for _, table := range []pgxstore.Options{plain, divided, ofRows} {
		if err := pgxstore.Migrate(ctx, r.postgresPool, table); err != nil {
			return err
		}
	}
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	whole, parts := pgxstore.New(r.postgresPool, plain), pgxstore.New(r.postgresPool, divided)
	rows := pgxstore.New(r.postgresPool, ofRows)
	return errors.Join(
		r.startService(&service{name: "memory", store: memory}, nil),
		r.startService(&service{name: "Redis", store: idempotency.NewRedisStore(r.redisClient, idempotency.RedisOptions{})}, nil),
		r.startService(&service{name: "PostgreSQL", store: whole}, whole.Janitor),
		r.startService(&service{name: "PostgreSQL, divided", store: parts}, parts.Janitor),
		r.startService(&service{name: "PostgreSQL, rows", store: rows, writesRows: true}, rows.Janitor),
	)
}

func (r *run) close() {
	for _, s := range r.services {
		s.close()
	}
	if r.postgresPool != nil {
		r.postgresPool.Close()
	}
	if r.redisClient != nil {
		_ = r.redisClient.Close()
	}
	if r.postgresServer != nil {
		r.postgresServer.Close()
	}
	if r.redisServer != nil {
		r.redisServer.Close()
	}
}

// addViolation records a broken promise. Only the first 100 violations are kept.
func (r *run) addViolation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.violations) < 100 {
		r.violations = append(r.violations, fmt.Errorf(format, args...))
	}
}

// injectFaults causes the faults in turn until ctx ends.
func (r *run) injectFaults(ctx context.Context) {
	standStill := func(server *servertest.Server) error {
		if err := server.Pause(); err != nil {
			return err
		}
		defer server.Resume()
		sleepUnlessDone(ctx, lease/2)
		return nil
	}
	faults := []struct {
		name  string
		cause func() error
	}{
		{"Redis stands still", func() error { return standStill(r.redisServer) }},
		{"PostgreSQL stands still", func() error { return standStill(r.postgresServer.Server) }},
		{"Redis dies", r.redisServer.Restart},
		{"PostgreSQL dies", r.postgresServer.Restart},
		{"Redis closes its connections", func() error {
			return r.redisClient.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err()
		}},
		{"PostgreSQL ends its sessions", func() error {
			_, err := r.postgresPool.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
			return err
		}},
	}
	for i := 0; sleepUnlessDone(ctx, r.Faults); i++ {
		fault := faults[i%len(faults)]
		fmt.Fprintln(r.Progress, fault.name)
		if err := fault.cause(); err != nil && ctx.Err() == nil {
			r.addViolation("%s: %w", fault.name, err)
		}
		r.faultCount.Add(1)
	}
}

// sleepUnlessDone waits for d, and reports whether ctx was still running at the end.
func sleepUnlessDone(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
