package idempotencytest

import (
	"errors"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

var forgetCases = []testCase{{
	name: "forget/completed",
	rule: "A completed operation can be forgotten. Then every request can claim the key, as attempt 1 of a new operation.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newSample())
		t.forgetRecord(t.inspectState(idempotency.StateCompleted, own).Entry)
		t.checkNoRecord()
		next := t.claimKey(otherRequest)
		t.checkFirstAttempt(next, own)
		t.completeClaim(next, newReceipt("new"))
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, next), newReceipt("new"))
	},
}, {
	name: "forget/released",
	rule: "A released operation can be forgotten. Then every request can claim the key.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.releaseClaim(own)
		t.forgetRecord(t.inspectState(idempotency.StateReleased, own).Entry)
		t.checkNoRecord()
		t.checkFirstAttempt(t.claimKey(otherRequest), own)
	},
}, {
	name: "forget/abandoned",
	rule: "An abandoned operation can be forgotten. After a new claim of the key, the late owner changes nothing.",
	checkRule: func(t *trial) {
		old := t.claimUntilLapsed()
		t.forgetRecord(t.inspectState(idempotency.StateAbandoned, old).Entry)
		t.checkNoRecord()
		own := t.claimKey(otherRequest)
		t.checkFirstAttempt(own, old)
		t.checkClaimLost(old)
		t.completeClaim(own, newReceipt("new"))
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), newReceipt("new"))
	},
}, {
	name: "forget/late owner",
	rule: "If an abandoned operation was forgotten, its late owner can still complete it. Complete returns ErrRestored.",
	checkRule: func(t *trial) {
		old := t.claimUntilLapsed()
		t.forgetRecord(t.inspectState(idempotency.StateAbandoned, old).Entry)
		t.checkError("Complete", old.claim.Complete(t.ctx, newReceipt("restored"), long), idempotency.ErrRestored)
		t.checkReplay(old, newReceipt("restored"))
	},
}, {
	name: "forget/running",
	rule: "A running operation is never forgotten: Forget returns ErrInProgress, and the owner keeps the key.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkError("Forget", t.tryForget(t.inspectState(idempotency.StateRunning, own).Entry), idempotency.ErrInProgress)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("kept"))
		t.checkReplay(own, newReceipt("kept"))
	},
}, {
	name: "forget/running again",
	rule: "If an operation runs again since the entry was read, Forget returns ErrInProgress.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		entry := t.inspectState(idempotency.StateAbandoned, own).Entry
		own = t.extendLease(own, long)
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrInProgress)
		t.checkRunning(own)

		t.releaseClaim(own)
		entry = t.inspectState(idempotency.StateReleased, own).Entry
		own = t.claimNextAttempt(own, request)
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrInProgress)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("kept"))
		t.checkReplay(own, newReceipt("kept"))
	},
}, {
	name: "forget/no record",
	rule: "If the key has no record, Forget returns ErrNoRecord.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newSample())
		entry := t.inspectKey().Entry
		t.forgetRecord(entry)
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrNoRecord)

		t = t.withKey(newKey())
		own = t.claimKey(request)
		t.checkSuccessOrRestored("Complete", own.claim.Complete(t.ctx, newSample(), 4*short))
		entry, err := t.asInspector().Inspect(t.ctx, t.key)
		if errors.Is(err, idempotency.ErrNoRecord) {
			return // the record had expired before Inspect
		}
		t.checkSuccess("Inspect", err)
		t.checkUntil(time.Now().Add(4*short+clockResolution), func() {})
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrNoRecord)
		t.checkNoRecord()
	},
}, {
	name: "forget/other state",
	rule: "If the state of the operation differs from the entry, Forget returns ErrEntryChanged, and the record stays.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		entry := t.inspectState(idempotency.StateRunning, own).Entry
		t.completeClaim(own, newReceipt("kept"))
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.checkReplay(own, newReceipt("kept"))
	},
}, {
	name: "forget/other attempt",
	rule: "If a further attempt has run since the entry was read, Forget returns ErrEntryChanged. The record stays.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.releaseClaim(own)
		entry := t.inspectState(idempotency.StateReleased, own).Entry
		own = t.claimNextAttempt(own, request)
		t.releaseClaim(own)
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.claimNextAttempt(own, request)
	},
}, {
	name: "forget/other record",
	rule: "If the key has a new operation since the entry was read, Forget returns ErrEntryChanged. The record stays.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("old"))
		entry := t.inspectKey().Entry
		t.forgetRecord(entry)
		t.waitForClock() // because Forget compares the time of creation
		own = t.claimKey(request)
		t.completeClaim(own, newReceipt("new"))
		t.checkError("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.checkReplay(own, newReceipt("new"))
	},
}}

