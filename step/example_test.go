package step_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// The first attempt charges the card, and fails because the carrier is down. The retry finds the charge and ships.
func ExampleDo() {
	carrierIsDown := true
	order := func(w http.ResponseWriter, r *http.Request) {
		charge, err := step.Do(r.Context(), "charge", func(ctx context.Context) (string, error) {
			op, _ := idempotency.FromContext(ctx)
			_ = op.DownstreamKey("charge") // with this key, the provider charges once, even if its answer is lost
			fmt.Println("charging the card")
			return "ch_1", nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		parcel, err := step.Do(r.Context(), "ship", func(context.Context) (string, error) {
			if carrierIsDown {
				return "", errors.New("the carrier is down")
			}
			return "parcel 7", nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable) // an answer that is not stored, so the client can retry
			return
		}
		fmt.Fprint(w, "paid by ", charge, ", sent as ", parcel)
	}

	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(order))
	for range 2 {
		r := httptest.NewRequest("POST", "/orders", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Body)
		fmt.Printf("%d %s\n", w.Code, body)
		carrierIsDown = false
	}
	// Output:
	// charging the card
	// 503 the carrier is down
	//
	// 200 paid by ch_1, sent as parcel 7
}

// A bank that supports no keys must get the transfer at most once. If the outcome of the transfer is unknown, find looks
// for the transfer in the list of the bank.
func ExampleAtMostOnce() {
	var listed []string
	transfer := func(context.Context) (string, error) {
		listed = append(listed, "transfer 1")
		return "", errors.New("the connection is lost")
	}
	find := func(context.Context) (string, error) { return listed[0], nil }

	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		key := idempotency.Key{User: "alice", Endpoint: "transfers", ID: "1"}
		resp, _, err := runner.Do(context.Background(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
			id, err := step.AtMostOnce(ctx, "transfer", transfer, find)
			return idempotency.Response{Body: []byte(id)}, err
		})
		fmt.Printf("%s %v\n", resp.Body, err)
	}
	fmt.Println(len(listed), "transfer")
	// Output:
	//  the connection is lost
	// transfer 1 <nil>
	// 1 transfer
}

// A payment is one call and one row. The packages of the stores have DoTx with the type of the transaction in place.
func ExampleDoTx() {
	var charge func(context.Context) (string, error) // calls the provider
	pay := func(w http.ResponseWriter, r *http.Request) {
		receipt, err := step.Do(r.Context(), "charge", charge)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		number, err := step.DoTx(r.Context(), "book", func(tx *sql.Tx) (number int, err error) {
			err = tx.QueryRow("INSERT INTO payments (receipt) VALUES (?) RETURNING id", receipt).Scan(&number)
			return number, err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "payment ", number, ", receipt ", receipt)
	}
	http.HandleFunc("POST /payments", pay)
}

// A step runs in a transaction that the handler begins and commits, with any library.
func ExampleDoInTx() {
	var db *sql.DB
	book := func(ctx context.Context, receipt string) (number int, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		number, err = step.DoInTx(ctx, tx, "book", func() (number int, err error) {
			err = tx.QueryRow("INSERT INTO payments (receipt) VALUES (?) RETURNING id", receipt).Scan(&number)
			return number, err
		})
		if err != nil {
			return 0, err
		}
		return number, tx.Commit()
	}
	_ = book
}

// A tracer logs how long each step takes.
func ExampleTracer() {
	var tracer step.Tracer = func(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
		began := time.Now()
		return ctx, func(found bool, err error) {
			slog.DebugContext(ctx, "step", "name", name, "found", found, "error", err, "took", time.Since(began))
		}
	}
	traced := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r.WithContext(step.WithTracer(r.Context(), tracer)))
		})
	}
	_ = traced // wraps the handler or the middleware
}
