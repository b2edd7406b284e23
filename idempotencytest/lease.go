package idempotencytest

var leaseCases = []testCase{{
	name: "lapsed lease",
	rule: "After the lease has lapsed, Begin without TakeOver grants no claim. LeaseLeft of the record is zero.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		t.checkEndedWithoutResponse(t.readHeldRecord(request), own)
	},
}, {
	name: "takeover",
	rule: "After the lease has lapsed, Begin with TakeOver claims the next attempt at the operation, with a new lease.",
	checkRule: func(t *trial) {
		old := t.claimKey(withDurations(request, short, long))
		var successor beginResult
		t.waitUntil("the lease lapses", func() bool {
			successor = t.beginAttempt(withTakeOver(request))
			return successor.claim != nil
		})
		t.checkNotEarly("the claim was taken over", old.calledAt, short, successor)
		old.Attempt++
		t.checkAttempt(successor, old)
		t.checkRunning(successor)
	},
}, {
	name: "concurrent takeovers",
	rule: "Of many concurrent callers with TakeOver, exactly one takes over a lapsed claim.",
	checkRule: func(t *trial) {
		for range 4 {
			key := newKey()
			old := t.withKey(key).claimUntilLapsed()
			successor := t.raceForClaims(withTakeOver(request), key)[0]
			old.Attempt++
			t.checkAttempt(successor, old)
		}
	},
}, {
	name: "extended lease",
	rule: "Extend makes the lease end after the given duration from now, also beyond the end of the first lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, long))
		firstEnd := own.returnedAt.Add(short)
		own = t.extendLease(own, long/2)
		t.checkUntil(firstEnd, func() { t.checkRunning(own) })
		own = t.extendLease(own, long)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("of a long attempt"))
		t.checkReplay(own, newReceipt("of a long attempt"))
	},
}, {
	name: "late owner",
	rule: "The owner of a lapsed claim can still extend, complete and release the claim before a takeover.",
	checkRule: func(t *trial) {
		own := t.extendLease(t.claimUntilLapsed(), long)
		t.checkRunning(own)

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		t.completeClaim(own, newReceipt("of a late owner"))
		t.checkReplay(own, newReceipt("of a late owner"))

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		t.releaseClaim(own)
		t.claimNextAttempt(own, request)
	},
}}
