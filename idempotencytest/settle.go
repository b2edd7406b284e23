package idempotencytest

import (
	"time"

	"github.com/idempotency-go/idempotency"
)

var settleCases = []testCase{{
	name: "repeated Complete",
	rule: "A repeated call of Complete succeeds and changes nothing.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 3 {
			t.completeClaim(own, newReceipt("sent twice"))
		}
		t.checkReplay(own, newReceipt("sent twice"))
	},
}, {
	name: "second response",
	rule: "A completed response stays, even if the owner calls Complete again with another response.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("first"))
		_ = own.claim.Complete(t.ctx, newReceipt("second"), long) // not a repetition, so the contract leaves the error open
		t.checkReplay(own, newReceipt("first"))
	},
}, {
	name: "repeated Release",
	rule: "A repeated call of Release succeeds and changes nothing.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 3 {
			t.releaseClaim(own)
		}
		t.checkRunning(t.claimKey(request))
	},
}, {
	name: "freed key",
	rule: "Release with a TTL of zero frees the key. The next claim is attempt 1 of a new operation, for every request.",
	checkRule: func(t *trial) {
		for _, next := range []idempotency.ClaimRequest{request, otherRequest} {
			t := t.withKey(newKey())
			old := t.claimKey(request)
			t.waitForClock() // so that the two operations are created at different times
			for range 2 {
				t.checkSuccess("Release", old.claim.Release(t.ctx, idempotency.Release{TTL: 0}))
			}
			t.checkError("Extend", old.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
			own := t.claimKey(next)
			t.checkFirstAttempt(own, old)
			t.checkSuccessOrLost("Release", old.claim.Release(t.ctx, idempotency.Release{TTL: 0}))
			t.completeClaim(own, newReceipt("corrected"))
			t.checkResponse(t.readHeldRecord(next), own, newReceipt("corrected"))
		}
	},
}, {
	name: "abandoned by Release",
	rule: "Release of an abandoned attempt ends the lease at once, also if Release is repeated. Only a takeover may run the operation.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 2 {
			t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{Abandoned: true, Reason: idempotency.EndPanicked}))
			t.checkEndedWithoutResponse(t.readHeldRecord(request), own)
		}
		successor := t.claimNextAttempt(own, withTakeOver(request))
		t.checkError("Release", own.claim.Release(t.ctx, idempotency.Release{Abandoned: true}), idempotency.ErrClaimLost)
		t.checkRunning(successor)
	},
}, {
	name: "Release after Complete",
	rule: "After Complete, Release returns ErrClaimLost, and the response stays.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("kept"))
		t.checkError("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long}), idempotency.ErrClaimLost)
		t.checkReplay(own, newReceipt("kept"))
	},
}, {
	name: "Complete after Release",
	rule: "After Release, Complete returns ErrClaimLost, and the key stays free.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.releaseClaim(own)
		t.checkError("Complete", own.claim.Complete(t.ctx, newReceipt("too late"), long), idempotency.ErrClaimLost)
		t.checkRunning(t.claimKey(request))
	},
}, {
	name: "Extend after Complete",
	rule: "After Complete, Extend returns ErrClaimLost, and the response stays for the TTL of Complete.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("kept"))
		t.checkError("Extend", own.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
		t.checkUntil(time.Now().Add(short), func() { t.checkReplay(own, newReceipt("kept")) })
	},
}, {
	name: "Extend after Release",
	rule: "After Release, Extend returns ErrClaimLost, and the key stays free.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.releaseClaim(own)
		t.checkError("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.checkRunning(t.claimKey(request))
	},
}, {
	name: "Extend during Complete",
	rule: "After Complete has returned, a concurrent Extend changes nothing: the response stays, without a lease.",
	checkRule: func(t *trial) {
		for round := range raceRounds {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			extendErr, completeErr := t.endWhileExtending(own, round, func() error {
				return own.claim.Complete(t.ctx, newReceipt("of a renewed claim"), long)
			})
			t.checkSuccessOrLost("Extend", extendErr)
			t.checkSuccess("Complete", completeErr)
			t.checkReplay(own, newReceipt("of a renewed claim"))
		}
	},
}, {
	name: "Extend during Release",
	rule: "After Release has returned, a concurrent Extend changes nothing: the key is free.",
	checkRule: func(t *trial) {
		for round := range raceRounds {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			extendErr, releaseErr := t.endWhileExtending(own, round, func() error { return own.claim.Release(t.ctx, idempotency.Release{TTL: long}) })
			t.checkSuccessOrLost("Extend", extendErr)
			t.checkSuccess("Release", releaseErr)
			t.releaseClaim(t.claimKey(request))
		}
	},
}}
