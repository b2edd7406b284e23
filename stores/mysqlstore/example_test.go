package mysqlstore_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

type payment struct {
	ID      int64  `json:"id"`
	Receipt string `json:"receipt"`
}

func insertPayment(ctx context.Context, tx *sql.Tx, receipt string) (payment, error) {
	result, err := tx.ExecContext(ctx, "INSERT INTO payments (receipt) VALUES (?)", receipt)
	if err != nil {
		return payment{}, err
	}
	id, err := result.LastInsertId()
	return payment{ID: id, Receipt: receipt}, err
}

// A handler charges a card in one step, and writes a row in another step.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "app:secret@tcp(localhost:3306)/payments")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(50)
	db.SetMaxIdleConns(50)
	if err := mysqlstore.Migrate(ctx, db, mysqlstore.Options{}); err != nil {
		log.Fatal(err)
	}
	store := mysqlstore.New(db, mysqlstore.Options{})
	if err := store.Check(ctx); err != nil {
		log.Print(err) // such as: the server does not wait for its disk
	}
	go store.Janitor(ctx, 0, nil)

	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	var charge func(ctx context.Context, key string) (receipt string, err error) // calls the provider
	pay := func(ctx context.Context) (payment, error) {
		op, _ := idempotency.FromContext(ctx)
		receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
			return charge(ctx, op.DownstreamKey("charge"))
		})
		if err != nil {
			return payment{}, err
		}
		return mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (payment, error) {
			return insertPayment(ctx, tx, receipt)
		})
	}
	http.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made, err := pay(r.Context())
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // the retry goes on where this attempt has stopped
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	})))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}

// Where a key is not required, a request without a key has no claim. The handler serves it in a transaction of its own.
func ExampleDoTx_withoutKey() {
	var db *sql.DB
	inTransaction := func(ctx context.Context, do func(tx *sql.Tx) (payment, error)) (payment, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return payment{}, err
		}
		defer tx.Rollback() // does nothing after a commit
		made, err := do(tx)
		if err == nil {
			err = tx.Commit()
		}
		return made, err
	}
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		book := func(tx *sql.Tx) (payment, error) { return insertPayment(ctx, tx, "cash") }
		made, err := mysqlstore.DoTx(ctx, "book", book)
		if errors.Is(err, step.ErrNoClaim) {
			made, err = inTransaction(ctx, book)
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	})
}

// A step runs in a transaction that the handler begins and commits, with any library.
func ExampleDoInTx() {
	var db *sql.DB
	book := func(ctx context.Context) (payment, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return payment{}, err
		}
		defer tx.Rollback() // does nothing after a commit
		made, err := mysqlstore.DoInTx(ctx, tx, "book", func() (payment, error) { return insertPayment(ctx, tx, "cash") })
		if err != nil {
			return payment{}, err
		}
		return made, tx.Commit()
	}
	_ = book
}

// A separate program removes expired records. It needs a Table, and no Store.
func ExampleNewTable() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "maintainer:secret@tcp(localhost:3306)/payments")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := mysqlstore.NewTable(db, mysqlstore.Options{}).Maintain(ctx); err != nil {
		log.Fatal(err)
	}
}

// Other tools apply the migrations.
func ExampleMigrations() {
	for _, m := range mysqlstore.Migrations(mysqlstore.Options{Table: "keys"}) {
		fmt.Println(m.Version, m.Down)
	}
	// Output: 1 DROP TABLE IF EXISTS `keys`
}
