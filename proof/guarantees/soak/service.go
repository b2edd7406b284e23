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

// service takes payments with one store.
type service struct {
	name          string
	store         idempotency.Store
	writesRows    bool // a step in a transaction writes the payment as a row
	httpServer    *httptest.Server
	middleware    *idempotency.Middleware
	stopJanitor   context.CancelFunc
	janitorCalls  sync.WaitGroup
	paymentLedger ledger // unused if writesRows is set

	paymentCount, answeredCount atomic.Int64
}

// ledger counts the executions of each payment.
type ledger struct {
	mu             sync.Mutex
	countByPayment map[string]int
}

func (l *ledger) addPayment(payment string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countByPayment[payment]++
}

// takeCount returns the number of executions of a payment, and removes the payment.
func (l *ledger) takeCount(payment string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer delete(l.countByPayment, payment)
	return l.countByPayment[payment]
}

// startService starts s, and its janitor unless janitor is nil. A service without rows refuses to repeat an operation with an
// unknown outcome, so that no payment is made twice. A service with rows repeats such operations, because the step in a
// transaction writes the row only once.
func (r *run) startService(s *service, janitor func(context.Context, time.Duration, func(error))) error {
	opts := idempotency.Options{
		TTL: ttl, Lease: lease, StoreTimeout: lease / 2, Wait: lease / 2, Logger: slog.New(slog.DiscardHandler),
	}
	if !s.writesRows {
		opts.Abandoned = idempotency.Refuse
	}
	guard, err := idempotency.New(s.store, idempotency.SingleUser, opts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.middleware, s.stopJanitor, s.paymentLedger.countByPayment = guard, cancel, make(map[string]int)
	s.httpServer = httptest.NewUnstartedServer(guard.Handler(http.HandlerFunc(s.handlePayment)))
	s.httpServer.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // panics of the handler
	s.httpServer.Start()
	if janitor != nil && !r.NoJanitor {
		// The errors are ignored, because the janitor fails whenever the server is down.
		s.janitorCalls.Go(func() { janitor(ctx, ttl, func(error) {}) })
	}
	r.services = append(r.services, s)
	return nil
}

func (s *service) close() {
	s.httpServer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.middleware.Shutdown(ctx) // may wait for a stopped server until the timeout
	s.stopJanitor()
	s.janitorCalls.Wait()
}

// handlePayment makes the payment. At random, handlePayment fails or panics before, or outlives the first lease.
func (s *service) handlePayment(w http.ResponseWriter, r *http.Request) {
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
		sleepUnlessDone(r.Context(), 2*lease) // the middleware renews the lease meanwhile
	default:
		sleepUnlessDone(r.Context(), rand.N(20*time.Millisecond))
	}
	if err := s.recordPayment(r.Context(), string(payment)); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, rand.Uint64(), strings.Repeat("x", size)) // a random number, so that every execution has a different answer
}

// recordPayment writes the payment into the ledger, or into the table if writesRows is set.
func (s *service) recordPayment(ctx context.Context, payment string) error {
	if s.writesRows {
		_, err := pgxstore.DoTx(ctx, "pay", func(tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, "INSERT INTO ledger (payment) VALUES ($1)", payment)
			return payment, err
		})
		return err
	}
	if ctx.Err() != nil { // the claim may be lost, and nothing was paid, so the handler must not report success
		return context.Cause(ctx)
	}
	s.paymentLedger.addPayment(payment)
	return nil
}
