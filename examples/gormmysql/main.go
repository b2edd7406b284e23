// Gormmysql sells chairs through GORM, in the MySQL or MariaDB at MYSQL_DSN or else in a private MariaDB. Order, stock and
// the record of the answer are committed together, once for each key. An order of more chairs than there are is booked,
// seen to be too large, and refused; so it is rolled back. It ends with the line
//
//	orders: 1, gifts: 0, chairs left: 7
package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// Article is what the shop sells.
type Article struct {
	Name   string `gorm:"primaryKey;size:100"`
	Pieces int
}

// Order is what a customer has bought.
type Order struct {
	ID      uint
	Article string
	Pieces  int
}

// Gift is what comes with an order.
type Gift struct {
	Article string `gorm:"primaryKey;size:100"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	conns, drop := database.CreateMySQL(ctx)
	defer drop()
	demo.Check(mysqlstore.Migrate(ctx, conns, mysqlstore.Options{}))

	// What GORM does outside of handlers takes its connections from the same pool.
	db, err := gorm.Open(mysql.New(mysql.Config{Conn: conns}), &gorm.Config{Logger: logger.Discard})
	demo.Check(err)
	demo.Check(db.AutoMigrate(&Article{}, &Order{}, &Gift{}))
	demo.Check(db.Create(&Article{Name: "chair", Pieces: 10}).Error)

	idem, err := idempotency.New(mysqlstore.NewTx(conns, mysqlstore.Options{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	demo.Check(err)
	handler := idem.Handler(shop{db})
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity)

	var orders, gifts int64
	var chairs Article
	demo.Check(db.Model(&Order{}).Count(&orders).Error)
	demo.Check(db.Model(&Gift{}).Count(&gifts).Error)
	demo.Check(db.First(&chairs).Error)
	fmt.Printf("orders: %d, gifts: %d, chairs left: %d\n", orders, gifts, chairs.Pieces)
}

type shop struct{ db *gorm.DB }

// in returns GORM in the transaction of the handler.
func (s shop) in(ctx context.Context) *gorm.DB {
	tx, _ := mysqlstore.Tx(ctx) // there is one: keys are required
	db := s.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = tx
	return db
}

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	order := Order{Article: "chair", Pieces: pieces}
	left, err := book(s.in(r.Context()), &order)
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

func book(db *gorm.DB, order *Order) (left int, err error) {
	if err := db.Create(order).Error; err != nil {
		return 0, err
	}
	chairs := db.Model(&Article{}).Where("name = ?", order.Article)
	if err := chairs.Update("pieces", gorm.Expr("pieces - ?", order.Pieces)).Error; err != nil {
		return 0, err
	}
	// A part that may fail: GORM begins a savepoint, and the order stands without the gift.
	_ = db.Transaction(func(part *gorm.DB) error {
		if err := part.Create(&Gift{Article: order.Article}).Error; err != nil {
			return err
		}
		return part.Create(&Gift{Article: order.Article}).Error // one too many
	})
	var article Article
	err = db.First(&article, "name = ?", order.Article).Error
	return article.Pieces, err
}
