package pgxstore_test

import (
	"net/http"

	"github.com/idempotency-go/idempotency/pgxstore"
)

// Code that is written for database/sql uses the same transaction.
func ExampleSQLTx() {
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.SQLTx(r.Context()) // a *sql.Tx, also for sqlx, ent or bun
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments (amount) VALUES ($1)", 700); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated) // and no Commit
	})
}
