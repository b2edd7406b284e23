package soak

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// service takes payments on one store.
type service struct {
	name    string
	store   idempotency.Store
	rows    bool // a payment is a row, which a step writes in a transaction
	server  *httptest.Server
	guard   *idempotency.Middleware
	cleanUp context.CancelFunc // ends the janitor
	running sync.WaitGroup
	ledger  ledger

	payments, answered atomic.Int64
}

// ledger counts how often each payment was made.
type ledger struct {
	mu   sync.Mutex
	made map[string]int
}

func (l *ledger) add(payment string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[payment]++
}

// settle returns how often a payment was made, and forgets it.
func (l *ledger) settle(payment string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer delete(l.made, payment)
	return l.made[payment]
}

// serve starts a service. No operation is repeated whose outcome is unknown, so that none is ever done twice. A row is there
// once, however often its operation is repeated.
func (r *run) serve(s *service, janitor func(context.Context, time.Duration, func(error))) error {
	opts := idempotency.Options{
		TTL: ttl, Lease: lease, StoreTimeout: lease / 2, Wait: lease / 2, Logger: slog.New(slog.DiscardHandler),
	}
	if !s.rows {
		opts.Abandoned = idempotency.Refuse
	}
	guard, err := idempotency.New(s.store, idempotency.SingleUser, opts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.guard, s.cleanUp, s.ledger.made = guard, cancel, make(map[string]int)
	s.server = httptest.NewUnstartedServer(guard.Handler(http.HandlerFunc(s.handle)))
	s.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of panics
	s.server.Start()
	if janitor != nil && !r.NoJanitor {
		s.running.Go(func() { janitor(ctx, ttl, func(error) {}) }) // fails whenever the server does
	}
	r.services = append(r.services, s)
	return nil
}

func (s *service) close() {
	s.server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.guard.Shutdown(ctx) // may be waiting for a server that is gone
	s.cleanUp()
	s.running.Wait()
}

// handle makes a payment, unless it fails before.
func (s *service) handle(w http.ResponseWriter, r *http.Request) {
	payment, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	size := 200
	switch n := rand.IntN(200); {
	case n < 4:
		panic(http.ErrAbortHandler)
	case n < 14:
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case n < 20:
		size = 100 << 10
	case n < 22:
		pause(r.Context(), 2*lease) // is renewed
	default:
		pause(r.Context(), rand.N(20*time.Millisecond))
	}
	if err := s.pay(r.Context(), string(payment)); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, rand.Uint64(), strings.Repeat("x", size)) // no two executions give the same answer
}

// pay makes a payment.
func (s *service) pay(ctx context.Context, payment string) error {
	if s.rows {
		_, err := pgxstore.DoTx(ctx, "pay", func(tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, "INSERT INTO ledger (payment) VALUES ($1)", payment)
			return payment, err
		})
		return err
	}
	if ctx.Err() != nil { // the claim may be somebody else's by now, or may not: nothing was paid, so nothing is to be answered
		return context.Cause(ctx)
	}
	s.ledger.add(payment)
	return nil
}
