package probe_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// lease is how long a dead process blocks a key.
const lease = time.Second

// service is a payment service of which several processes share the data:
//
//   - POST /payments charges {"amount": n, "takes": "10ms"}, and refuses an amount of 0 with 400.
//   - PUT /payments does the same.
//   - POST /statements charges too, and streams a long answer.
//   - POST /failures answers 503.
//
// The user is the value of Authorization.
type service struct {
	// startData starts what the processes share, for the duration of the test.
	startData func(t *testing.T) sharedData

	// newHandler returns the service on the data at place.
	newHandler func(place string) (http.Handler, error)

	// decided has all decisions of the service.
	decided map[string]string
}

// sharedData is what the processes of a service share.
type sharedData struct {
	place        string
	env          []string // for each process
	countCharges func(context.Context) (int, error)
}

// chargeFunc charges once for the operation of ctx, and returns the receipt.
type chargeFunc func(ctx context.Context, amount int) (receipt string, err error)

// payment is the content of a request.
type payment struct {
	Amount int    `json:"amount"`
	Takes  string `json:"takes"`
}

// newGuarded returns a service that the library guards.
func newGuarded(store idempotency.Store, charge chargeFunc, edits ...func(*idempotency.Options)) (http.Handler, error) {
	opts := idempotency.Options{
		Methods: []string{http.MethodPost, http.MethodPut}, Required: true, Lease: lease, StoreTimeout: lease,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, edit := range edits {
		edit(&opts)
	}
	user := func(r *http.Request) (string, error) {
		user := r.Header.Get("Authorization")
		if user == "" {
			return "", errors.New("no user")
		}
		return user, nil
	}
	m, err := idempotency.New(store, user, opts)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	pay := func(answer func(http.ResponseWriter, string)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			receipt, ok := chargeRequest(w, r, charge)
			if ok {
				answer(w, receipt)
			}
		}
	}
	mux.Handle("POST /payments", m.Handler(pay(answerPayment)))
	mux.Handle("PUT /payments", m.Handler(pay(answerPayment)))
	mux.Handle("POST /statements", m.Handler(pay(answerStatement)))
	mux.Handle("POST /failures", m.Handler(http.HandlerFunc(answerFailure)))
	return mux, nil
}

// chargeRequest charges for a request, and refuses an invalid one.
func chargeRequest(w http.ResponseWriter, r *http.Request, charge chargeFunc) (receipt string, ok bool) {
	p, takes, err := readPayment(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return "", false
	}
	ctx := r.Context()
	err = work(ctx, takes/2)
	if err == nil {
		receipt, err = charge(ctx, p.Amount)
	}
	if err == nil {
		err = work(ctx, takes/2)
	}
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return "", false
	}
	return receipt, true
}

// readPayment reads the body of a request.
func readPayment(r *http.Request) (p payment, takes time.Duration, err error) {
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return p, 0, err
	}
	if p.Amount <= 0 {
		return p, 0, errors.New("the amount must be positive")
	}
	takes, err = time.ParseDuration(cmp.Or(p.Takes, "0s"))
	return p, takes, err
}

// work takes d, unless ctx ends before.
func work(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func answerPayment(w http.ResponseWriter, receipt string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/payments/"+receipt)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "{\"receipt\": %q}\n", receipt)
}

// answerStatement streams 100 KB.
func answerStatement(w http.ResponseWriter, receipt string) {
	w.Header().Set("Content-Type", "text/csv")
	for page := range 10 {
		_, _ = io.WriteString(w, strings.Repeat(fmt.Sprintf("%s,%d\n", receipt, page), 10_000/(len(receipt)+3)))
		_ = http.NewResponseController(w).Flush()
	}
}

func answerFailure(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the provider does not answer", http.StatusServiceUnavailable)
}

// describePayments describes the service for the probe, without its instances.
func describePayments() probe.Service {
	return probe.Service{
		Request:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "10ms"}`),
		Other:      testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 20, "takes": "10ms"}`),
		OtherRoute: testservice.BuildJSON(http.MethodPut, "/payments", `{"amount": 10, "takes": "10ms"}`),
		Invalid:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 0}`),
		Failing:    testservice.BuildJSON(http.MethodPost, "/failures", `{"amount": 10}`),
		Slow:       testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10, "takes": "100ms"}`),
		Stream:     testservice.BuildJSON(http.MethodPost, "/statements", `{"amount": 10}`),
		As:         func(r *http.Request, user string) { r.Header.Set("Authorization", user) },
		Bound:      10 * time.Second,
	}
}
