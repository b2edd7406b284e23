// Package traffic sends known numbers of requests to a shop, makes its store fail, and keeps a ledger of what clients have
// seen.
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

// Run is a shop with its store, its handler and its clients.
type Run struct {
	Shop  *shop.Shop
	Store *Faults

	book book
	gate chan bool // a handler that waits sends when it has begun, and when it may go on
}

// Open starts a shop for a scenario.
func Open(s Scenario, traces trace.TracerProvider) (*Run, error) {
	r := &Run{Store: newFaults(s.Store), gate: make(chan bool)}
	var store idempotency.Store = r.Store
	if s.Cached {
		store = cache.New(store, cache.Options{})
	}
	var err error
	r.Shop, err = shop.Open(store, http.HandlerFunc(r.charge), traces, s.Options)
	return r, err
}

// Ledger returns what has happened since the last Forget.
func (r *Run) Ledger() Ledger { return r.book.read() }

// Forget begins the ledger anew.
func (r *Run) Forget() { r.book.clear() }

// The bodies of requests, and what the handler makes of them.
const (
	plain   = "plain"   // 201
	slow    = "slow"    // 201, when the gate opens
	busy    = "busy"    // 503
	unclear = "unclear" // 500, and nobody knows what has happened
	once    = "once"    // 201, and the answer is not to be kept
	takes   = "takes"   // 201, after as many milliseconds as follow
	lapsing = "lapsing" // 201, by the first attempt only after its lease has lapsed, and the gate opens
)

const receipt = "charged"

// charge is the handler.
func (r *Run) charge(w http.ResponseWriter, req *http.Request) {
	r.book.write(func(l *Ledger) { l.Runs++ })
	body, _ := io.ReadAll(req.Body)
	op, _ := idempotency.FromContext(req.Context())
	kind, duration, _ := strings.Cut(string(body), " ")
	switch {
	case kind == takes:
		milliseconds, _ := strconv.Atoi(duration)
		time.Sleep(time.Duration(milliseconds) * time.Millisecond) // the bank
	case kind == slow:
		r.gate <- true
		r.gate <- true
	case kind == busy:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case kind == unclear:
		idempotency.Decide(req.Context(), idempotency.Unknown)
		w.WriteHeader(http.StatusInternalServerError)
		return
	case kind == once:
		idempotency.Decide(req.Context(), idempotency.Tombstone)
	case kind == lapsing && op.Attempt == 1:
		r.gate <- true
		<-req.Context().Done()
		r.book.write(func(l *Ledger) { l.LeasesLost++ })
		r.gate <- true
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, receipt)
}

// answerSize is how many bytes are stored of an answer.
const answerSize = len("Content-Type: text/plain\n") + len(receipt)

// seen is what a client makes of an answer.
type seen struct {
	status   int
	replayed bool
	code     string // of a problem
}

// What clients see of outcomes that do not show themselves.
var disguised = map[idempotency.Outcome]seen{
	idempotency.OutcomeUnprotected: {status: http.StatusCreated},
	idempotency.OutcomeUnrecorded:  {status: http.StatusCreated},
	idempotency.OutcomeRestored:    {status: http.StatusCreated},
	idempotency.OutcomeReleased:    {status: http.StatusServiceUnavailable},
	idempotency.OutcomeAbandoned:   {status: http.StatusInternalServerError},
	idempotency.OutcomeClaimLost:   {status: http.StatusConflict, code: "in-progress"},
}

// outcome says what a client takes an answer for.
func (s seen) outcome() idempotency.Outcome {
	switch {
	case s.replayed:
		return idempotency.OutcomeReplayed
	case s.status == http.StatusCreated:
		return idempotency.OutcomeExecuted
	case s.code == "key-invalid":
		return idempotency.OutcomeRejected
	case s.code == "":
		return idempotency.OutcomeReleased
	default:
		return idempotency.Outcome(s.code)
	}
}

// Send sends a request, and writes down that it had the outcome, and the error.type if there is one. The error says that
// the client has seen something else.
func (r *Run) Send(ctx context.Context, key, body string, outcome idempotency.Outcome, errorType ...string) error {
	got, err := r.send(ctx, key, body)
	if err != nil {
		return err
	}
	want, ok := disguised[outcome]
	if ok && got != want || !ok && got.outcome() != outcome {
		return fmt.Errorf("the answer to %s is %+v, and was to be %s", body, got, outcome)
	}
	r.book.mark(outcome, strings.Join(errorType, ""))
	if outcome == idempotency.OutcomeExecuted && body != once || outcome == idempotency.OutcomeRestored {
		r.book.write(func(l *Ledger) { l.Stored += answerSize })
	}
	return nil
}

// SendUntil sends a request again and again until it has the outcome. It writes down each answer.
func (r *Run) SendUntil(ctx context.Context, key, body string, outcome idempotency.Outcome) error {
	for {
		got, err := r.send(ctx, key, body)
		if err != nil {
			return err
		}
		r.book.mark(got.outcome(), "")
		if got.outcome() == outcome {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the answer to %s is %+v, and was to become %s", body, got, outcome)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (r *Run) send(ctx context.Context, key, body string) (seen, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Shop.Addr+"/payments", strings.NewReader(body))
	if err != nil {
		return seen{}, err
	}
	req.SetBasicAuth("alice", "secret")
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return seen{}, err
	}
	defer resp.Body.Close()
	got := seen{status: resp.StatusCode, replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	content, err := io.ReadAll(resp.Body)
	if err == nil && resp.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Type string }
		err = json.Unmarshal(content, &problem)
		_, got.code, _ = strings.Cut(problem.Type, "#")
	}
	return got, err
}

// NewKey returns a key that was not used before.
func NewKey() string { return rand.Text() }
