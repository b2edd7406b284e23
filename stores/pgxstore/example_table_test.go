package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Other tools apply the migrations.
func ExampleMigrations() {
	for _, m := range pgxstore.Migrations(pgxstore.Options{Schema: "shop", Table: "keys"}) {
		fmt.Println(m.Version, strings.Contains(m.SQL, `"shop"."keys"`))
	}
	// Output: 1 true
}

// A job that a scheduler starts does what a Janitor does, once.
func ExampleTable_Maintain() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://maintainer@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgxstore.NewTable(pool, pgxstore.Options{}).Maintain(ctx); err != nil {
		log.Fatal(err)
	}
}

// A program for the support has no store. It asks the table what became of a key, and who takes the most room.
func ExampleNewTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://support@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	table := pgxstore.NewTable(pool, pgxstore.Options{})

	key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "order-1"}
	entry, err := table.Inspect(ctx, key.Bounded())
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		fmt.Println("the key was never used, or its record has expired")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(entry.State, entry.Status, entry.Created)
	}

	users, err := table.LargestUsers(ctx, 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, user := range users {
		fmt.Println(user.User, user.Total.Records, user.Total.Bytes)
	}
}

// Effects in other systems need a lease: New keeps the record in PostgreSQL, and no transaction open.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}); err != nil {
		log.Fatal(err)
	}
	store := pgxstore.New(pool, pgxstore.Options{})
	go store.Janitor(ctx, 0, func(err error) { log.Print(err) })
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}
