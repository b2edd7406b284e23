package idempotencytest

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// handler is an attempt with effects.
type handler struct {
	*trial
	own answer
	ctx context.Context
	end context.CancelFunc // of ctx
}

// handle claims the key, and returns the handler that runs then.
func (t *trial) handle() *handler { return t.run(t.claim(request)) }

// run returns the handler of a claim.
func (t *trial) run(own answer) *handler {
	ctx, cancel := context.WithCancel(t.ctx)
	return &handler{t, own, own.claim.Context(ctx), cancel}
}

// acts makes an effect, and returns its name.
func (h *handler) acts() string {
	name := uuid.NewString()
	h.actsAgain(name)
	return name
}

// actsAgain makes an effect of that name.
func (h *handler) actsAgain(name string) { h.succeeds("effect", h.effect(h.ctx, name)) }

// isLate checks that the handler, whose attempt has ended, cannot make an effect any more.
func (h *handler) isLate() {
	name := uuid.NewString()
	if h.effect(h.ctx, name) == nil {
		h.failf("effect succeeded after the end of its attempt")
	}
	h.counts(name, 0)
}

// response returns the response of the attempt.
func (h *handler) response(status int) idempotency.Response {
	resp := receipt("of the attempt of " + h.own.asked.String())
	resp.Status = status
	return resp
}

// completes stores a response for the attempt, and returns it.
func (h *handler) completes(status int) idempotency.Response {
	resp := h.response(status)
	h.complete(h.own, resp)
	return resp
}

// committed returns how many effects of that name are committed.
func (t *trial) committed(name string) int {
	n, err := t.count(t.ctx, name)
	t.succeeds("count", err)
	return n
}

// counts checks how many effects of that name are committed.
func (t *trial) counts(name string, want int) {
	if n := t.committed(name); n != want {
		t.failf("%d effects are committed, not %d", n, want)
	}
}

// countsFor does so after a response of that status.
func (t *trial) countsFor(status int, name string, want int) {
	if n := t.committed(name); n != want {
		t.failf("with status %d, %d effects are committed, not %d", status, n, want)
	}
}

// retry repeats the operation of h, whose Complete has failed, until it is completed. Its effect, of that name, then
// counts once, whichever of the attempts has made it.
func (h *handler) retry(name string) {
	h.until("the operation is completed by a retry", func() bool {
		seen := h.begin(request)
		switch {
		case seen.Response != nil:
			h.isResponse(seen, h.own, h.response(http.StatusCreated))
			return true
		case seen.claim == nil: // the attempt has not ended yet
			return false
		}
		next := h.run(seen)
		if h.effect(next.ctx, name) != nil { // it lost the key meanwhile: the first attempt was committed after all
			h.release(next.own)
			return false
		}
		resp := next.response(http.StatusCreated)
		if h.rollsBack(next.own.claim.Complete(h.ctx, resp, long)) {
			return false
		}
		h.replays(next.own, resp)
		return true
	})
	h.counts(name, 1)
}

// together runs do n times at once, each with a fresh key. If one of them fails, it ends the check.
func (t *trial) together(n int, do func(t *trial, i int)) {
	all := make([]*trial, n)
	start := make(chan struct{})
	var crowd sync.WaitGroup
	for i := range all {
		all[i] = &trial{&session{subject: t.subject, ctx: t.ctx}, freshKey()}
		crowd.Go(func() {
			defer all[i].settle() // at once: others may wait for its transaction
			<-start
			do(all[i], i)
		})
	}
	close(start)
	crowd.Wait()
	for _, each := range all {
		if each.err != nil {
			t.failf("%w", each.err)
		}
	}
}

// rollsBack reports whether err, the error of a Complete, says that the attempt was rolled back. Any other error ends
// the check.
func (t *trial) rollsBack(err error) bool {
	if errors.Is(err, idempotency.ErrRolledBack) || errors.Is(err, idempotency.ErrClaimLost) {
		return true
	}
	t.succeeds("Complete", err)
	return false
}
