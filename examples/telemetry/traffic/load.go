package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/idempotency-go/idempotency"
)

// LoadTest sends random traffic to a shop for Duration, and runs Events meanwhile. Clients count the outcomes that the
// answers show. The counts can differ from the real outcomes: for example, an unrecorded answer looks like a recorded answer.
type LoadTest struct {
	Duration time.Duration
	Clients  int
	Events   []Event
}

// Event is an action on the store.
type Event struct {
	At float64 // when Do is called: 0 is the beginning of the load test, 1 the end
	Do func() error
}

// Play runs the load test against the shop of r.
func (l LoadTest) Play(ctx context.Context, r *Run) error {
	begin := time.Now()
	ctx, cancel := context.WithDeadline(ctx, begin.Add(l.Duration))
	defer cancel()
	var all errgroup.Group
	for range l.Clients {
		all.Go(func() error { return r.runClient(ctx) })
	}
	all.Go(func() error {
		for _, event := range l.Events {
			if !waitFor(ctx, time.Until(begin.Add(time.Duration(event.At*float64(l.Duration))))) {
				return nil
			}
			if err := event.Do(); err != nil {
				return err
			}
		}
		return nil
	})
	return all.Wait()
}

// runClient makes payments until ctx ends. The last payment is made to its end.
func (r *Run) runClient(ctx context.Context) error {
	for waitFor(ctx, time.Duration(20+rand.IntN(40))*time.Millisecond) {
		if err := r.makePayment(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// makePayment makes one payment. At random, the client sends two requests at once, repeats a request after an answer was lost
// or the service was busy, sends an invalid key, or uses the key for another request.
func (r *Run) makePayment(ctx context.Context) error {
	key, body := NewKey(), fmt.Sprint(timedBody, " ", min(400, 5+int(25*rand.ExpFloat64())))
	switch chance := rand.Float64(); {
	case chance < .02:
		body = busyBody
	case chance < .03:
		key = "not a key"
	}
	var both errgroup.Group
	if rand.Float64() < .15 { // the user clicks twice
		both.Go(func() error { _, err := r.sendAndCount(ctx, key, body); return err })
	}
	answer, err := r.sendAndCount(ctx, key, body)
	for tries := 0; err == nil && answer.statusCode == http.StatusServiceUnavailable && tries < 3; tries++ {
		waitFor(ctx, 100*time.Millisecond)
		answer, err = r.sendAndCount(ctx, key, body)
	}
	if rand.Float64() < .3 { // the answer is lost
		_, again := r.sendAndCount(ctx, key, body)
		err = errors.Join(err, again)
	}
	if rand.Float64() < .02 {
		_, reuse := r.sendAndCount(ctx, key, plainBody)
		err = errors.Join(err, reuse)
	}
	return errors.Join(err, both.Wait())
}

// LoseLeases starts attempts, owners in number, whose leases lapse because renewals fail. Other attempts take over.
func (r *Run) LoseLeases(ctx context.Context, owners int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r.Store.Renewals.Set(ErrDown)
	defer r.Store.Renewals.Set(nil)
	var late, takeovers errgroup.Group
	for range owners {
		key := NewKey()
		late.Go(func() error { _, err := r.sendAndCount(ctx, key, lapsingBody); return err })
		<-r.handlerGate // the handler runs
		takeovers.Go(func() error { return r.SendUntil(ctx, key, lapsingBody, idempotency.OutcomeExecuted) })
	}
	err := takeovers.Wait()
	for range owners {
		<-r.handlerGate
	}
	return errors.Join(err, late.Wait())
}

// sendAndCount sends a request, and counts the outcome that the answer shows.
func (r *Run) sendAndCount(ctx context.Context, key, body string) (clientAnswer, error) {
	got, err := r.sendRequest(ctx, key, body)
	if err == nil {
		r.observed.countAnswer(got.apparentOutcome(), "")
	}
	return got, err
}

// waitFor waits for the duration d, and returns false if ctx ends first.
func waitFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
