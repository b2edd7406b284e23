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

// playStory does what a person does on the page, and says what comes of it.
func playStory(ctx context.Context, c *customer) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := &story{customer: c, receipts: make(map[string]map[string]int)}
	s.order()
	s.press(ctx, "pays, and the answer gets lost", 1, lose)
	s.press(ctx, "tries again", 1, "")
	s.press(ctx, "presses ten times at once", 10, "")
	s.order()
	s.pressAndKill(ctx, "pays, and the server is killed before it answers")
	s.press(ctx, "tries again", 1, "")
	s.press(ctx, "and once more", 1, "")

	books := c.ledger(ctx, "")
	fmt.Printf("without: %d different receipts, total %d.00\n", s.kinds(without), books.Without.Total/100)
	fmt.Printf("with:    %d different receipts, total %d.00\n", s.kinds(with), books.With.Total/100)
	verdict := fmt.Sprintf("2 orders, %d presses: %d charges without the middleware, %d with it",
		s.presses, books.Without.Charges, books.With.Charges)
	fmt.Println(verdict)
	if verdict != "2 orders, 15 presses: 15 charges without the middleware, 2 with it" || s.kinds(with) != 2 {
		log.Fatal("this is broken")
	}
}

// story is what was done so far.
type story struct {
	customer *customer
	purchase string
	presses  int

	mu       sync.Mutex
	receipts map[string]map[string]int // how often each receipt arrived, by side
}

// order begins another order. All presses for it have one key.
func (s *story) order() {
	s.purchase = uuid.NewString()
	fmt.Println("a customer orders something for 42.00")
}

// press presses the button so many times at once, on both sides.
func (s *story) press(ctx context.Context, what string, times int, fault string) {
	var all sync.WaitGroup
	for range times {
		for _, side := range sides {
			all.Go(func() { s.pay(ctx, side, fault) })
		}
	}
	all.Wait()
	s.presses += times
	books := s.customer.ledger(ctx, s.purchase)
	fmt.Printf("  %-50s  charges without: %2d, with: %d\n", what, books.Without.Charges, books.With.Charges)
}

// pressAndKill presses once on both sides. Both have done the work when the server is killed, and neither has answered.
func (s *story) pressAndKill(ctx context.Context, what string) {
	var killed sync.WaitGroup
	killed.Go(func() { s.customer.kill(ctx, len(sides)) })
	s.press(ctx, what, 1, hold)
	killed.Wait()
}

func (s *story) pay(ctx context.Context, side, fault string) {
	answer, err := s.customer.pay(ctx, side, s.purchase, fault)
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
	if s.receipts[side] == nil {
		s.receipts[side] = make(map[string]int)
	}
	s.receipts[side][answer.receipt.Receipt]++
}

// kinds returns how many different receipts have arrived.
func (s *story) kinds(side string) int { return len(s.receipts[side]) }
