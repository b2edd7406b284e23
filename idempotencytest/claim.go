package idempotencytest

import (
	"context"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
)

var claimCases = []testCase{{
	name: "fresh key",
	rule: "Begin claims a key without a record. The claim is attempt 1 of a new operation, which was created now.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		// The clocks of two machines may differ, so the case finds only gross errors, such as another unit or time zone.
		if age := time.Since(own.Created); age.Abs() > 10*time.Minute {
			t.failf("a new record says that the operation was created %v ago", age)
		}
		t.checkFirstAttempt(t.withKey(newKey()).claimKey(request), own)
	},
}, {
	name: "running attempt",
	rule: "While an attempt runs, Begin does not grant its key again. The record says how much of the lease is left.",
	checkRule: func(t *trial) {
		t.checkRunning(t.claimKey(request))
	},
}, {
	name: "concurrent claims",
	rule: "Of many concurrent callers, exactly one is granted the claim. The others get the record of its attempt.",
	checkRule: func(t *trial) {
		for range 8 {
			for _, own := range t.raceForClaims(request, newKey(), newKey()) {
				t.completeClaim(own, newReceipt("of the winner"))
			}
		}
	},
}, {
	name: "released key",
	rule: "A released key can be claimed again at once, without TakeOver.",
	checkRule: func(t *trial) {
		t.releaseClaim(t.claimKey(request))
		t.checkRunning(t.claimKey(request))
	},
}, {
	name: "released operation",
	rule: "The claim after a release is the next attempt at the same operation.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 3 {
			t.releaseClaim(own)
			own = t.claimNextAttempt(own, request)
		}
		t.completeClaim(own, newReceipt("at last"))
		t.checkReplay(own, newReceipt("at last"))
	},
}, {
	name: "concurrent claims after a release",
	rule: "Of many concurrent callers, exactly one is granted the claim of a released operation.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 8 {
			t.releaseClaim(own)
			next := t.raceForClaims(request, t.key)[0]
			own.Attempt++
			t.checkAttempt(next, own)
			own = next
		}
	},
}, {
	name: "other request",
	rule: "A request with another fingerprint is never granted a claim, whether the attempt is running, released or " +
		"abandoned. The fingerprint of the record differs from the fingerprint of the request.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkRunningRecord(t.readHeldRecord(otherRequest), own)
		t.checkRunningRecord(t.readHeldRecord(withTakeOver(otherRequest)), own)
		t.releaseClaim(own)
		t.checkEndedWithoutResponse(t.readHeldRecord(otherRequest), own)
		t.checkEndedWithoutResponse(t.readHeldRecord(withTakeOver(otherRequest)), own)
		t.claimNextAttempt(own, request)

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		t.checkEndedWithoutResponse(t.readHeldRecord(otherRequest), own)
		t.checkEndedWithoutResponse(t.readHeldRecord(withTakeOver(otherRequest)), own)
		t.claimNextAttempt(own, withTakeOver(request))
	},
}, {
	name: "completed operation",
	rule: "A completed operation is never claimed again, even by another request or with TakeOver after the lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, long))
		t.completeClaim(own, newReceipt("for good"))
		t.checkUntil(own.returnedAt.Add(short), func() { t.checkReplay(own, newReceipt("for good")) })
	},
}, {
	name: "cancelled Begin",
	rule: "If the context has ended, Begin either claims the key or fails. The key is free again after Release of the " +
		"claim, which may be a claim in doubt. If Begin has returned no claim, the key is free after the lease.",
	checkRule: func(t *trial) {
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, claim, err := t.store.Begin(ctx, t.key, withDurations(request, short, long))
		if (claim == nil) == (err == nil) {
			t.failf("Begin returned the claim %v and the error %v, but must return exactly one of them", claim, err)
		}
		if inDoubt := t.unwrapClaimInDoubt(err); inDoubt != nil {
			claim = inDoubt
		}
		if claim == nil {
			t.waitUntil("the key can be claimed", func() bool { return t.beginAttempt(withTakeOver(request)).claim != nil })
			return
		}
		t.grantedClaims = append(t.grantedClaims, claim)
		releaseErr := claim.Release(t.ctx, idempotency.Release{TTL: long})
		if err == nil || !errors.Is(releaseErr, idempotency.ErrClaimLost) { // the store may not have granted a claim in doubt
			t.checkSuccess("Release", releaseErr)
		}
		t.claimKey(request)
	},
}}