var forgetRaceCases = []testCase{{
	name: "forget/concurrently",
	rule: "Of many concurrent callers of Forget, exactly one forgets the record. The others get ErrNoRecord.",
	checkRule: func(t *trial) {
		for range 8 {
			t := t.withKey(newKey())
			t.completeClaim(t.claimKey(request), newSample())
			entry := t.inspectKey().Entry
			errs := make([]error, callerCount)
			var calls sync.WaitGroup
			for i := range errs {
				calls.Go(func() { errs[i] = t.tryForget(entry) })
			}
			calls.Wait()
			successes := 0
			for _, err := range errs {
				if err == nil {
					successes++
				} else {
					t.checkError("Forget", err, idempotency.ErrNoRecord)
				}
			}
			if successes != 1 {
				t.failf("%d of %d concurrent calls have forgotten the record, want 1", successes, callerCount)
			}
		}
	},
}, {
	name: "forget/completed during Begin",
	rule: "If a completed operation is forgotten during Begin, Begin returns the old response or a claim that stays " +
		"valid.",
	checkRule: func(t *trial) {
		for round := range raceRounds {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			t.completeClaim(own, newReceipt("old"))
			got, forgetErr := t.beginWhileForgetting(round, request)
			if forgetErr != nil { // the store may take the call of Begin for a running attempt
				t.checkError("Forget", forgetErr, idempotency.ErrInProgress)
				t.checkReplay(own, newReceipt("old"))
				continue
			}
			if got.claim == nil {
				t.checkResponse(got, own, newReceipt("old"))
				got = t.claimKey(request)
			}
			t.checkFirstAttempt(got, own)
			t.checkRunning(got)
			t.completeClaim(got, newReceipt("new"))
			t.checkReplay(got, newReceipt("new"))
		}
	},
}, {
	name: "forget/released during Begin",
	rule: "If a released operation is forgotten during Begin, Begin claims either a new operation or the next attempt.",
	checkRule: func(t *trial) {
		for round := range raceRounds {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			t.releaseClaim(own)
			got, forgetErr := t.beginWhileForgetting(round, request)
			t.checkForgottenOrClaimed(own, got, forgetErr)
		}
	},
}, {
	name: "forget/abandoned during takeover",
	rule: "If an abandoned operation is forgotten during a takeover, Begin claims a new operation or the next attempt.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			got, forgetErr := t.beginWhileForgetting(round, withTakeOver(request))
			t.checkForgottenOrClaimed(own, got, forgetErr)
		}
	},
}, {
	name: "forget/abandoned during Extend",
	rule: "If an abandoned operation is forgotten while its owner extends the lease, the owner holds the key. Extend " +
		"returns ErrRestored if the record was created again.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			entry := t.inspectState(idempotency.StateAbandoned, own).Entry
			var forgetErr, extendErr error
			own.leaseDuration, own.calledAt = long, time.Now()
			runBothAtOnce(round, func() { forgetErr = t.tryForget(entry) }, func() { extendErr = own.claim.Extend(t.ctx, long) })
			own.returnedAt = time.Now()
			if forgetErr == nil {
				t.checkError("Extend", extendErr, idempotency.ErrRestored)
			} else {
				t.checkChangedOrInProgress("Forget", forgetErr)
				t.checkSuccess("Extend", extendErr)
			}
			t.checkRunning(own)
			t.completeClaim(own, newReceipt("of a late owner"))
			t.checkReplay(own, newReceipt("of a late owner"))
		}
	},
}, {
	name: "forget/abandoned during Complete",
	rule: "If an abandoned operation is forgotten while its owner completes it, the response is stored. Complete " +
		"returns ErrRestored if the record was created again.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			entry := t.inspectState(idempotency.StateAbandoned, own).Entry
			var forgetErr, completeErr error
			runBothAtOnce(round, func() { forgetErr = t.tryForget(entry) }, func() {
				completeErr = own.claim.Complete(t.ctx, newReceipt("of a late owner"), long)
			})
			if forgetErr == nil {
				t.checkError("Complete", completeErr, idempotency.ErrRestored)
			} else {
				t.checkError("Forget", forgetErr, idempotency.ErrEntryChanged)
				t.checkSuccess("Complete", completeErr)
			}
			t.checkReplay(own, newReceipt("of a late owner"))
		}
	},
}}

// beginWhileForgetting calls Begin and Forget at the same time. For round see runBothAtOnce.
func (t *trial) beginWhileForgetting(round int, req idempotency.ClaimRequest) (got beginResult, forgetErr error) {
	entry := t.inspectKey().Entry
	var beginErr error
	runBothAtOnce(round, func() { forgetErr = t.tryForget(entry) }, func() { got, beginErr = t.callBegin(t.ctx, req) })
	t.rememberClaim(got)
	t.checkSuccess("Begin", beginErr)
	return got, forgetErr
}

// checkForgottenOrClaimed checks the results of beginWhileForgetting: got has a valid claim, of a new operation if
// Forget has succeeded, and otherwise of the next attempt at the operation of own.
func (t *trial) checkForgottenOrClaimed(own, got beginResult, forgetErr error) {
	if got.claim == nil {
		t.failf("the key was not claimed: %s", describeResult(got))
	}
	if forgetErr == nil {
		t.checkFirstAttempt(got, own)
	} else {
		t.checkChangedOrInProgress("Forget", forgetErr)
		own.Attempt++
		t.checkAttempt(got, own)
	}
	t.checkRunning(got)
	t.completeClaim(got, newReceipt("of the claim"))
	t.checkReplay(got, newReceipt("of the claim"))
}

// checkChangedOrInProgress checks the error of Forget or Resolve after an attempt has claimed the operation.
func (t *trial) checkChangedOrInProgress(method string, err error) {
	if !errors.Is(err, idempotency.ErrEntryChanged) {
		t.checkError(method, err, idempotency.ErrInProgress)
	}
}
