package idempotencytest

import "github.com/idempotency-go/idempotency"

var fencingCases = []testCase{{
	name: "overtaken owner",
	rule: "After a takeover, the old owner gets ErrClaimLost and changes nothing. The successor's response is replayed.",
	checkRule: func(t *trial) {
		old, successor := t.claimAndTakeOver()
		t.checkClaimLost(old)
		t.checkRunning(successor)
		t.completeClaim(successor, newReceipt("of the successor"))
		t.checkClaimLost(old)
		t.checkReplay(successor, newReceipt("of the successor"))
	},
}, {
	name: "overtaken owner after a release",
	rule: "After a takeover, the old owner gets ErrClaimLost and changes nothing, even if the successor has released.",
	checkRule: func(t *trial) {
		old, successor := t.claimAndTakeOver()
		t.releaseClaim(successor)
		t.checkClaimLost(old)
		t.checkEndedWithoutResponse(t.readHeldRecord(otherRequest), successor)
		t.claimNextAttempt(successor, request)
	},
}, {
	name: "takeover at the last moment",
	rule: "If a late owner completes while another attempt takes over, exactly one of them succeeds.",
	checkRule: func(t *trial) {
		for range 8 {
			t := t.withKey(newKey())
			old := t.claimUntilLapsed()
			var successor beginResult
			var beginErr error
			begun := make(chan struct{})
			go func() {
				defer close(begun)
				successor, beginErr = t.callBegin(t.ctx, withTakeOver(request))
			}()
			completeErr := old.claim.Complete(t.ctx, newReceipt("at the last moment"), long)
			<-begun
			t.checkSuccess("Begin", beginErr)
			if successor.claim == nil {
				t.checkSuccess("Complete", completeErr)
				t.checkReplay(old, newReceipt("at the last moment"))
			} else {
				t.checkError("Complete", completeErr, idempotency.ErrClaimLost)
				t.checkRunning(successor)
			}
		}
	},
}, {
	name: "released owner",
	rule: "An owner who has released the claim changes nothing after the next attempt has begun.",
	checkRule: func(t *trial) {
		old := t.claimKey(request)
		t.releaseClaim(old)
		successor := t.claimNextAttempt(old, request)
		t.checkError("Extend", old.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
		t.checkError("Complete", old.claim.Complete(t.ctx, newReceipt("of the old owner"), long), idempotency.ErrClaimLost)
		_ = old.claim.Release(t.ctx, idempotency.Release{TTL: long}) // nil, because the call is a repetition, or ErrClaimLost
		t.checkRunning(successor)
	},
}, {
	name: "forgotten owner",
	rule: "After a new operation has the key, the owner of the expired record gets ErrClaimLost and changes nothing.",
	checkRule: func(t *trial) {
		old := t.claimUntilExpired()
		own := t.claimKey(request)
		t.checkFirstAttempt(own, old)
		t.checkClaimLost(old)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("new"))
		t.checkClaimLost(old)
		t.checkReplay(own, newReceipt("new"))
	},
}}
