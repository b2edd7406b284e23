package soak

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// makePayments makes payments at s, one at a time, until ctx ends.
func (r *run) makePayments(ctx context.Context, s *service) {
	for sleepUnlessDone(ctx, rand.N(400*time.Millisecond)) {
		p := &payment{run: r, service: s, paymentID: uuid.NewString()}
		p.payAndCheck(ctx)
		if ctx.Err() != nil {
			return // ctx has cut the last payment short, so the payment does not count
		}
		s.paymentCount.Add(1)
		if p.firstAnswer != "" {
			s.answeredCount.Add(1)
		}
	}
}

// payment is one payment. All its requests have the same key.
type payment struct {
	*run
	*service
	paymentID string // also the key

	mu          sync.Mutex
	firstAnswer string // the first final answer with status 201; empty: none yet
}

// payAndCheck sends the payment until the answer is final, requests a replay of an answer, and checks the ledger. All
// requests are sent before the record expires.
func (p *payment) payAndCheck(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ttl*4/5)
	defer cancel()
	if rand.IntN(10) == 0 { // the client hangs up, and then retries
		hasty, hangUp := context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		p.sendRequest(hasty)
		hangUp()
	}
	var asking sync.WaitGroup
	for range 1 + rand.IntN(3)/2 {
		asking.Go(func() { p.retryUntilFinal(ctx) })
	}
	asking.Wait()
	if p.firstAnswer != "" {
		p.sendRequest(ctx)
	}
	p.checkLedger()
}

// retryUntilFinal sends the request until the answer is final or ctx ends.
func (p *payment) retryUntilFinal(ctx context.Context) {
	for !p.sendRequest(ctx) && sleepUnlessDone(ctx, 50*time.Millisecond) {
	}
}

// sendRequest sends the request once, and reports whether the answer is final.
func (p *payment) sendRequest(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.httpServer.URL+"/payments", strings.NewReader(p.paymentID))
	if err != nil {
		p.addViolation("%s: %w", p.name, err)
		return true
	}
	req.Header.Set("Idempotency-Key", p.paymentID)
	p.requestCount.Add(1)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return false
	case resp.StatusCode == http.StatusCreated:
		p.checkAnswer(string(body))
		return true
	case resp.StatusCode >= 500:
		return false
	default:
		return strings.Contains(string(body), "#outcome-unknown")
	}
}

// checkAnswer stores the first answer, and adds a violation if a later answer differs.
func (p *payment) checkAnswer(body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstAnswer == "" {
		p.firstAnswer = body
	}
	if p.firstAnswer != body {
		p.addViolation("%s: %s has two answers: %.40q and %.40q", p.name, p.paymentID, p.firstAnswer, body)
	}
}

// checkLedger adds a violation if the payment was made more than once, or was answered but not made. An unanswered payment
// may not have been made yet.
func (p *payment) checkLedger() {
	times := p.paymentLedger.takeCount(p.paymentID)
	if p.writesRows {
		ctx, cancel := context.WithTimeout(context.Background(), 2*lease)
		defer cancel()
		made, err := p.postgresPool.Exec(ctx, "DELETE FROM ledger WHERE payment = $1", p.paymentID)
		if err != nil {
			return // the server is down
		}
		times = int(made.RowsAffected())
	}
	if times > 1 || p.firstAnswer != "" && times == 0 {
		p.addViolation("%s: %s was made %d times", p.name, p.paymentID, times)
	}
}
