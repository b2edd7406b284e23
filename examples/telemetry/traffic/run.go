// Package traffic sends known numbers of requests to a shop, makes the shop's store fail, and keeps a ledger of the answers
// that clients have seen.
package traffic

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/telemetry/shop"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// Run is a shop with a store, a handler and clients.
type Run struct {
	Shop  *shop.Shop
	Store *FaultyStore

	observed    sharedLedger
	handlerGate chan bool // a gated handler sends a value when the handler has begun, and a second value before going on
}

// Open starts a shop for the scenario s.
func Open(s Scenario, traces trace.TracerProvider) (*Run, error) {
	r := &Run{Store: newFaultyStore(s.Store), handlerGate: make(chan bool)}
	var store idempotency.Store = r.Store
	if s.Cached {
		store = cache.New(store, cache.Options{})
	}
	var err error
	r.Shop, err = shop.Open(store, http.HandlerFunc(r.handlePayment), traces, s.Options)
	return r, err
}

// Ledger returns a copy of the ledger since the last call to ResetLedger.
func (r *Run) Ledger() Ledger { return r.observed.snapshot() }

// ResetLedger sets all counts to zero.
func (r *Run) ResetLedger() { r.observed.reset() }

// The bodies of requests, and the answers of the handler.
const (
	plainBody     = "plain"   // 201
	gatedBody     = "slow"    // 201, after two receives from handlerGate
	busyBody      = "busy"    // 503
	unknownBody   = "unclear" // 500, with the decision that the outcome is unknown
	tombstoneBody = "once"    // 201, and the record keeps a tombstone in place of the answer
	timedBody     = "takes"   // 201, after the number of milliseconds that follows in the body
	lapsingBody   = "lapsing" // 201. The first attempt answers after the loss of its lease, and two receives from handlerGate
)

const receiptText = "charged"

// handlePayment answers as the body of the request asks.
func (r *Run) handlePayment(w http.ResponseWriter, req *http.Request) {
	r.observed.update(func(l *Ledger) { l.Runs++ })
	body, _ := io.ReadAll(req.Body)
	op, _ := idempotency.FromContext(req.Context())
	kind, duration, _ := strings.Cut(string(body), " ")
	switch {
	case kind == timedBody:
		milliseconds, _ := strconv.Atoi(duration)
		time.Sleep(time.Duration(milliseconds) * time.Millisecond) // stands for the call to the bank
	case kind == gatedBody:
		r.handlerGate <- true
		r.handlerGate <- true
	case kind == busyBody:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case kind == unknownBody:
		idempotency.Decide(req.Context(), idempotency.Unknown)
		w.WriteHeader(http.StatusInternalServerError)
		return
	case kind == tombstoneBody:
		idempotency.Decide(req.Context(), idempotency.Tombstone)
	case kind == lapsingBody && op.Attempt == 1:
		r.handlerGate <- true
		<-req.Context().Done()
		r.observed.update(func(l *Ledger) { l.LeasesLost++ })
		r.handlerGate <- true
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, receiptText)
}

// storedAnswerSize is the number of bytes of the header and body that the store keeps for an answer.
const storedAnswerSize = len("Content-Type: text/plain\n") + len(receiptText)

// clientAnswer has the parts of an answer that show the outcome to a client.
type clientAnswer struct {
	statusCode  int
	isReplay    bool
	problemCode string // the fragment of the type of a problem
}

// answerByOutcome has the answer for each outcome that the answer alone does not show.
var answerByOutcome = map[idempotency.Outcome]clientAnswer{
	idempotency.OutcomeUnprotected: {statusCode: http.StatusCreated},
	idempotency.OutcomeUnrecorded:  {statusCode: http.StatusCreated},
	idempotency.OutcomeRestored:    {statusCode: http.StatusCreated},
	idempotency.OutcomeReleased:    {statusCode: http.StatusServiceUnavailable},
	idempotency.OutcomeAbandoned:   {statusCode: http.StatusInternalServerError},
	idempotency.OutcomeClaimLost:   {statusCode: http.StatusConflict, problemCode: "in-progress"},
}

// apparentOutcome returns the outcome that the answer shows.
func (s clientAnswer) apparentOutcome() idempotency.Outcome {
	switch {
	case s.isReplay:
		return idempotency.OutcomeReplayed
	case s.statusCode == http.StatusCreated:
		return idempotency.OutcomeExecuted
	case s.problemCode == "key-invalid":
		return idempotency.OutcomeRejected
	case s.problemCode == "":
		return idempotency.OutcomeReleased
	default:
		return idempotency.Outcome(s.problemCode)
	}
}

// Send sends a request, and counts the given outcome and errorType (the attribute error.type). Send fails if the answer does
// not fit the outcome.
func (r *Run) Send(ctx context.Context, key, body string, outcome idempotency.Outcome, errorType ...string) error {
	got, err := r.sendRequest(ctx, key, body)
	if err != nil {
		return err
	}
	want, ok := answerByOutcome[outcome]
	if ok && got != want || !ok && got.apparentOutcome() != outcome {
		return fmt.Errorf("the answer to %s is %+v, and was to be %s", body, got, outcome)
	}
	r.observed.countAnswer(outcome, strings.Join(errorType, ""))
	if outcome == idempotency.OutcomeExecuted && body != tombstoneBody || outcome == idempotency.OutcomeRestored {
		r.observed.update(func(l *Ledger) { l.Stored += storedAnswerSize })
	}
	return nil
}

// SendUntil repeats a request until the answer shows the given outcome, and counts each answer.
func (r *Run) SendUntil(ctx context.Context, key, body string, outcome idempotency.Outcome) error {
	for {
		got, err := r.sendRequest(ctx, key, body)
		if err != nil {
			return err
		}
		r.observed.countAnswer(got.apparentOutcome(), "")
		if got.apparentOutcome() == outcome {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the answer to %s is %+v, and was to become %s", body, got, outcome)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// sendRequest sends a request with the given key and body.
func (r *Run) sendRequest(ctx context.Context, key, body string) (clientAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Shop.Addr+"/payments", strings.NewReader(body))
	if err != nil {
		return clientAnswer{}, err
	}
	req.SetBasicAuth("alice", "secret")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return clientAnswer{}, err
	}
	defer resp.Body.Close()
	got := clientAnswer{statusCode: resp.StatusCode, isReplay: resp.Header.Get("Idempotent-Replayed") == "true"}
	content, err := io.ReadAll(resp.Body)
	if err == nil && resp.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Type string }
		err = json.Unmarshal(content, &problem)
		_, got.problemCode, _ = strings.Cut(problem.Type, "#")
	}
	return got, err
}

// NewKey returns a new key.
func NewKey() string { return rand.Text() }
