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

// The two sides of the shop. Both have the same handler for payments, with the middleware or without.
const (
	with    = "with"
	without = "without"
)

// shop is the service that is killed.
type shop struct {
	ledger         *ledger
	refusesUnknown bool         // refuses to repeat a payment whose outcome is unknown
	heldAnswers    atomic.Int64 // answers that are ready, but not sent
}

// serveShop serves the shop until this process is killed. The next process starts without any repair.
func serveShop() {
	signal.Ignore(os.Interrupt) // the terminal also interrupts children, but the supervisor ends this process
	ledger, store := openStore(context.Background())
	s := &shop{ledger: ledger, refusesUnknown: hasConsole()}
	opts := idempotency.Options{
		Required:     true,
		Wait:         10 * time.Second, // holds a retry until the first attempt has ended
		Lease:        2 * time.Second,  // how long a dead server blocks an order; the default is longer
		StoreTimeout: 2 * time.Second,  // keeps the failures of a slow disk out of the example
		Observer:     s.recordEvent,
	}
	if s.refusesUnknown {
		opts.Abandoned = idempotency.Refuse
	}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	demo.Check(err)
	pay := http.HandlerFunc(s.handlePayment)
	mux := http.NewServeMux()
	mux.Handle("POST /with/payments", s.injectFaults(idem.Handler(pay)))
	mux.Handle("POST /without/payments", s.injectFaults(pay))
	mux.HandleFunc("GET /held", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.heldAnswers.Load()) })
	process.Serve(mux)
}

// receipt is the answer to a payment.
type receipt struct {
	Receipt   string `json:"receipt"`
	Operation string `json:"operation,omitempty"`
}

// handlePayment charges the customer in each run.
func (s *shop) handlePayment(w http.ResponseWriter, r *http.Request) {
	var p payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.Purchase == "" || p.Amount <= 0 || p.Currency != currency {
		http.Error(w, "not a payment in "+currency, http.StatusBadRequest)
		return
	}
	side, operation, fingerprint, answer := without, uuid.NewString(), "", receipt{}
	if op, ok := idempotency.FromContext(r.Context()); ok {
		side, operation, fingerprint = with, op.ID.String(), op.Fingerprint.String()
		answer.Operation = operation
	}
	var err error
	answer.Receipt, err = s.ledger.chargeCustomer(r.Context(), side, operation, fingerprint, p)
	switch {
	case errors.Is(err, errOtherPayment): // the record is lost, so the middleware cannot compare
		idempotency.Decide(r.Context(), idempotency.Free) // the first payment may come back
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored
		return
	}
	if s.refusesUnknown && r.Header.Get(faultHeader) == hold { // before the middleware gets the answer
		s.heldAnswers.Add(1)
		select {}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated) // stored
	_ = json.NewEncoder(w).Encode(answer)
}

// recordEvent adds the outcome of a request to the ledger.
func (s *shop) recordEvent(ctx context.Context, e idempotency.Event) {
	if err := s.ledger.recordOutcome(context.WithoutCancel(ctx), string(e.Outcome)); err != nil {
		log.Print(err)
	}
}

// faultHeader requests a fault. The field does not belong to the meaning of a request, so a retry may omit the field.
const (
	faultHeader = "Checkout-Fault"
	lose        = "lose" // cut the connection when the answer is ready
	hold        = "hold" // keep the answer when it is ready, until the server is killed
)

// injectFaults causes the faults of networks and machines. injectFaults wraps all other handlers, so when next has returned,
// the work is done, but the client has no answer yet.
func (s *shop) injectFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(faultHeader) {
		case lose:
			next.ServeHTTP(httptest.NewRecorder(), r)
			conn, _, err := http.NewResponseController(w).Hijack()
			demo.Check(err)
			_ = conn.Close()
		case hold:
			next.ServeHTTP(httptest.NewRecorder(), r)
			s.heldAnswers.Add(1)
			<-r.Context().Done() // the client has left before this process was killed
			s.heldAnswers.Add(-1)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
