package idempotencytest

import (
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
)

var expiryCases = []testCase{{
	name: "completed record expires",
	rule: "A completed record expires with its TTL, however often it is read; then the key is a new operation's.",
	check: func(t *trial) {
		own := t.claim(request)
		completed := time.Now()
		t.succeeds("Complete", own.claim.Complete(t.ctx, receipt("short-lived"), short))
		var next answer
		t.until("the completed record expires", func() bool {
			next = t.begin(another)
			if next.claim == nil {
				t.isResponse(next, own, receipt("short-lived"))
			}
			return next.claim != nil
		})
		t.notEarly("the completed record expired", completed, short, next)
		t.isNew(next, own)
		t.complete(next, receipt("new"))
		t.replays(next, receipt("new"))
	},
}, {
	name: "retention of a response",
	rule: "The TTL of a response counts from its completion, not from the claim.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		t.succeedsLate("Complete", own.claim.Complete(t.ctx, receipt("long-lived"), long))
		t.throughout(own.answered.Add(short), func() { t.replays(own, receipt("long-lived")) })
	},
}, {
	name: "unfinished record expires",
	rule: "A record that is never completed expires with the TTL of its attempt; then the key is free for every request.",
	check: func(t *trial) {
		own := t.forgotten()
		next := t.claim(another)
		t.isNew(next, own)
	},
}, {
	name: "released record expires",
	rule: "A released record expires with the TTL of its release; then the key is free for every request.",
	check: func(t *trial) {
		own := t.claim(request)
		released := time.Now()
		t.succeeds("Release", own.claim.Release(t.ctx, short))
		var next answer
		t.until("the released record expires", func() bool {
			next = t.begin(another)
			return next.claim != nil
		})
		t.notEarly("the released record expired", released, short, next)
		t.isNew(next, own)
	},
}, {
	name: "retention of a released record",
	rule: "The TTL of a release counts from then, also if that of the claim would have ended before.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		err := own.claim.Release(t.ctx, long)
		if errors.Is(err, idempotency.ErrClaimLost) {
			return // it came too late
		}
		t.succeeds("Release", err)
		t.throughout(own.answered.Add(short), func() { t.isAbandoned(t.refused(another), own) })
	},
}, {
	name: "remaining time",
	rule: "The claim to a further attempt says how long the record would have been kept without it, or that it is not known.",
	check: func(t *trial) {
		own := t.claim(request)
		if own.Remaining != 0 {
			t.failf("a new operation replaces a record that had %v left", own.Remaining)
		}
		const kept = long / 2
		released := time.Now()
		t.succeeds("Release", own.claim.Release(t.ctx, kept))
		next := t.next(own, request)
		earliest := kept - next.answered.Sub(released) - resolution
		if left := next.Remaining; left != 0 && (left < earliest || left > kept+resolution) {
			t.failf("of %v, for which the record was released, %v are said to be left", kept, left)
		}
	},
}, {
	name: "remaining time of a completed record",
	rule: "A completed record says how long it is still kept, if it is asked for, or that it is not known.",
	check: func(t *trial) {
		own := t.claim(request)
		const kept = long / 2
		before := time.Now()
		t.succeeds("Complete", own.claim.Complete(t.ctx, receipt("kept"), kept))
		after := time.Now()
		t.throughout(after.Add(short), func() {
			for _, a := range []idempotency.ClaimRequest{request, another} {
				a.Remaining = true
				seen := t.refused(a)
				t.isResponse(seen, own, receipt("kept"))
				least := kept - seen.answered.Sub(before) - resolution
				most := kept - seen.asked.Sub(after) + resolution
				if left := seen.Remaining; left != 0 && (left < least || left > most) {
					t.failf("of %v, for which the response was completed, %v are said to be left", kept, left)
				}
			}
		})
	},
}, {
	name: "TTL shorter than the lease",
	rule: "A record is kept no shorter than its lease.",
	check: func(t *trial) {
		own := t.claim(lasting(request, long, short))
		t.throughout(own.answered.Add(short), func() { t.runs(own) })
	},
}, {
	name: "Extend prolongs the record",
	rule: "Extend lets the record live at least as long as the lease.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		end := own.answered.Add(short)
		own.lease, own.asked = long, time.Now()
		t.succeedsLate("Extend", own.claim.Extend(t.ctx, long))
		t.throughout(end, func() { t.runs(own) })
	},
}, {
	name: "Extend keeps the TTL",
	rule: "Extend does not shorten the life of the record.",
	check: func(t *trial) {
		own := t.extend(t.claim(request), short)
		t.throughout(own.answered.Add(short), func() { t.describes(t.refused(another), own) })
	},
}, {
	name: "TTL of the next attempt",
	rule: "The TTL of an attempt counts from its claim, not from the first attempt's.",
	check: func(t *trial) {
		first := t.claim(lasting(request, short, short))
		_ = first.claim.Release(t.ctx, short) // may come too late; then the second attempt is at a new operation
		second := t.claim(request)
		t.throughout(first.answered.Add(short), func() { t.runs(second) })
	},
}, {
	name: "Complete restores",
	rule: "Complete stores the response although the record is gone, and says ErrRestored.",
	check: func(t *trial) {
		own := t.forgotten()
		t.says("Complete", own.claim.Complete(t.ctx, receipt("restored"), long), idempotency.ErrRestored)
		t.replays(own, receipt("restored"))
	},
}, {
	name: "Extend restores",
	rule: "Extend makes the record again that is gone, so that the key is held again, and says ErrRestored.",
	check: func(t *trial) {
		own := t.forgotten()
		own.lease, own.asked = long, time.Now()
		t.says("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrRestored)
		t.runs(own)
		t.complete(own, receipt("restored"))
		t.replays(own, receipt("restored"))
	},
}, {
	name: "Release of a forgotten record",
	rule: "Release says ErrClaimLost when the record is gone, and leaves the key free.",
	check: func(t *trial) {
		own := t.forgotten()
		t.says("Release", own.claim.Release(t.ctx, long), idempotency.ErrClaimLost)
		next := t.claim(another)
		t.isNew(next, own)
	},
}, {
	name: "Extend after the end of a forgotten record",
	rule: "Extend makes no record again after Release, nor after Complete: ErrClaimLost, and the key stays free.",
	check: func(t *trial) {
		released := t.forgotten()
		t.says("Release", released.claim.Release(t.ctx, long), idempotency.ErrClaimLost)
		t.says("Extend", released.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.isNew(t.claim(another), released)

		t = t.at(freshKey())
		completed := t.claim(request)
		t.succeeds("Complete", completed.claim.Complete(t.ctx, receipt("short-lived"), short))
		t.at(freshKey()).forgotten() // was claimed later, so the record has expired, too
		t.says("Extend", completed.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.isNew(t.claim(another), completed)
	},
}, {
	name: "Extend during the end of a forgotten record",
	rule: "Extend makes no record again that is being released or completed.",
	check: func(t *trial) {
		for round, old := range t.allForgotten(rounds) {
			extended, released := old.whileExtending(old.own, round, func() error { return old.own.claim.Release(t.ctx, long) })
			if !errors.Is(extended, idempotency.ErrRestored) {
				t.says("Extend", extended, idempotency.ErrClaimLost)
			}
			t.succeedsOrLoses("Release", released)
			old.release(old.claim(request))
		}
		for round, old := range t.allForgotten(rounds) {
			_, completed := old.whileExtending(old.own, round, func() error {
				return old.own.claim.Complete(t.ctx, receipt("restored"), long)
			})
			t.succeedsLate("Complete", completed)
			old.replays(old.own, receipt("restored"))
		}
	},
}}
