package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// The service opens its file by itself, too. A retry gets the stored answer, and the row is there once.
func ExampleDoTx() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{Parameters: "_pragma=foreign_keys(1)"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=foreign_keys(1)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE payments (id INTEGER PRIMARY KEY, amount INTEGER)"); err != nil {
		log.Fatal(err)
	}

	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	pay := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := sqlitestore.DoTx(r.Context(), "book", func(tx *sql.Tx) (int64, error) {
			result, err := tx.ExecContext(r.Context(), "INSERT INTO payments (amount) VALUES (4200)")
			if err != nil {
				return 0, err
			}
			return result.LastInsertId()
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "payment ", id)
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		pay.ServeHTTP(w, r)
		fmt.Printf("%s, replayed: %t\n", w.Body, w.Header().Get("Idempotent-Replayed") == "true")
	}
	var rows int
	if err := db.QueryRow("SELECT count(*) FROM payments").Scan(&rows); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rows:", rows)
	// Output:
	// payment 1, replayed: false
	// payment 1, replayed: true
	// rows: 1
}

// A step runs in a transaction that the handler begins and commits.
func ExampleDoInTx() {
	var db *sql.DB // of the file of the store
	book := func(ctx context.Context) (id int64, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		id, err = sqlitestore.DoInTx(ctx, tx, "book", func() (int64, error) {
			result, err := tx.ExecContext(ctx, "INSERT INTO payments (amount) VALUES (4200)")
			if err != nil {
				return 0, err
			}
			return result.LastInsertId()
		})
		if err != nil {
			return 0, err
		}
		return id, tx.Commit()
	}
	_ = book
}
