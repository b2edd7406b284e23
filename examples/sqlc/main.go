// Sqlc sells chairs and tables by code that sqlc has generated, in the PostgreSQL at DATABASE_URL or else in a private one:
// chairs by code for pgx, tables by code for database/sql. Order, stock and the record of the answer are committed
// together, once for each key. An order of more than there is is booked, seen to be too large, and refused; so it is
// rolled back. It ends with the line
//
//	orders: 2, chairs left: 7, tables left: 6
package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/sqlc/pgxdb"
	"github.com/idempotency-go/idempotency/examples/sqlc/sqldb"
	"github.com/idempotency-go/idempotency/pgxstore"
)

//go:embed schema.sql
var schema string

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, schema+"INSERT INTO stock VALUES ('chair', 10), ('table', 10)")
	demo.Check(err)

	idem, err := idempotency.New(pgxstore.NewTx(pool, pgxstore.Options{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	demo.Check(err)
	chairs, tables := idem.Handler(shop(bookChairs)), idem.Handler(shop(bookTables))
	demo.OrderTwice(chairs, 3, http.StatusCreated)
	demo.OrderTwice(chairs, 8, http.StatusUnprocessableEntity)
	demo.OrderTwice(tables, 4, http.StatusCreated)
	demo.OrderTwice(tables, 9, http.StatusUnprocessableEntity)

	queries := pgxdb.New(pool)
	orders, err := queries.CountOrders(ctx)
	demo.Check(err)
	chairsLeft, err := queries.Take(ctx, pgxdb.TakeParams{Article: "chair"})
	demo.Check(err)
	tablesLeft, err := queries.Take(ctx, pgxdb.TakeParams{Article: "table"})
	demo.Check(err)
	fmt.Printf("orders: %d, chairs left: %d, tables left: %d\n", orders, chairsLeft, tablesLeft)
}

// bookChairs books an order of chairs by code for pgx, and returns how many are left.
func bookChairs(ctx context.Context, pieces int32) (order int64, left int32, err error) {
	tx, _ := pgxstore.Tx(ctx) // there is one: keys are required
	queries := pgxdb.New(tx)
	order, err = queries.CreateOrder(ctx, pgxdb.CreateOrderParams{Article: "chair", Pieces: pieces})
	if err != nil {
		return 0, 0, err
	}
	left, err = queries.Take(ctx, pgxdb.TakeParams{Article: "chair", Pieces: pieces})
	return order, left, err
}

// bookTables books an order of tables by code for database/sql, and returns how many are left.
func bookTables(ctx context.Context, pieces int32) (order int64, left int32, err error) {
	tx, _ := pgxstore.SQLTx(ctx) // there is one: keys are required
	queries := sqldb.New(tx)
	order, err = queries.CreateOrder(ctx, sqldb.CreateOrderParams{Article: "table", Pieces: pieces})
	if err != nil {
		return 0, 0, err
	}
	left, err = queries.Take(ctx, sqldb.TakeParams{Article: "table", Pieces: pieces})
	return order, left, err
}

// shop is a handler that books orders.
type shop func(ctx context.Context, pieces int32) (order int64, left int32, err error)

func (book shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	order, left, err := book(r.Context(), int32(pieces))
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, rolled back
	case left < 0:
		http.Error(w, "there are not so many", http.StatusUnprocessableEntity) // stored, rolled back
	default:
		w.WriteHeader(http.StatusCreated) // stored, committed
		fmt.Fprintf(w, "order %d, %d left", order, left)
	}
}
