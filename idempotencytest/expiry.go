package idempotencytest

import (
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
)

var expiryCases = []testCase{{
	name: "completed record expires",
	rule: "A completed record expires after its TTL, even if it is read often. Then every request can claim the key.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		completed := time.Now()
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newReceipt("short-lived"), short))
		var next beginResult
		t.waitUntil("the completed record expires", func() bool {
			next = t.beginAttempt(otherRequest)
			if next.claim == nil {
				t.checkResponse(next, own, newReceipt("short-lived"))
			}
			return next.claim != nil
		})
		t.checkNotEarly("the completed record expired", completed, short, next)
		t.checkFirstAttempt(next, own)
		t.completeClaim(next, newReceipt("new"))
		t.checkReplay(next, newReceipt("new"))
	},
}, {
	name: "retention of a response",
	rule: "The TTL of a response counts from Complete, not from Begin.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, short))
		t.checkSuccessOrRestored("Complete", own.claim.Complete(t.ctx, newReceipt("long-lived"), long))
		t.checkUntil(own.returnedAt.Add(short), func() { t.checkReplay(own, newReceipt("long-lived")) })
	},
}, {
	name: "unfinished record expires",
	rule: "A record that is never completed expires after the TTL of its attempt. Then every request can claim the key.",
	checkRule: func(t *trial) {
		own := t.claimUntilExpired()
		next := t.claimKey(otherRequest)
		t.checkFirstAttempt(next, own)
	},
}, {
	name: "released record expires",
	rule: "A released record expires after the TTL of Release. Then every request can claim the key.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		released := time.Now()
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: short}))
		var next beginResult
		t.waitUntil("the released record expires", func() bool {
			next = t.beginAttempt(otherRequest)
			return next.claim != nil
		})
		t.checkNotEarly("the released record expired", released, short, next)
		t.checkFirstAttempt(next, own)
	},
}, {
	name: "retention of a released record",
	rule: "The TTL of Release counts from the call of Release, even if the TTL of the claim would end earlier.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, short))
		err := own.claim.Release(t.ctx, idempotency.Release{TTL: long})
		if errors.Is(err, idempotency.ErrClaimLost) {
			return // the record had expired before Release
		}
		t.checkSuccess("Release", err)
		t.checkUntil(own.returnedAt.Add(short), func() { t.checkEndedWithoutResponse(t.readHeldRecord(otherRequest), own) })
	},
}, {
	name: "remaining time",
	rule: "The record of a further attempt says how long the replaced record would have been kept. Zero means unknown.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		if own.Remaining != 0 {
			t.failf("Remaining of a new operation is %v, want 0, because the claim has replaced no record", own.Remaining)
		}
		const kept = long / 2
		released := time.Now()
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: kept}))
		next := t.claimNextAttempt(own, request)
		earliest := kept - next.returnedAt.Sub(released) - clockResolution
		if left := next.Remaining; left != 0 && (left < earliest || left > kept+clockResolution) {
			t.failf("Remaining is %v, but the replaced record was released for %v", left, kept)
		}
	},
}, {
	name: "remaining time of a completed record",
	rule: "If the request asks for Remaining, a completed record says how long it is still kept. Zero means unknown.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		const kept = long / 2
		before := time.Now()
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newReceipt("kept"), kept))
		after := time.Now()
		t.checkUntil(after.Add(short), func() {
			for _, req := range []idempotency.ClaimRequest{request, otherRequest} {
				req.Remaining = true
				seen := t.readHeldRecord(req)
				t.checkResponse(seen, own, newReceipt("kept"))
				least := kept - seen.returnedAt.Sub(before) - clockResolution
				most := kept - seen.calledAt.Sub(after) + clockResolution
				if left := seen.Remaining; left != 0 && (left < least || left > most) {
					t.failf("Remaining is %v, but the response was completed for %v", left, kept)
				}
			}
		})
	},
}, {
	name: "TTL shorter than the lease",
	rule: "The store keeps a record at least as long as its lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, long, short))
		t.checkUntil(own.returnedAt.Add(short), func() { t.checkRunning(own) })
	},
}, {
	name: "Extend prolongs the record",
	rule: "Extend keeps the record at least as long as the new lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, short))
		end := own.returnedAt.Add(short)
		own.leaseDuration, own.calledAt = long, time.Now()
		t.checkSuccessOrRestored("Extend", own.claim.Extend(t.ctx, long))
		t.checkUntil(end, func() { t.checkRunning(own) })
	},
}, {
	name: "Extend keeps the TTL",
	rule: "Extend with a short lease does not shorten the TTL of the record.",
	checkRule: func(t *trial) {
		own := t.extendLease(t.claimKey(request), short)
		t.checkUntil(own.returnedAt.Add(short), func() { t.checkAttempt(t.readHeldRecord(otherRequest), own) })
	},
}, {
	name: "TTL of the next attempt",
	rule: "The TTL of an attempt counts from its own Begin, not from the Begin of the first attempt.",
	checkRule: func(t *trial) {
		first := t.claimKey(withDurations(request, short, short))
		_ = first.claim.Release(t.ctx, idempotency.Release{TTL: short}) // if the record has expired before, the second claim belongs to a new operation
		second := t.claimKey(request)
		t.checkUntil(first.returnedAt.Add(short), func() { t.checkRunning(second) })
	},
}, {
	name: "Complete restores",
	rule: "If the record is gone, Complete stores the response nevertheless, and returns ErrRestored.",
	checkRule: func(t *trial) {
		own := t.claimUntilExpired()
		t.checkError("Complete", own.claim.Complete(t.ctx, newReceipt("restored"), long), idempotency.ErrRestored)
		t.checkReplay(own, newReceipt("restored"))
	},
}, {
	name: "Extend restores",
	rule: "If the record is gone, Extend creates the record again, which holds the key, and returns ErrRestored.",
	checkRule: func(t *trial) {
		own := t.claimUntilExpired()
		own.leaseDuration, own.calledAt = long, time.Now()
		t.checkError("Extend", own.claim.Extend(t.ctx, long), idempotency.ErrRestored)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("restored"))
		t.checkReplay(own, newReceipt("restored"))
	},
}, {
	name: "Release of a forgotten record",
	rule: "If the record is gone, Release returns ErrClaimLost, and the key stays free.",
	checkRule: func(t *trial) {
		own := t.claimUntilExpired()
		t.checkError("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long}), idempotency.ErrClaimLost)
		next := t.claimKey(otherRequest)
		t.checkFirstAttempt(next, own)
	},
}, {
	name: "Extend after the end of a forgotten record",
	rule: "After Release or Complete, Extend returns ErrClaimLost for an expired record, and the key stays free.",
	checkRule: func(t *trial) {
		released := t.claimUntilExpired()
		t.checkError("Release", released.claim.Release(t.ctx, idempotency.Release{TTL: long}), idempotency.ErrClaimLost)
		t.checkError("Extend", released.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.checkFirstAttempt(t.claimKey(otherRequest), released)

		t = t.withKey(newKey())
		completed := t.claimKey(request)
		t.checkSuccess("Complete", completed.claim.Complete(t.ctx, newReceipt("short-lived"), short))
		t.withKey(newKey()).claimUntilExpired() // claimed later, so the record of completed has expired as well
		t.checkError("Extend", completed.claim.Extend(t.ctx, long), idempotency.ErrClaimLost)
		t.checkFirstAttempt(t.claimKey(otherRequest), completed)
	},
}, {
	name: "Extend during the end of a forgotten record",
	rule: "Extend does not create an expired record again while Release or Complete ends the claim.",
	checkRule: func(t *trial) {
		for round, old := range t.claimAllUntilExpired(raceRounds) {
			extendErr, releaseErr := old.endWhileExtending(old.own, round, func() error {
				return old.own.claim.Release(t.ctx, idempotency.Release{TTL: long})
			})
			if !errors.Is(extendErr, idempotency.ErrRestored) {
				t.checkError("Extend", extendErr, idempotency.ErrClaimLost)
			}
			t.checkSuccessOrLost("Release", releaseErr)
			old.releaseClaim(old.claimKey(request))
		}
		for round, old := range t.claimAllUntilExpired(raceRounds) {
			_, completeErr := old.endWhileExtending(old.own, round, func() error {
				return old.own.claim.Complete(t.ctx, newReceipt("restored"), long)
			})
			t.checkSuccessOrRestored("Complete", completeErr)
			old.checkReplay(old.own, newReceipt("restored"))
		}
	},
}}
