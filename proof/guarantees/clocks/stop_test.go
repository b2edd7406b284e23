//go:build linux

package clocks_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// inTransaction is behind the statement of an effect that is a row. Other effects have no such point.
const inTransaction = "in the transaction"

// points are where a request of a server process may stand still.
var points = []string{"claimed", "before the effect", inTransaction, "after the effect", "renewing", "completing", "completed", "releasing"}

// points returns those that a request comes by.
func (k kind) points() []string {
	if k.rows {
		return points
	}
	return slices.DeleteFunc(slices.Clone(points), func(point string) bool { return point == inTransaction })
}

// visit is one request to a server process. At its point it asks the ledger for leave to go on.
type visit struct {
	point, visitor, ledger string
	once                   sync.Once
	passed                 chan struct{} // closed when it goes on
}

type visitKey struct{}

func (v *visit) at(point string) {
	if v.point == point {
		v.once.Do(func() {
			_ = ask(v.ledger+"/stand", "Visitor", v.visitor)
			close(v.passed)
		})
	}
}

// isRenewed waits until a renewal has been at its point. It reports false if the lease has lapsed without one.
func (v *visit) isRenewed(ctx context.Context) bool {
	renewed := true
	select {
	case <-v.passed:
	case <-ctx.Done():
		v.once.Do(func() { renewed = false }) // or waits for one that stands
	}
	return renewed
}

// await tells the ledger whether the context of the handler ends, if the request asks for that.
func (v *visit) await(r *http.Request) {
	if r.Header.Get("Await") == "" {
		return
	}
	told := "goes on"
	select {
	case <-r.Context().Done():
		told = context.Cause(r.Context()).Error()
	case <-time.After(20 * time.Second):
	}
	_ = ask(v.ledger+"/told", "Visitor", v.visitor, "Told", told)
}

// stoppable is a store at whose steps requests may stand still.
type stoppable struct{ idempotency.Store }

func (s stoppable) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim == nil || err != nil {
		return record, claim, err
	}
	v := ctx.Value(visitKey{}).(*visit)
	v.at("claimed")
	return record, stoppableClaim{killtest.ClaimWithSteps{Claim: claim}, v}, nil
}

type stoppableClaim struct {
	killtest.ClaimWithSteps
	visit *visit
}

func (c stoppableClaim) Extend(ctx context.Context, lease time.Duration) error {
	c.visit.at("renewing")
	ctx, cancel := late(ctx)
	defer cancel()
	return c.Claim.Extend(ctx, lease)
}

func (c stoppableClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.visit.at("completing")
	ctx, cancel := late(ctx)
	defer cancel()
	err := c.Claim.Complete(ctx, resp, ttl)
	c.visit.at("completed")
	return err
}

func (c stoppableClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.visit.at("releasing")
	ctx, cancel := late(ctx)
	defer cancel()
	return c.Claim.Release(ctx, ttl)
}

// late returns a context for a call that is made although its time is up.
func late(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
