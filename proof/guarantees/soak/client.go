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

// pay makes one payment after the other until ctx ends.
func (r *run) pay(ctx context.Context, s *service) {
	for pause(ctx, rand.N(400*time.Millisecond)) {
		p := &payment{run: r, service: s, id: uuid.NewString()}
		p.make(ctx)
		if ctx.Err() != nil {
			return // it had no time
		}
		s.payments.Add(1)
		if p.answer != "" {
			s.answered.Add(1)
		}
	}
}

// payment is what one key is used for.
type payment struct {
	*run
	*service
	id string

	mu     sync.Mutex
	answer string // that a client has got
}

// make pays, and asks again for what it was told, all within the time for which answers are kept.
func (p *payment) make(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ttl*4/5)
	defer cancel()
	if rand.IntN(10) == 0 { // hangs up
		hasty, hangUp := context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		p.ask(hasty)
		hangUp()
	}
	var asking sync.WaitGroup
	for range 1 + rand.IntN(3)/2 {
		asking.Go(func() { p.retry(ctx) })
	}
	asking.Wait()
	if p.answer != "" {
		p.ask(ctx)
	}
	p.judge()
}

// retry asks until the answer is final.
func (p *payment) retry(ctx context.Context) {
	for !p.ask(ctx) && pause(ctx, 50*time.Millisecond) {
	}
}

// ask sends the request once, and reports whether the answer is final.
func (p *payment) ask(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.server.URL+"/payments", strings.NewReader(p.id))
	if err != nil {
		p.breaks("%s: %w", p.name, err)
		return true
	}
	req.Header.Set("Idempotency-Key", p.id)
	p.requests.Add(1)
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
		p.compare(string(body))
		return true
	case resp.StatusCode >= 500:
		return false
	default:
		return strings.Contains(string(body), "#outcome-unknown")
	}
}

// compare notes an answer, or compares it with the one before.
func (p *payment) compare(body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer == "" {
		p.answer = body
	}
	if p.answer != body {
		p.breaks("%s: %s has two answers: %.40q and %.40q", p.name, p.id, p.answer, body)
	}
}

// judge looks into the ledger. A payment that nobody was told of may be under way.
func (p *payment) judge() {
	times := p.ledger.settle(p.id)
	if p.rows {
		ctx, cancel := context.WithTimeout(context.Background(), 2*lease)
		defer cancel()
		made, err := p.pool.Exec(ctx, "DELETE FROM ledger WHERE payment = $1", p.id)
		if err != nil {
			return // the server is down
		}
		times = int(made.RowsAffected())
	}
	if times > 1 || p.answer != "" && times == 0 {
		p.breaks("%s: %s was made %d times", p.name, p.id, times)
	}
}
