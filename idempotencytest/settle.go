package idempotencytest

import (
	"time"

	"github.com/idempotency-go/idempotency"
)

var settleCases = []testCase{{
	name: "repeated Complete",
	rule: "A repeated Complete succeeds and changes nothing.",
	check: func(t *trial) {
		own := t.claim(request)
		for range 3 {
			t.complete(own, receipt("sent twice"))
		}
		t.replays(own, receipt("sent twice"))
	},
}, {
	name: "second response",
	rule: "A response that was completed stays, even if its owner completes with another one.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("first"))
		_ = own.claim.Complete(t.ctx, receipt("second"), long) // no repetition: what it returns is open
		t.replays(own, receipt("first"))
	},
}, {
	name: "repeated Release",
	rule: "A repeated Release succeeds and changes nothing.",
	check: func(t *trial) {
		own := t.claim(request)
		for range 3 {
			t.release(own)
		}
		t.runs(t.claim(request))
	},
}, {
	name: "freed key",
	rule: "Release with a TTL of zero frees the key: the next claim is the first one of a new operation, whatever its request.",
	check: func(t *trial) {
		for _, next := range []idempotency.ClaimRequest{request, another} {
			t := t.at(freshKey())
			old := t.claim(request)
			t.later() // else both would be created at the same time
			for range 2 {
				t.succeeds("Release", old.claim.Release(t.ctx, 0))
			}
			t.says("Extend", old.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
			own := t.claim(next)
			t.isNew(own, old)
			t.succeedsOrLoses("Release", old.claim.Release(t.ctx, 0))
			t.complete(own, receipt("corrected"))
			t.isResponse(t.refused(next), own, receipt("corrected"))
		}
	},
}, {
	name: "Release after Complete",
	rule: "Release cannot undo what was completed: ErrClaimLost, and the response stays.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("kept"))
		t.says("Release", own.claim.Release(t.ctx, long), idempotency.ErrClaimLost)
		t.replays(own, receipt("kept"))
	},
}, {
	name: "Complete after Release",
	rule: "What was released cannot be completed: ErrClaimLost, and the key stays free.",
	check: func(t *trial) {
		own := t.claim(request)
		t.release(own)
		t.says("Complete", own.claim.Complete(t.ctx, receipt("too late"), long), idempotency.ErrClaimLost)
		t.runs(t.claim(request))
	},
}, {
	name: "Extend after Complete",
	rule: "Extend changes nothing after Complete: ErrClaimLost, and the response stays for as long as it was given.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("kept"))
		t.says("Extend", own.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
		t.throughout(time.Now().Add(short), func() { t.replays(own, receipt("kept")) })
	},
}, {
	name: "Extend after Release",
	rule: "Extend does not bring a released claim back: ErrClaimLost, and the key stays free.",
	check: func(t *trial) {
		own := t.claim(request)
		t.release(own)
		t.says("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.runs(t.claim(request))
	},
}, {
	name: "Extend during Complete",
	rule: "An Extend under way when Complete is called changes nothing after it: the response stays, without a lease.",
	check: func(t *trial) {
		for round := range rounds {
			t := t.at(freshKey())
			own := t.claim(request)
			extended, completed := t.whileExtending(own, round, func() error {
				return own.claim.Complete(t.ctx, receipt("of a renewed claim"), long)
			})
			t.succeedsOrLoses("Extend", extended)
			t.succeeds("Complete", completed)
			t.replays(own, receipt("of a renewed claim"))
		}
	},
}, {
	name: "Extend during Release",
	rule: "An Extend under way when Release is called changes nothing after it: the key is free.",
	check: func(t *trial) {
		for round := range rounds {
			t := t.at(freshKey())
			own := t.claim(request)
			extended, released := t.whileExtending(own, round, func() error { return own.claim.Release(t.ctx, long) })
			t.succeedsOrLoses("Extend", extended)
			t.succeeds("Release", released)
			t.release(t.claim(request))
		}
	},
}}
