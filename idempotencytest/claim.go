package idempotencytest

import (
	"context"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
)

var claimCases = []testCase{{
	name: "fresh key",
	rule: "A key without a record is claimed, as attempt 1 of a new operation that was created now.",
	check: func(t *trial) {
		own := t.claim(request)
		// Between two machines only a gross error shows, such as another unit or time zone.
		if age := time.Since(own.Created); age.Abs() > 10*time.Minute {
			t.failf("the operation was created %v ago", age)
		}
		t.isNew(t.at(freshKey()).claim(request), own)
	},
}, {
	name: "running attempt",
	rule: "While an attempt runs, its key is not claimed again, and its record says for how long its lease runs.",
	check: func(t *trial) {
		t.runs(t.claim(request))
	},
}, {
	name: "concurrent claims",
	rule: "Of any number of concurrent callers, one is granted the claim; the others get the record of its attempt.",
	check: func(t *trial) {
		for range 8 {
			for _, own := range t.race(request, freshKey(), freshKey()) {
				t.complete(own, receipt("of the winner"))
			}
		}
	},
}, {
	name: "released key",
	rule: "A released key is claimed again at once, without the right to take over.",
	check: func(t *trial) {
		t.release(t.claim(request))
		t.runs(t.claim(request))
	},
}, {
	name: "released operation",
	rule: "The attempt after a release is the next one at the same operation.",
	check: func(t *trial) {
		own := t.claim(request)
		for range 3 {
			t.release(own)
			own = t.next(own, request)
		}
		t.complete(own, receipt("at last"))
		t.replays(own, receipt("at last"))
	},
}, {
	name: "concurrent claims after a release",
	rule: "Of any number of concurrent callers, one is granted the claim to a released operation.",
	check: func(t *trial) {
		own := t.claim(request)
		for range 8 {
			t.release(own)
			next := t.race(request, t.key)[0]
			own.Attempt++
			t.describes(next, own)
			own = next
		}
	},
}, {
	name: "other request",
	rule: "Another request is told that it is another one by the fingerprint of the record, be it running, released or " +
		"lapsed; it is never granted a claim.",
	check: func(t *trial) {
		own := t.claim(request)
		t.runsAs(t.refused(another), own)
		t.runsAs(t.refused(takingOver(another)), own)
		t.release(own)
		t.isAbandoned(t.refused(another), own)
		t.isAbandoned(t.refused(takingOver(another)), own)
		t.next(own, request)

		t = t.at(freshKey())
		own = t.lapsed()
		t.isAbandoned(t.refused(another), own)
		t.isAbandoned(t.refused(takingOver(another)), own)
		t.next(own, takingOver(request))
	},
}, {
	name: "completed operation",
	rule: "A completed operation is never claimed again: not by another request, nor to take it over after its lease.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, long))
		t.complete(own, receipt("for good"))
		t.throughout(own.answered.Add(short), func() { t.replays(own, receipt("for good")) })
	},
}, {
	name: "cancelled Begin",
	rule: "A Begin whose context has ended claims the key or fails. The key is free when the claim, " +
		"also one in doubt, is released; or else when the lease is over.",
	check: func(t *trial) {
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, claim, err := t.store.Begin(ctx, t.key, lasting(request, short, long))
		if (claim == nil) == (err == nil) {
			t.failf("Begin returned the claim %v and the error %v", claim, err)
		}
		if inDoubt := t.claimInDoubt(err); inDoubt != nil {
			claim = inDoubt
		}
		if claim == nil {
			t.until("the key can be claimed", func() bool { return t.begin(takingOver(request)).claim != nil })
			return
		}
		t.claims = append(t.claims, claim)
		released := claim.Release(t.ctx, long)
		if err == nil || !errors.Is(released, idempotency.ErrClaimLost) { // which says that it was not granted
			t.succeeds("Release", released)
		}
		t.claim(request)
	},
}}
