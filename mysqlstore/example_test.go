package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

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
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		log.Print("charging the card")
		w.WriteHeader(http.StatusCreated)
	})))
	log.Fatal(http.ListenAndServe("localhost:8080", nil))
}

// Other tools apply the migrations.
func ExampleMigrations() {
	for _, m := range mysqlstore.Migrations(mysqlstore.Options{Table: "keys"}) {
		fmt.Println(m.Version, m.Down)
	}
	// Output: 1 DROP TABLE IF EXISTS `keys`
}
