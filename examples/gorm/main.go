// Gorm sells chairs through GORM, in the PostgreSQL at DATABASE_URL or else in a private one. Order and stock are a step in a
// transaction that GORM begins and commits, once for each key. An order of more chairs than there are is booked, seen to be
// too large, and rolled back. It ends with the line
//
//	orders: 1, gifts: 0, chairs left: 7
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Article is what the shop sells.
type Article struct {
	Name   string `gorm:"primaryKey"`
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
	Article string `gorm:"primaryKey"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))

	// What GORM does outside of handlers takes its connections from the same pool.
	conns := stdlib.OpenDBFromPool(pool)
	defer conns.Close()
	quiet := &gorm.Config{Logger: logger.Discard}
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: conns}), quiet)
	demo.Check(err)
	demo.Check(db.AutoMigrate(&Article{}, &Order{}, &Gift{}))
	demo.Check(db.Create(&Article{Name: "chair", Pieces: 10}).Error)

	idem, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	demo.Check(err)
	handler := idem.Handler(demo.HandleOrders(shop{db}.order))
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity) // stored, rolled back

	var orders, gifts int64
	var chairs Article
	demo.Check(db.Model(&Order{}).Count(&orders).Error)
	demo.Check(db.Model(&Gift{}).Count(&gifts).Error)
	demo.Check(db.First(&chairs).Error)
	fmt.Printf("orders: %d, gifts: %d, chairs left: %d\n", orders, gifts, chairs.Pieces)
}

type shop struct{ db *gorm.DB }

func (s shop) order(ctx context.Context, pieces int) (order Order, err error) {
	err = s.db.WithContext(ctx).Transaction(func(db *gorm.DB) (err error) {
		tx := db.Statement.ConnPool.(*sql.Tx)
		order, err = pgxstore.DoInSQLTx(ctx, tx, "order", func() (Order, error) { return book(db, "chair", pieces) })
		return err
	})
	return order, err
}

func book(db *gorm.DB, article string, pieces int) (order Order, err error) {
	order = Order{Article: article, Pieces: pieces}
	if err := db.Create(&order).Error; err != nil {
		return order, err
	}
	chairs := db.Model(&Article{}).Where("name = ?", article)
	if err := chairs.Update("pieces", gorm.Expr("pieces - ?", pieces)).Error; err != nil {
		return order, err
	}
	// A part that may fail: GORM begins a savepoint, and the order stands without the gift.
	_ = db.Transaction(func(part *gorm.DB) error {
		if err := part.Create(&Gift{Article: article}).Error; err != nil {
			return err
		}
		return part.Create(&Gift{Article: article}).Error // one too many
	})
	var left Article
	err = db.First(&left, "name = ?", article).Error
	if err == nil && left.Pieces < 0 {
		err = demo.ErrTooFew
	}
	return order, err
}
