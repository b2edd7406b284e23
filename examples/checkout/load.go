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
)

// load pays for many orders on both sides, as customers do whose network is bad: some answers get lost, some customers
// press more than once at the same time, and all of them try again until they have a receipt. When a half has one, the
// shop is killed while requests are under way.
func load(ctx context.Context, c *customer, s *supervisor, orders int) {
	s.pause = 0
	l := &loading{customer: c}
	var customers, killer sync.WaitGroup
	queue := make(chan string)
	for range 8 {
		customers.Go(func() {
			for purchase := range queue {
				l.order(ctx, purchase)
			}
		})
	}
	for i := range orders {
		if i == orders/2 {
			killer.Go(s.kill)
		}
		queue <- uuid.NewString()
	}
	close(queue)
	customers.Wait()
	killer.Wait()
	l.report(ctx, s, orders)
}

// loading is what the customers have seen.
type loading struct {
	customer                         *customer
	presses, lost, refused, receipts atomic.Int64
}

// order pays for a purchase on both sides, until a receipt has arrived on each.
func (l *loading) order(ctx context.Context, purchase string) {
	fault, presses := "", 1
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

// insist presses until a receipt arrives. Only the first answer gets lost.
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

// report prints what the ledger has, which outlives the process that was killed.
func (l *loading) report(ctx context.Context, s *supervisor, orders int) {
	books, err := s.books(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	outcomes, err := s.ledger.outcomes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("presses: %d, answers lost: %d, refused: %d, receipts: %d, servers killed: %d\n",
		l.presses.Load(), l.lost.Load(), l.refused.Load(), l.receipts.Load(), books.Server.Deaths)
	fmt.Println("what the middleware wrote down:", outcomes)
	fmt.Printf("%d orders: %d charges without the middleware, %d with it\n", orders, books.Without.Charges, books.With.Charges)
	if books.With.Charges != orders {
		log.Fatal("this is broken")
	}
}
