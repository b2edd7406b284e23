package probe_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idempotency-go/idempotency/probe"
)

// Each check is a subtest. The service may be written in any language: here it runs on port 8080, and its payments are rows.
func ExampleRun() {
	var db *sql.DB // the database of the service
	newPayment := func(amount string) func(key string) *http.Request {
		return func(string) *http.Request {
			r, _ := http.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": "`+amount+`"}`))
			r.Header.Set("Content-Type", "application/json")
			return r // the probe adds the header Idempotency-Key
		}
	}
	test := func(t *testing.T) {
		probe.Run(t, probe.Service{
			URLs:    []string{"http://localhost:8080"},
			Request: newPayment("10.00"),
			Other:   newPayment("20.00"),
			Invalid: newPayment("-1"),
			As:      func(r *http.Request, user string) { r.Header.Set("Authorization", "Bearer token-of-"+user) },
			Effects: func(ctx context.Context) (count int, err error) {
				return count, db.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&count)
			},
		})
	}
	_ = test // go test calls it as TestPaymentsAreIdempotent
}

// A service that ignores the header executes a retry again.
func ExampleMakeChecks() {
	var payments atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments.Add(1))
	}))
	defer server.Close()

	report, err := probe.MakeChecks(context.Background(), probe.Service{
		URLs: []string{server.URL},
		Request: func(string) *http.Request {
			r, _ := http.NewRequest(http.MethodPost, "/payments", strings.NewReader("amount=10"))
			return r
		},
		Effects: func(context.Context) (int, error) { return int(payments.Load()), nil },
		Only:    []string{"replay"},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	replay := report.Results[0]
	fmt.Println(replay.Name, replay.Status)
	fmt.Println(replay.Detail)
	fmt.Println(replay.Exchanges[1].Answer[strings.Index(replay.Exchanges[1].Answer, "payment"):])
	// Output:
	// replay failed
	// the retry got another body
	// payment 6
}

// Checks names all checks, for Service.Only and Service.Skip.
func ExampleChecks() {
	for _, check := range probe.Checks()[:2] {
		fmt.Println(check.Name + ": " + check.Demands)
	}
	// Output:
	// replay: The same request again gets the same status, header and body, and the service acts once.
	// replay-later: The same request gets the same answer a second later.
}
