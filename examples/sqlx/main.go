// Sqlx sells chairs through sqlx, in a file that SQLite keeps. Order, stock and the record of the answer are committed
// together, once for each key. An order of more chairs than there are is booked, seen to be too large, and refused; so
// it is rolled back. It needs nothing else to run, and ends with the line
//
//	orders: 1, chairs left: 7
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/sqlitestore"
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

	store, err := sqlitestore.OpenTx(context.Background(), file, sqlitestore.Options{})
	demo.Check(err)
	defer store.Close()
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	handler := idem.Handler(shop{db})
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity)

	var orders, chairs int
	demo.Check(db.Get(&orders, "SELECT count(*) FROM orders"))
	demo.Check(db.Get(&chairs, "SELECT pieces FROM stock WHERE article = 'chair'"))
	fmt.Printf("orders: %d, chairs left: %d\n", orders, chairs)
}

type shop struct{ db *sqlx.DB }

// in returns sqlx in the transaction of the handler.
func (s shop) in(ctx context.Context) *sqlx.Tx {
	tx, _ := sqlitestore.Tx(ctx) // there is one: keys are required
	return &sqlx.Tx{Tx: tx, Mapper: s.db.Mapper}
}

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	order := Order{Article: "chair", Pieces: pieces}
	left, err := book(r.Context(), s.in(r.Context()), &order)
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, rolled back
	case left < 0:
		http.Error(w, "there are not so many", http.StatusUnprocessableEntity) // stored, rolled back
	default:
		w.WriteHeader(http.StatusCreated) // stored, committed
		fmt.Fprintf(w, "order %d, %d left", order.ID, left)
	}
}

func book(ctx context.Context, tx *sqlx.Tx, order *Order) (left int, err error) {
	created, err := tx.NamedExecContext(ctx, "INSERT INTO orders (article, pieces) VALUES (:article, :pieces)", order)
	if err != nil {
		return 0, err
	}
	if order.ID, err = created.LastInsertId(); err != nil {
		return 0, err
	}
	err = tx.GetContext(ctx, &left, "UPDATE stock SET pieces = pieces - ? WHERE article = ? RETURNING pieces",
		order.Pieces, order.Article)
	return left, err
}
