// Sqlc sells chairs and tables by code that sqlc has generated, in the PostgreSQL at DATABASE_URL or else in a private one:
// chairs by code for pgx, tables by code for database/sql. Order and stock are a step, committed once for each key. An order
// of more than there is is booked, seen to be too large, and rolled back. It ends with the line
//
//	orders: 2, chairs left: 7, tables left: 6
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/sqlc/pgxdb"
	"github.com/idempotency-go/idempotency/examples/sqlc/sqldb"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
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

	idem, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	demo.Check(err)
	chairs, tables := idem.Handler(demo.HandleOrders(orderChairs)), idem.Handler(demo.HandleOrders(orderTables))
	demo.OrderTwice(chairs, 3, http.StatusCreated)
	demo.OrderTwice(chairs, 8, http.StatusUnprocessableEntity) // stored, rolled back
	demo.OrderTwice(tables, 4, http.StatusCreated)
	demo.OrderTwice(tables, 9, http.StatusUnprocessableEntity) // stored, rolled back

	queries := pgxdb.New(pool)
	orders, err := queries.CountOrders(ctx)
	demo.Check(err)
	chairsLeft, err := queries.Take(ctx, pgxdb.TakeParams{Article: "chair"})
	demo.Check(err)
	tablesLeft, err := queries.Take(ctx, pgxdb.TakeParams{Article: "table"})
	demo.Check(err)
	fmt.Printf("orders: %d, chairs left: %d, tables left: %d\n", orders, chairsLeft, tablesLeft)
}

// orderChairs books an order of chairs by code for pgx, and returns its ID.
func orderChairs(ctx context.Context, pieces int) (id int64, err error) {
	return pgxstore.DoTx(ctx, "order", func(tx pgx.Tx) (int64, error) {
		queries := pgxdb.New(tx)
		id, err := queries.CreateOrder(ctx, pgxdb.CreateOrderParams{Article: "chair", Pieces: int32(pieces)})
		if err != nil {
			return 0, err
		}
		left, err := queries.Take(ctx, pgxdb.TakeParams{Article: "chair", Pieces: int32(pieces)})
		if err == nil && left < 0 {
			err = demo.ErrTooFew
		}
		return id, err
	})
}

// orderTables books an order of tables by code for database/sql, and returns its ID.
func orderTables(ctx context.Context, pieces int) (id int64, err error) {
	return pgxstore.DoSQLTx(ctx, "order", func(tx *sql.Tx) (int64, error) {
		queries := sqldb.New(tx)
		id, err := queries.CreateOrder(ctx, sqldb.CreateOrderParams{Article: "table", Pieces: int32(pieces)})
		if err != nil {
			return 0, err
		}
		left, err := queries.Take(ctx, sqldb.TakeParams{Article: "table", Pieces: int32(pieces)})
		if err == nil && left < 0 {
			err = demo.ErrTooFew
		}
		return id, err
	})
}
