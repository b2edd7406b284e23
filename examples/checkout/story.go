package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

var sides = []string{without, with}

// playStory does the actions of a person on the page, and prints the results.
func playStory(ctx context.Context, c *customer) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := &story{customer: c, receiptCounts: make(map[string]map[string]int)}
	s.beginOrder()
	s.pressButton(ctx, "pays, and the answer gets lost", 1, lose)
	s.pressButton(ctx, "tries again", 1, "")
	s.pressButton(ctx, "presses ten times at once", 10, "")
	s.beginOrder()
	s.pressAndKill(ctx, "pays, and the server is killed before it answers")
	s.pressButton(ctx, "tries again", 1, "")
	s.pressButton(ctx, "and once more", 1, "")

	books := c.fetchBooks(ctx, "")
	fmt.Printf("without: %d different receipts, total €%d.00\n", s.countReceipts(without), books.Without.Total/100)
	fmt.Printf("with:    %d different receipts, total €%d.00\n", s.countReceipts(with), books.With.Total/100)
	verdict := fmt.Sprintf("2 orders, %d presses: %d charges without the middleware, %d with it",
		s.pressCount, books.Without.Charges, books.With.Charges)
	fmt.Println(verdict)
	if verdict != "2 orders, 15 presses: 15 charges without the middleware, 2 with it" || s.countReceipts(with) != 2 {
		log.Fatal("this is broken")
	}
}

// story has the results of the actions so far.
type story struct {
	customer   *customer
	purchaseID string
	pressCount int

	mu            sync.Mutex
	receiptCounts map[string]map[string]int // by side and receipt: how often the receipt arrived
}

// beginOrder begins another order. All presses for an order have the same key.
func (s *story) beginOrder() {
	s.purchaseID = uuid.NewString()
	fmt.Println("a customer orders something for €42.00")
}

// pressButton presses the button the given number of times at once, on both sides.
func (s *story) pressButton(ctx context.Context, what string, times int, fault string) {
	var all sync.WaitGroup
	for range times {
		for _, side := range sides {
			all.Go(func() { s.payOnSide(ctx, side, fault) })
		}
	}
	all.Wait()
	s.pressCount += times
	books := s.customer.fetchBooks(ctx, s.purchaseID)
	fmt.Printf("  %-50s  charges without: %2d, with: %d\n", what, books.Without.Charges, books.With.Charges)
}

// pressAndKill presses once on both sides, and kills the server. By then, both sides have done the work, and neither has
// answered.
func (s *story) pressAndKill(ctx context.Context, what string) {
	var killed sync.WaitGroup
	killed.Go(func() { s.customer.killShop(ctx, len(sides)) })
	s.pressButton(ctx, what, 1, hold)
	killed.Wait()
}

// payOnSide sends one payment. An answer must be lost if there is a fault, and have a receipt otherwise.
func (s *story) payOnSide(ctx context.Context, side, fault string) {
	answer, err := s.customer.sendPayment(ctx, side, s.purchaseID, fault)
	if fault != "" {
		if err == nil {
			log.Fatal("this is broken: an answer has arrived that was to be lost")
		}
		return
	}
	demo.Check(err)
	if answer.status != http.StatusCreated {
		log.Fatal("this is broken: ", answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receiptCounts[side] == nil {
		s.receiptCounts[side] = make(map[string]int)
	}
	s.receiptCounts[side][answer.receipt.Receipt]++
}

// countReceipts returns the number of different receipts that have arrived.
func (s *story) countReceipts(side string) int { return len(s.receiptCounts[side]) }
