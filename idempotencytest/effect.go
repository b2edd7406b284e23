package idempotencytest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

var effectCases = []testCase{{
	name: "effect",
	rule: "Nobody sees an effect before Complete. Then it is permanent, and so is the response.",
	check: func(t *trial) {
		h := t.handle()
		name := h.acts()
		t.counts(name, 0)
		resp := h.completes(http.StatusCreated)
		t.counts(name, 1)
		t.replays(h.own, resp)
	},
}, {
	name: "no effect",
	rule: "An attempt without an effect is completed like any other, and its response is replayed.",
	check: func(t *trial) {
		for _, status := range []int{http.StatusNoContent, http.StatusNotFound} {
			h := t.at(freshKey()).handle()
			h.replays(h.own, h.completes(status))
		}
	},
}, {
	name: "several effects",
	rule: "The effects of an attempt are permanent all together, or none of them is.",
	check: func(t *trial) {
		h := t.handle()
		once, twice := h.acts(), h.acts()
		h.actsAgain(twice)
		t.counts(once, 0)
		t.counts(twice, 0)
		t.release(h.own)
		t.counts(once, 0)
		t.counts(twice, 0)

		h = t.handle()
		h.actsAgain(once)
		h.actsAgain(twice)
		h.actsAgain(twice)
		h.completes(http.StatusCreated)
		t.counts(once, 1)
		t.counts(twice, 2)
	},
}, {
	name: "released effect",
	rule: "Release undoes the effects of the attempt, and the next attempt begins without them.",
	check: func(t *trial) {
		h := t.handle()
		undone := h.acts()
		t.release(h.own)
		t.counts(undone, 0)

		h = t.handle()
		name := h.acts()
		h.completes(http.StatusCreated)
		t.counts(name, 1)
		t.counts(undone, 0)
	},
}, {
	name: "accepted effect",
	rule: "The effects of an attempt are permanent if the status of the response is below 400, or if it has no status, " +
		"whether or not its body is kept.",
	check: func(t *trial) {
		for _, status := range []int{0, 200, 299, 300, 304, 399} {
			t := t.at(freshKey())
			h := t.handle()
			name := h.acts()
			resp := h.completes(status)
			t.countsFor(status, name, 1)
			t.replays(h.own, resp)
		}
		h := t.handle()
		name, resp := h.acts(), idempotency.Response{Status: http.StatusCreated, Omitted: true}
		t.complete(h.own, resp)
		t.counts(name, 1)
		t.replays(h.own, resp)
	},
}, {
	name: "refused effect",
	rule: "A response of status 400 or more is kept and replayed, and the effects of its attempt are undone.",
	check: func(t *trial) {
		for _, status := range []int{400, 404, 422, 499, 500, 503, 599} {
			t := t.at(freshKey())
			h := t.handle()
			name := h.acts()
			resp := h.completes(status)
			t.countsFor(status, name, 0)
			t.replays(h.own, resp)
		}
		h := t.handle()
		name, resp := h.acts(), idempotency.Response{Status: http.StatusConflict, Omitted: true}
		t.complete(h.own, resp)
		t.counts(name, 0)
		t.replays(h.own, resp)
	},
}, {
	name: "repeated Complete",
	rule: "A repeated Complete succeeds. It makes no effect a second time, and none that was undone.",
	check: func(t *trial) {
		for _, status := range []int{http.StatusCreated, http.StatusConflict} {
			t := t.at(freshKey())
			h := t.handle()
			name := h.acts()
			resp := h.completes(status)
			before := t.committed(name)
			t.complete(h.own, resp)
			t.complete(h.own, resp)
			t.counts(name, before)
			t.replays(h.own, resp)
		}
	},
}, {
	name: "Release after Complete",
	rule: "Release does not undo an effect that is permanent: ErrClaimLost.",
	check: func(t *trial) {
		h := t.handle()
		name := h.acts()
		resp := h.completes(http.StatusCreated)
		t.says("Release", h.own.claim.Release(t.ctx, long), idempotency.ErrClaimLost)
		t.counts(name, 1)
		t.replays(h.own, resp)
	},
}, {
	name: "Complete after Release",
	rule: "Complete does not bring back an effect that was undone: ErrClaimLost or ErrRolledBack.",
	check: func(t *trial) {
		old := t.handle()
		undone := old.acts()
		t.release(old.own)
		if !t.rollsBack(old.own.claim.Complete(t.ctx, old.response(http.StatusCreated), long)) {
			t.failf("Complete has succeeded after Release")
		}
		t.counts(undone, 0)

		next := t.handle()
		name := next.acts()
		resp := next.completes(http.StatusCreated)
		if !t.rollsBack(old.own.claim.Complete(t.ctx, old.response(http.StatusCreated), long)) {
			t.failf("Complete has succeeded after Release, and after the Complete of another attempt")
		}
		t.counts(undone, 0)
		t.counts(name, 1)
		t.replays(next.own, resp)
	},
}, {
	name: "late effect",
	rule: "After Complete or Release an effect in the context of the attempt fails, and is never made, also while the " +
		"next attempt runs.",
	check: func(t *trial) {
		for _, acts := range []bool{true, false} {
			for _, status := range []int{http.StatusCreated, http.StatusConflict} {
				h := t.at(freshKey()).handle()
				if acts {
					h.acts()
				}
				h.completes(status)
				h.isLate()
			}
			t := t.at(freshKey())
			old := t.handle()
			if acts {
				old.acts()
			}
			t.release(old.own)
			old.isLate()

			next := t.handle()
			late := uuid.NewString()
			if t.effect(old.ctx, late) == nil {
				t.failf("effect succeeded after the end of its attempt, while the next one ran")
			}
			name := next.acts()
			next.completes(http.StatusCreated)
			t.counts(name, 1)
			t.counts(late, 0)
		}
	},
}, {
	name: "end of Begin's context",
	rule: "A transaction outlives the context of Begin, which may end as soon as Begin has returned.",
	check: func(t *trial) {
		for _, before := range []bool{true, false} { // the effect, or after it
			t := t.at(freshKey())
			ctx, cancel := context.WithCancel(t.ctx)
			own, err := t.ask(ctx, request)
			t.succeeds("Begin", err)
			t.keep(own)
			if before {
				cancel()
			}
			h := t.run(own)
			name := h.acts()
			cancel()
			resp := h.completes(http.StatusCreated)
			t.counts(name, 1)
			t.replays(h.own, resp)
		}
	},
}, {
	name: "end of an effect's context",
	rule: "A transaction outlives the contexts that a handler derives from its own for its effects.",
	check: func(t *trial) {
		h := t.handle()
		var names [3]string
		for i := range names {
			ctx, cancel := context.WithTimeout(h.ctx, long)
			names[i] = uuid.NewString()
			t.succeeds("effect", t.effect(ctx, names[i]))
			cancel()
		}
		h.completes(http.StatusCreated)
		for _, name := range names {
			t.counts(name, 1)
		}
	},
}, {
	name: "end of the handler's context",
	rule: "If the context of the handler ends, what Complete says is true. Either it succeeds, and the effects that " +
		"succeeded are permanent with the response; or it returns ErrRolledBack or ErrClaimLost, and neither is there.",
	check: func(t *trial) {
		for _, acts := range []bool{false, true} { // also after the end
			t := t.at(freshKey())
			h := t.handle()
			name, late, lateEffects := h.acts(), uuid.NewString(), 0
			h.end()
			if acts && t.effect(h.ctx, late) == nil {
				lateEffects = 1
			}
			resp := h.response(http.StatusCreated)
			if t.rollsBack(h.own.claim.Complete(t.ctx, resp, long)) {
				t.counts(name, 0)
				t.counts(late, 0)
				t.release(t.claim(request))
				continue
			}
			t.counts(name, 1)
			t.counts(late, lateEffects)
			t.replays(h.own, resp)
		}
	},
}, {
	name: "end of Complete's context",
	rule: "A Complete whose context ends makes both effect and response permanent, or neither. It succeeds only if both " +
		"are. The transaction ends, even if nobody calls Release, and after a retry the effect is there once.",
	check: func(t *trial) {
		for round := range rounds {
			h := t.at(freshKey()).handle()
			name, resp := h.acts(), h.response(http.StatusCreated)
			ctx, cancel := context.WithTimeout(t.ctx, time.Duration(round)*100*time.Microsecond)
			err := h.own.claim.Complete(ctx, resp, long)
			cancel()
			if err != nil {
				h.retry(name)
				continue
			}
			h.counts(name, 1)
			h.replays(h.own, resp)
		}
	},
}, {
	name: "Extend while the handler acts",
	rule: "Extend disturbs neither a handler that makes effects at the same time nor its transaction.",
	check: func(t *trial) {
		h := t.handle()
		var extended error
		over := make(chan struct{})
		var other sync.WaitGroup
		other.Go(func() {
			for acting := true; acting && extended == nil; {
				extended = h.own.claim.Extend(t.ctx, long)
				select {
				case <-over:
					acting = false
				case <-time.After(time.Millisecond):
				}
			}
		})
		var names [rounds]string
		var failed error
		for i := range names {
			names[i] = uuid.NewString()
			if failed = t.effect(h.ctx, names[i]); failed != nil {
				break
			}
		}
		close(over)
		other.Wait()
		t.succeeds("effect", failed)
		t.succeeds("Extend", extended)
		t.extend(h.own, long)
		h.completes(http.StatusCreated)
		for _, name := range names {
			t.counts(name, 1)
		}
	},
}, {
	name: "others while effects are pending",
	rule: "A transaction with effects keeps nobody waiting: others are told that its key is running, claim other keys, " +
		"and get the responses of completed ones.",
	check: func(t *trial) {
		completed := t.at(freshKey())
		before := completed.handle()
		before.acts()
		resp := before.completes(http.StatusCreated)

		h := t.handle()
		name := h.acts()
		t.soon(func() {
			t.runs(h.own)
			completed.replays(before.own, resp)
			other := t.at(freshKey())
			other.release(other.claim(request))
		})
		h.completes(http.StatusCreated)
		t.counts(name, 1)
	},
}, {
	name: "attempts in a row",
	rule: "An operation can be tried any number of times, however its attempts end. Only the effects of the completed " +
		"attempt stay.",
	check: func(t *trial) {
		var undone []string
		for range rounds {
			h := t.handle()
			undone = append(undone, h.acts())
			t.release(h.own)

			h = t.at(freshKey()).handle()
			undone = append(undone, h.acts())
			h.completes(http.StatusConflict)
		}
		h := t.handle()
		name := h.acts()
		resp := h.completes(http.StatusCreated)
		t.counts(name, 1)
		t.replays(h.own, resp)
		for _, name := range undone {
			t.counts(name, 0)
		}
	},
}, {
	name: "concurrent attempts at one key",
	rule: "Of any number of concurrent callers that make an effect when they are granted the claim, one has its effect. " +
		"The others are told that the operation runs, or get its response.",
	check: func(t *trial) {
		for range 4 {
			t.at(freshKey()).rush()
		}
	},
}, {
	name: "concurrent attempts at many keys",
	rule: "Attempts at different keys that run at the same time have a transaction each.",
	check: func(t *trial) {
		t.together(callers, func(t *trial, i int) {
			for range 4 {
				h := t.handle()
				undone := h.acts()
				t.release(h.own)

				h = t.handle()
				name := h.acts()
				resp := h.completes(http.StatusCreated)
				t.counts(undone, 0)
				t.counts(name, 1)
				t.replays(h.own, resp)
				t = t.at(freshKey())
			}
		})
	},
}, {
	name: "effect after a record that has expired",
	rule: "When a record has expired, the next operation has its effect, and the effect of the former operation stays.",
	check: func(t *trial) {
		h := t.handle()
		former := h.acts()
		t.succeeds("Complete", h.own.claim.Complete(t.ctx, h.response(http.StatusCreated), short))
		var own answer
		t.until("the record expires", func() bool {
			own = t.begin(another)
			return own.claim != nil
		})
		h = t.run(own)
		name := h.acts()
		resp := h.completes(http.StatusCreated)
		t.counts(former, 1)
		t.counts(name, 1)
		t.replays(h.own, resp)
	},
}, {
	name: "identity",
	rule: "An attempt whose effects were undone, and the one that follows it, have the ID of their key and the number 1.",
	check: func(t *trial) {
		for _, end := range endings {
			t.counts(t.attempt(1, end), 0)
		}
		t.counts(t.attempt(1, answers), 1)
	},
}}

