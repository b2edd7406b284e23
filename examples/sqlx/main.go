// Sqlx sells chairs through sqlx, in a file that SQLite keeps. Order and stock are a step, committed once for each key. An
// order of more chairs than there are is booked, seen to be too large, and rolled back. It needs nothing else to run, and
// ends with the line
//
//	orders: 1, chairs left: 7
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

const schema = `
CREATE TABLE stock (article TEXT PRIMARY KEY, pieces INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, article TEXT NOT NULL, pieces INTEGER NOT NULL);
INSERT INTO stock VALUES ('chair', 10)`

// Order is what a customer has bought.
type Order struct {
	ID      int64  `db:"id"`
	Article string `db:"article"`
	Pieces  int    `db:"pieces"`
}

func main() {
	dir, err := os.MkdirTemp("", "sqlx")
	demo.Check(err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "shop.db")
	db, err := sqlx.Open("sqlite", file)
	demo.Check(err)
	defer db.Close()
	_, err = db.Exec(schema)
	demo.Check(err)

	store, err := sqlitestore.Open(context.Background(), file, sqlitestore.Options{})
	demo.Check(err)
	defer store.Close()
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	handler := idem.Handler(demo.HandleOrders(shop{db}.order))
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity) // stored, rolled back

	var orders, chairs int
	demo.Check(db.Get(&orders, "SELECT count(*) FROM orders"))
	demo.Check(db.Get(&chairs, "SELECT pieces FROM stock WHERE article = 'chair'"))
	fmt.Printf("orders: %d, chairs left: %d\n", orders, chairs)
}

type shop struct{ db *sqlx.DB }

func (s shop) order(ctx context.Context, pieces int) (Order, error) {
	return sqlitestore.DoTx(ctx, "order", func(tx *sql.Tx) (Order, error) {
		return book(ctx, &sqlx.Tx{Tx: tx, Mapper: s.db.Mapper}, "chair", pieces)
	})
}

func book(ctx context.Context, tx *sqlx.Tx, article string, pieces int) (order Order, err error) {
	const insert = "INSERT INTO orders (article, pieces) VALUES (?, ?) RETURNING id, article, pieces"
	if err := tx.GetContext(ctx, &order, insert, article, pieces); err != nil {
		return order, err
	}
	var left int
	const take = "UPDATE stock SET pieces = pieces - ? WHERE article = ? RETURNING pieces"
	err = tx.GetContext(ctx, &left, take, pieces, article)
	if err == nil && left < 0 {
		err = demo.ErrTooFew
	}
	return order, err
}
