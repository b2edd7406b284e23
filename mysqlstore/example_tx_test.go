package mysqlstore_test

import (
	"context"
	"database/sql"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// The changes of the handler and the record of the operation commit together.
func ExampleNewTx() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "app:secret@tcp(localhost:3306)/payments")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(50) // up to 50 handlers run at once
	db.SetMaxIdleConns(50)
	if err := mysqlstore.Migrate(ctx, db, mysqlstore.Options{}); err != nil {
		log.Fatal(err)
	}
	store := mysqlstore.NewTx(db, mysqlstore.Options{})
	if err := store.Check(ctx); err != nil {
		log.Print(err)
	}
	go store.Janitor(ctx, 0, nil)

	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := mysqlstore.Tx(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments (amount) VALUES (?)", 700); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated) // and no Commit
	})))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}

// A savepoint undoes a part of the changes, so that the whole operation need not fail.
func ExampleTx_savepoint() {
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		tx, ok := mysqlstore.Tx(ctx)
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		if _, err := tx.ExecContext(ctx, "SAVEPOINT taken"); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		_, err := tx.ExecContext(ctx, "UPDATE stock SET pieces = pieces - 1 WHERE article = ?", 42)
		if err == nil {
			w.WriteHeader(http.StatusCreated)
			return
		}
		for _, statement := range []string{"ROLLBACK TO SAVEPOINT taken", "INSERT INTO backorders (article) VALUES (42)"} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				http.Error(w, "try again", http.StatusServiceUnavailable)
				return
			}
		}
		w.WriteHeader(http.StatusAccepted) // is stored with the back order
	})
}

// An answer of 400 or more is stored without the changes of the handler. KeepEffects commits them with it.
func ExampleKeepEffects() {
	http.HandleFunc("POST /coupons", func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		tx, ok := mysqlstore.Tx(ctx)
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		const try = "UPDATE coupons SET tries_left = tries_left - 1 WHERE code = ?"
		if _, err := tx.ExecContext(ctx, try, "SUMMER"); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		var left int
		err := tx.QueryRowContext(ctx, "SELECT tries_left FROM coupons WHERE code = ?", "SUMMER").Scan(&left)
		switch {
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case left < 0:
			mysqlstore.KeepEffects(ctx) // the try counts
			http.Error(w, "used up", http.StatusUnprocessableEntity)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	})
}