// rush lets a crowd begin at once. Whoever is granted the claim makes an effect, and completes with its own response.
func (t *trial) rush() {
	name := uuid.NewString()
	var seen, own [callers]answer
	var failed [callers]error
	t.together(callers, func(each *trial, i int) {
		each = each.at(t.key)
		seen[i] = each.begin(request)
		if seen[i].claim == nil {
			return
		}
		h := each.run(seen[i])
		failed[i] = each.effect(h.ctx, name)
		if failed[i] != nil {
			each.release(h.own)
			return
		}
		failed[i] = h.own.claim.Complete(each.ctx, h.response(http.StatusCreated), long)
		if !each.rollsBack(failed[i]) {
			own[i] = seen[i]
		}
	})
	var winner *handler
	for i, one := range own {
		switch {
		case one.claim == nil:
		case winner != nil:
			t.failf("two of %d concurrent callers have completed the operation", callers)
		default:
			winner = &handler{trial: t, own: own[i]}
		}
	}
	if winner == nil {
		t.failf("none of %d concurrent callers has completed the operation: %w", callers, errors.Join(failed[:]...))
	}
	t.counts(name, 1)
	resp := winner.response(http.StatusCreated)
	for _, other := range seen {
		switch {
		case other.claim != nil:
		case other.Response != nil:
			t.isResponse(other, winner.own, resp)
		case !other.NoLease:
			t.failf("the record of an attempt that runs does not say NoLease: %s", show(other))
		}
	}
	t.replays(winner.own, resp)
}
