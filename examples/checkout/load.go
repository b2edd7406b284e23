package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// load pays for many orders on both sides, as customers do whose network is bad: some answers get lost, some customers
// press more than once at the same time, and all of them try again until they have a receipt. When half of the orders
// are paid, the shop is killed while others are.
func load(ctx context.Context, c *customer, s *supervisor, orders int) {
	l := &loading{customer: c, supervisor: s}
	l.pay(ctx, orders/2)
	var killed sync.WaitGroup
	killed.Go(s.kill)
	l.pay(ctx, orders-orders/2)
	killed.Wait()
	if ctx.Err() == nil {
		l.report(ctx, orders)
	}
}

// loading is what the customers have seen.
type loading struct {
	customer   *customer
	supervisor *supervisor

	presses, lost, refused, receipts atomic.Int64
}

// pay pays for so many orders, eight at a time.
func (l *loading) pay(ctx context.Context, orders int) {
	var customers errgroup.Group
	customers.SetLimit(8)
	for range orders {
		customers.Go(func() error {
			l.order(ctx)
			return nil
		})
	}
	_ = customers.Wait() // never fails
}

// order pays for a purchase on both sides, until a receipt has arrived on each.
func (l *loading) order(ctx context.Context) {
	purchase, fault, presses := uuid.NewString(), "", 1
	switch rand.IntN(4) {
	case 0:
		fault = lose
	case 1:
		presses = 3
	}
	var all sync.WaitGroup
	for _, side := range sides {
		for range presses {
			all.Go(func() { l.insist(ctx, side, purchase, fault) })
		}
	}
	all.Wait()
}

// insist presses until a receipt arrives. Only the first press has a fault.
func (l *loading) insist(ctx context.Context, side, purchase, fault string) {
	for ; ctx.Err() == nil; fault = "" {
		answer, err := l.customer.pay(ctx, side, purchase, fault)
		l.presses.Add(1)
		switch {
		case err != nil:
			l.lost.Add(1)
		case answer.status == http.StatusCreated:
			l.receipts.Add(1)
			return
		default:
			l.refused.Add(1)
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// report prints what the customers have seen, and what the ledger has, which outlives the process that was killed.
func (l *loading) report(ctx context.Context, orders int) {
	books, err := l.supervisor.books(ctx, "")
	demo.Check(err)
	outcomes, err := l.supervisor.ledger.outcomes(ctx)
	demo.Check(err)
	fmt.Printf("presses: %d, answers lost: %d, refused: %d, receipts: %d, servers killed: %d\n",
		l.presses.Load(), l.lost.Load(), l.refused.Load(), l.receipts.Load(), books.Server.Deaths)
	fmt.Println("outcomes with the middleware:", outcomes)
	fmt.Printf("%d orders: %d charges without the middleware, %d with it\n",
		orders, books.Without.Charges, books.With.Charges)
	if books.With.Charges != orders {
		log.Fatal("this is broken")
	}
}
