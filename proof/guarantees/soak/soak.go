// Package soak runs every store of the repository under a small load for a long time, causes a fault now and then, and
// measures whether anything grows.
//
// Clients send payments over HTTP with keys that live for seconds. Some clients hang up, some send a request twice at the
// same time. Some handlers fail, panic, answer at length, or run for longer than their lease. Again and again a server stands
// still, dies, or loses its connections. Most payments must be answered. Each must be made at most once, its answer must not
// change, and what was acknowledged must have been done. Something grows if it is larger in the last third of a run than in
// the second, see [Series.Grows].
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
	Clients   int           // of each store; each makes a few payments a second
	Faults    time.Duration // between two of them
	NoJanitor bool          // nothing deletes expired rows, so that they grow: shows that a soak can fail
	Progress  io.Writer
}

const (
	ttl   = 5 * time.Second
	lease = 2 * time.Second
)

// Result is what a soak has done and measured.
type Result struct {
	Requests, Payments, Answered, Faults int64
	Broken                               []error  // promises
	Series                               []Series // what was measured
}

// run is a soak under way.
type run struct {
	Options
	redis    *servertest.Server
	postgres *servertest.Database
	client   *redis.Client
	pool     *pgxpool.Pool
	services []*service

	requests, faults atomic.Int64

	mu     sync.Mutex
	broken []error
}

// Run soaks until opts.For is over or ctx ends. The error says why it could not start, or measure.
func Run(ctx context.Context, opts Options) (_ Result, err error) {
	r := &run{Options: opts}
	defer r.close()
	if err := r.open(ctx); err != nil {
		return Result{}, err
	}
	until, cancel := context.WithTimeout(ctx, opts.For)
	defer cancel()
	var running sync.WaitGroup
	for _, s := range r.services {
		for range opts.Clients {
			running.Go(func() { r.pay(until, s) })
		}
	}
	running.Go(func() { r.breakThings(until) })
	series, err := r.measure(until)
	cancel()
	running.Wait()
	result := Result{Requests: r.requests.Load(), Faults: r.faults.Load(), Series: series}
	for _, s := range r.services {
		payments, answered := s.payments.Load(), s.answered.Load()
		if 2*answered <= payments {
			r.breaks("%s: only %d of %d payments were answered", s.name, answered, payments)
		}
		result.Payments += payments
		result.Answered += answered
	}
	result.Broken = r.broken
	return result, err
}

// open starts the servers, and a service for each store.
func (r *run) open(ctx context.Context) (err error) {
	if r.redis, err = servertest.StartRedis("--appendonly", "yes", "--appendfsync", "always"); err != nil {
		return err
	}
	if r.postgres, err = servertest.StartPostgres(); err != nil {
		return err
	}
	r.client = redis.NewClient(&redis.Options{
		Addr: r.redis.Addr(), Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 32,
	})
	config, err := pgxpool.ParseConfig(r.postgres.URL())
	if err != nil {
		return err
	}
	config.MaxConns, config.MaxConnIdleTime, config.HealthCheckPeriod = 32, 10*time.Second, 5*time.Second
	if r.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if _, err = r.pool.Exec(ctx, "CREATE TABLE ledger (payment text); CREATE INDEX ON ledger (payment)"); err != nil {
		return err
	}
	plain, divided := pgxstore.Options{Table: "plain"}, pgxstore.Options{Table: "divided", PartitionDays: 1}
	ofRows := pgxstore.Options{Table: "of_rows", IdleTimeout: 10 * time.Second}
	for _, table := range []pgxstore.Options{plain, divided, ofRows} {
		if err := pgxstore.Migrate(ctx, r.pool, table); err != nil {
			return err
		}
	}
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	whole, parts, rows := pgxstore.New(r.pool, plain), pgxstore.New(r.pool, divided), pgxstore.New(r.pool, ofRows)
	return errors.Join(
		r.serve(&service{name: "memory", store: memory}, nil),
		r.serve(&service{name: "Redis", store: idempotency.NewRedisStore(r.client, idempotency.RedisOptions{})}, nil),
		r.serve(&service{name: "PostgreSQL", store: whole}, whole.Janitor),
		r.serve(&service{name: "PostgreSQL, divided", store: parts}, parts.Janitor),
		r.serve(&service{name: "PostgreSQL, rows", store: rows, rows: true}, rows.Janitor),
	)
}

func (r *run) close() {
	for _, s := range r.services {
		s.close()
	}
	if r.pool != nil {
		r.pool.Close()
	}
	if r.client != nil {
		_ = r.client.Close()
	}
	if r.postgres != nil {
		r.postgres.Close()
	}
	if r.redis != nil {
		r.redis.Close()
	}
}

// breaks notes that a promise was broken.
func (r *run) breaks(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.broken) < 100 {
		r.broken = append(r.broken, fmt.Errorf(format, args...))
	}
}

// breakThings does one fault after the other.
func (r *run) breakThings(ctx context.Context) {
	standStill := func(server *servertest.Server) error {
		if err := server.Pause(); err != nil {
			return err
		}
		defer server.Resume()
		pause(ctx, lease/2)
		return nil
	}
	faults := []struct {
		name string
		do   func() error
	}{
		{"Redis stands still", func() error { return standStill(r.redis) }},
		{"PostgreSQL stands still", func() error { return standStill(r.postgres.Server) }},
		{"Redis dies", r.redis.Restart},
		{"PostgreSQL dies", r.postgres.Restart},
		{"Redis closes its connections", func() error {
			return r.client.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err()
		}},
		{"PostgreSQL ends its sessions", func() error {
			_, err := r.pool.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
			return err
		}},
	}
	for i := 0; pause(ctx, r.Faults); i++ {
		fault := faults[i%len(faults)]
		fmt.Fprintln(r.Progress, fault.name)
		if err := fault.do(); err != nil && ctx.Err() == nil {
			r.breaks("%s: %w", fault.name, err)
		}
		r.faults.Add(1)
	}
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
