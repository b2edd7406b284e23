package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
)

// The shop has one handler for payments. It stands behind the middleware on one side, and bare on the other.
const (
	with    = "with"
	without = "without"
)

// shop is the service that is killed.
type shop struct {
	ledger  *ledger
	refuses bool         // to try again what nobody knows the outcome of
	held    atomic.Int64 // answers that are ready, and not sent
}

// serveShop serves until this process is killed. Nothing is to be repaired when it is started again.
func serveShop() {
	signal.Ignore(os.Interrupt) // the terminal sends it to the children, too: the supervisor ends this one
	ledger, store := openStore(context.Background())
	s := &shop{ledger: ledger, refuses: hasConsole()}
	opts := idempotency.Options{
		Required:     true,
		Wait:         10 * time.Second, // hold a retry until the first attempt is through
		Lease:        2 * time.Second,  // how long an order is blocked if the server dies; the default is more patient
		StoreTimeout: 2 * time.Second,  // so that a slow disk is none of the failures that are shown here
		Observer:     s.observe,
	}
	if s.refuses {
		opts.Abandoned = idempotency.Refuse
	}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	demo.Check(err)
	pay := http.HandlerFunc(s.pay)
	mux := http.NewServeMux()
	mux.Handle("POST /with/payments", s.faulty(idem.Handler(pay)))
	mux.Handle("POST /without/payments", s.faulty(pay))
	mux.HandleFunc("GET /held", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.held.Load()) })
	process.Serve(mux)
}

// receipt is the answer to a payment.
type receipt struct {
	Receipt   string `json:"receipt"`
	Operation string `json:"operation,omitempty"`
}

// pay charges the customer each time it runs.
func (s *shop) pay(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Purchase == "" || p.Amount <= 0 {
		http.Error(w, "not a payment", http.StatusBadRequest)
		return
	}
	side, operation, fingerprint, answer := without, uuid.NewString(), "", receipt{}
	if op, ok := idempotency.FromContext(r.Context()); ok {
		side, operation, fingerprint = with, op.ID.String(), op.Fingerprint.String()
		answer.Operation = operation
	}
	var err error
	answer.Receipt, err = s.ledger.charge(r.Context(), side, operation, fingerprint, p)
	switch {
	case errors.Is(err, errOtherPayment): // the record is lost, so the middleware cannot compare
		idempotency.Decide(r.Context(), idempotency.Free) // the first payment may come back
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored
		return
	}
	if s.refuses && r.Header.Get(faultHeader) == hold { // before the middleware has the answer, too
		s.held.Add(1)
		select {}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated) // stored
	_ = json.NewEncoder(w).Encode(answer)
}

// observe writes down what the middleware did.
func (s *shop) observe(ctx context.Context, e idempotency.Event) {
	if err := s.ledger.note(context.WithoutCancel(ctx), string(e.Outcome)); err != nil {
		log.Print(err)
	}
}

// faultHeader asks for a fault. It is no part of what a request means, so a retry need not have it.
const (
	faultHeader = "Checkout-Fault"
	lose        = "lose" // cut the connection when the answer is ready
	hold        = "hold" // keep the answer when it is ready, until the server is killed
)

// faulty does what networks and machines do. It is around everything else: when next has returned, the work is done,
// and the client has nothing yet.
func (s *shop) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(faultHeader) {
		case lose:
			next.ServeHTTP(httptest.NewRecorder(), r)
			conn, _, err := http.NewResponseController(w).Hijack()
			demo.Check(err)
			_ = conn.Close()
		case hold:
			next.ServeHTTP(httptest.NewRecorder(), r)
			s.held.Add(1)
			<-r.Context().Done() // the client has left, before anybody killed this process
			s.held.Add(-1)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
