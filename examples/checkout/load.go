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

// runLoad pays for the given number of orders on both sides. The customers have a bad network: some answers get lost, some
// customers press three times at once, and all customers retry until they have a receipt. When half of the orders are paid,
// runLoad kills the shop while the customers pay for the second half.
func runLoad(ctx context.Context, c *customer, s *supervisor, orders int) {
	l := &loadRun{customer: c, supervisor: s}
	l.payOrders(ctx, orders/2)
	var killed sync.WaitGroup
	killed.Go(s.killShop)
	l.payOrders(ctx, orders-orders/2)
	killed.Wait()
	if ctx.Err() == nil {
		l.printReport(ctx, orders)
	}
}

// loadRun counts the presses and their results, as the customers have seen them.
type loadRun struct {
	customer   *customer
	supervisor *supervisor

	pressCount, lostAnswers, refusedPresses, receiptCount atomic.Int64
}

// payOrders pays for the given number of orders, eight at a time.
func (l *loadRun) payOrders(ctx context.Context, orders int) {
	var customers errgroup.Group
	customers.SetLimit(8)
	for range orders {
		customers.Go(func() error {
			l.payOrder(ctx)
			return nil
		})
	}
	_ = customers.Wait() // never fails
}

// payOrder pays for a new purchase on both sides, until each press has brought a receipt.
func (l *loadRun) payOrder(ctx context.Context) {
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
			all.Go(func() { l.pressUntilReceipt(ctx, side, purchase, fault) })
		}
	}
	all.Wait()
}

// pressUntilReceipt presses until a receipt arrives. Only the first press has the fault.
func (l *loadRun) pressUntilReceipt(ctx context.Context, side, purchase, fault string) {
	for ; ctx.Err() == nil; fault = "" {
		answer, err := l.customer.sendPayment(ctx, side, purchase, fault)
		l.pressCount.Add(1)
		switch {
		case err != nil:
			l.lostAnswers.Add(1)
		case answer.status == http.StatusCreated:
			l.receiptCount.Add(1)
			return
		default:
			l.refusedPresses.Add(1)
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// printReport prints the results of the customers, and the charges of the ledger, which outlives the killed process.
func (l *loadRun) printReport(ctx context.Context, orders int) {
	books, err := l.supervisor.readBooks(ctx, "")
	demo.Check(err)
	outcomes, err := l.supervisor.ledger.countOutcomes(ctx)
	demo.Check(err)
	fmt.Printf("presses: %d, answers lost: %d, refused: %d, receipts: %d, servers killed: %d\n",
		l.pressCount.Load(), l.lostAnswers.Load(), l.refusedPresses.Load(), l.receiptCount.Load(), books.Server.Deaths)
	fmt.Println("outcomes with the middleware:", outcomes)
	fmt.Printf("%d orders: %d charges without the middleware, %d with it\n",
		orders, books.Without.Charges, books.With.Charges)
	if books.With.Charges != orders {
		log.Fatal("this is broken")
	}
}
