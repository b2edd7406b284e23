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

// inTransaction is the point after the statement that inserts the row of an effect. Effects in the ledger have no such point.
const inTransaction = "in the transaction"

// allPoints are the points where a request in a server process can stop.
var allPoints = []string{
	"claimed", "before the effect", inTransaction, "after the effect", "renewing", "completing", "completed", "releasing",
}

// reachablePoints returns the points that a request on a store of kind k reaches.
func (k kind) reachablePoints() []string {
	if k.hasRows {
		return allPoints
	}
	return slices.DeleteFunc(slices.Clone(allPoints), func(point string) bool { return point == inTransaction })
}

// stoppableRequest is one request to a server process. At stopPoint the request waits until the ledger releases it.
type stoppableRequest struct {
	stopPoint, requestName, ledgerURL string
	stopOnce                          sync.Once
	passed                            chan struct{} // closed when the request continues
}

type stoppableRequestKey struct{}

// stopAt stops the request if point is its stop point, and if the request has not been there before.
func (v *stoppableRequest) stopAt(point string) {
	if v.stopPoint == point {
		v.stopOnce.Do(func() {
			_ = callLedger(v.ledgerURL+"/stand", "Request-Name", v.requestName)
			close(v.passed)
		})
	}
}

// awaitRenewal waits until a renewal has passed the stop point. It returns false if the lease lapses before any renewal arrives.
func (v *stoppableRequest) awaitRenewal(ctx context.Context) bool {
	renewed := true
	select {
	case <-v.passed:
	case <-ctx.Done():
		v.stopOnce.Do(func() { renewed = false }) // waits if a renewal has stopped there
	}
	return renewed
}

// reportContextEnd waits for the end of the handler's context, and sends the cause to the ledger, if the request asks for this.
func (v *stoppableRequest) reportContextEnd(r *http.Request) {
	if r.Header.Get("Await") == "" {
		return
	}
	told := "goes on"
	select {
	case <-r.Context().Done():
		told = context.Cause(r.Context()).Error()
	case <-time.After(20 * time.Second):
	}
	_ = callLedger(v.ledgerURL+"/context-ended", "Request-Name", v.requestName, "Cause", told)
}

// stoppableStore is a store at whose calls requests can stop.
type stoppableStore struct{ idempotency.Store }

func (s stoppableStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim == nil || err != nil {
		return record, claim, err
	}
	v := ctx.Value(stoppableRequestKey{}).(*stoppableRequest)
	v.stopAt("claimed")
	return record, stoppableClaim{killtest.ClaimWithSteps{Claim: claim}, v}, nil
}

type stoppableClaim struct {
	killtest.ClaimWithSteps
	request *stoppableRequest
}

func (c stoppableClaim) Extend(ctx context.Context, lease time.Duration) error {
	c.request.stopAt("renewing")
	ctx, cancel := extendDeadline(ctx)
	defer cancel()
	return c.Claim.Extend(ctx, lease)
}

func (c stoppableClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.request.stopAt("completing")
	ctx, cancel := extendDeadline(ctx)
	defer cancel()
	err := c.Claim.Complete(ctx, resp, ttl)
	c.request.stopAt("completed")
	return err
}

func (c stoppableClaim) Release(ctx context.Context, end idempotency.Release) error {
	c.request.stopAt("releasing")
	ctx, cancel := extendDeadline(ctx)
	defer cancel()
	return c.Claim.Release(ctx, end)
}

// extendDeadline returns ctx with a new deadline, for a call to the store that goes out even if ctx has ended.
func extendDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
