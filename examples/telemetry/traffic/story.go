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

// Story is a shop under load. It is told what happens to the store and when, as a part of its duration. Clients write down
// what they see, which is not always the outcome: an answer that is not recorded looks like any other.
type Story struct {
	For     time.Duration
	Clients int
	Events  []Event
}

// Event is something that somebody does to the store.
type Event struct {
	At float64 // 0 is the beginning of the story, 1 its end
	Do func() error
}

// Tell plays the story.
func (s Story) Tell(ctx context.Context, r *Run) error {
	begin := time.Now()
	ctx, cancel := context.WithDeadline(ctx, begin.Add(s.For))
	defer cancel()
	var all errgroup.Group
	for range s.Clients {
		all.Go(func() error { return r.shopAround(ctx) })
	}
	all.Go(func() error {
		for _, event := range s.Events {
			if !pause(ctx, time.Until(begin.Add(time.Duration(event.At*float64(s.For))))) {
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

// shopAround is a client. When ctx ends, it goes when its payment is through.
func (r *Run) shopAround(ctx context.Context) error {
	for pause(ctx, time.Duration(20+rand.IntN(40))*time.Millisecond) {
		if err := r.visit(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// visit is one payment, with all that clients do to it.
func (r *Run) visit(ctx context.Context) error {
	key, body := NewKey(), fmt.Sprint(takes, " ", min(400, 5+int(25*rand.ExpFloat64())))
	switch chance := rand.Float64(); {
	case chance < .02:
		body = busy
	case chance < .03:
		key = "not a key"
	}
	var both errgroup.Group
	if rand.Float64() < .15 { // pressed twice
		both.Go(func() error { _, err := r.sendAny(ctx, key, body); return err })
	}
	answer, err := r.sendAny(ctx, key, body)
	for tries := 0; err == nil && answer.status == http.StatusServiceUnavailable && tries < 3; tries++ {
		pause(ctx, 100*time.Millisecond)
		answer, err = r.sendAny(ctx, key, body)
	}
	if rand.Float64() < .3 { // the answer got lost
		_, again := r.sendAny(ctx, key, body)
		err = errors.Join(err, again)
	}
	if rand.Float64() < .02 {
		_, reuse := r.sendAny(ctx, key, plain)
		err = errors.Join(err, reuse)
	}
	return errors.Join(err, both.Wait())
}

// Lapse has so many owners that cannot renew their leases, and other attempts that take over.
func (r *Run) Lapse(ctx context.Context, owners int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r.Store.Renewals.Set(ErrDown)
	defer r.Store.Renewals.Set(nil)
	var late, takeovers errgroup.Group
	for range owners {
		key := NewKey()
		late.Go(func() error { _, err := r.sendAny(ctx, key, lapsing); return err })
		<-r.gate // it runs
		takeovers.Go(func() error { return r.SendUntil(ctx, key, lapsing, idempotency.OutcomeExecuted) })
	}
	err := takeovers.Wait()
	for range owners {
		<-r.gate
	}
	return errors.Join(err, late.Wait())
}

func (r *Run) sendAny(ctx context.Context, key, body string) (seen, error) {
	got, err := r.send(ctx, key, body)
	if err == nil {
		r.book.mark(got.outcome(), "")
	}
	return got, err
}

// pause reports whether ctx has not ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
