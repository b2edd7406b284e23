package idempotencytest

import (
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
)

var inspectCases = []testCase{{
	name: "inspect/running",
	rule: "Inspect shows a running attempt as running, with its operation, its attempt number, and the rest of the lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, long/2, long))
		seen := t.inspectState(idempotency.StateRunning, own)
		t.checkEntryLease(seen, own)
		t.checkRemaining(seen, long, own.calledAt, own.returnedAt)
		own = t.extendLease(own, long)
		t.checkEntryLease(t.inspectState(idempotency.StateRunning, own), own)
		t.checkRunning(own)
	},
}, {
	name: "inspect/next attempt",
	rule: "Inspect shows the attempt number of the running attempt, but the time of the first attempt.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for range 3 {
			t.waitForClock()
			t.releaseClaim(own)
			own = t.claimNextAttempt(own, request)
		}
		seen := t.inspectState(idempotency.StateRunning, own)
		t.checkEntryLease(seen, own)
	},
}, {
	name: "inspect/abandoned",
	rule: "Inspect shows an attempt whose lease has lapsed as abandoned.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		seen := t.inspectState(idempotency.StateAbandoned, own)
		t.checkRemaining(seen, long, own.calledAt, own.returnedAt)
		t.claimNextAttempt(own, withTakeOver(request))
	},
}, {
	name: "inspect/same record",
	rule: "Inspect and Begin return exactly the same attempt number and time of creation.",
	checkRule: func(t *trial) {
		checkAgreement := func() {
			record, entry := t.readHeldRecord(request).Record, t.inspectKey().Entry
			if entry.Attempt != record.Attempt || !entry.Created.Equal(record.Created) {
				t.failf("Inspect returned attempt number %d and Created %v, but Begin returned %d and %v",
					entry.Attempt, entry.Created, record.Attempt, record.Created)
			}
		}
		own := t.claimUntilLapsed()
		checkAgreement()
		next := t.claimNextUntilLapsed(own, withTakeOver(request))
		checkAgreement()
		t.claimNextAttempt(next, withTakeOver(request))
		checkAgreement()
		t = t.withKey(newKey())
		t.completeClaim(t.claimKey(request), newSample())
		checkAgreement()
	},
}, {
	name: "inspect/released",
	rule: "Inspect shows an operation that can be tried again as released.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		since := time.Now()
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long / 2}))
		until := time.Now()
		t.checkRemaining(t.inspectState(idempotency.StateReleased, own), long/2, since, until)
		t.claimNextAttempt(own, request)
	},
}, {
	name: "inspect/reason",
	rule: "Inspect shows why the last attempt has ended, until the next attempt begins.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkReason("")
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long, Reason: idempotency.EndNotStorable}))
		t.checkReason(idempotency.EndNotStorable)
		own = t.claimNextAttempt(own, request)
		t.checkReason("")
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{Abandoned: true, Reason: idempotency.EndPanicked}))
		t.checkReason(idempotency.EndPanicked)
		t.inspectState(idempotency.StateAbandoned, own)
		t.completeClaim(t.claimNextAttempt(own, withTakeOver(request)), newSample())
		t.checkReason("")
	},
}, {
	name: "inspect/completed",
	rule: "Inspect shows a completed operation with its response, and with the time of completion if known.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.waitForClock()
		since := time.Now()
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newSample(), long/2))
		until := time.Now()
		seen := t.inspectState(idempotency.StateCompleted, own)
		t.checkEntryResponse(seen, newSample())
		t.checkRemaining(seen, long/2, since, until)
		// The clock of the store may differ from the clock of the suite, so the case compares Completed with Created.
		if at := seen.Completed; !at.IsZero() && at.Sub(own.Created) < since.Sub(own.returnedAt)-clockResolution {
			t.failf("Completed is too early: the operation was created at %v, and Completed is %v", own.Created, at)
		}
		if at := seen.Completed; !at.IsZero() && at.Sub(own.Created) > until.Sub(own.calledAt)+clockResolution {
			t.failf("Completed is too late: the operation was created at %v, and Completed is %v", own.Created, at)
		}
		t.checkReplay(own, newSample())
	},
}, {
	name: "inspect/refusal",
	rule: "Inspect shows a completed operation with its response, for every status.",
	checkRule: func(t *trial) {
		for _, status := range []int{http.StatusNoContent, http.StatusFound, http.StatusConflict, http.StatusInternalServerError} {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			t.completeClaim(own, idempotency.Response{Status: status})
			t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), idempotency.Response{Status: status})
		}
	},
}, {
	name: "inspect/large answer",
	rule: "Inspect returns the whole response.",
	checkRule: func(t *trial) {
		own, resp := t.claimKey(request), newSample()
		resp.Body = newNoise(1<<20 + 4321)
		t.completeClaim(own, resp)
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), resp)
	},
}, {
	name: "inspect/note",
	rule: "Inspect returns the note both in the entry and in the response. The record of a replay has the note as well.",
	checkRule: func(t *trial) {
		own, resp := t.claimKey(request), newSampleWithNote("charge ch_1: settled")
		t.completeClaim(own, resp)
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), resp)
		t.checkReplay(own, resp)
	},
}, {
	name: "inspect/omitted",
	rule: "Inspect returns a response that was not kept with Omitted set, and with its status.",
	checkRule: func(t *trial) {
		own, resp := t.claimKey(request), idempotency.Response{Status: http.StatusAccepted, Omitted: true}
		t.completeClaim(own, resp)
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), resp)
	},
}, {
	name: "inspect/no record",
	rule: "If a key was never used, Inspect returns ErrNoRecord.",
	checkRule: func(t *trial) {
		t.checkNoRecord()
		t.checkFirstAttempt(t.claimKey(request), beginResult{}) // Inspect has claimed nothing
	},
}, {
	name: "inspect/freed",
	rule: "After a key was freed, Inspect returns ErrNoRecord, and List does not return the key.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: 0}))
		t.checkNoRecord()
		listing := t.listRecords(idempotency.ListRequest{})
		if len(listing.Entries) > 0 || len(listing.Totals) > 0 || listing.Unreadable > 0 {
			t.failf("the listing contains a freed key: %+v", listing)
		}
	},
}, {
	name: "inspect/expired",
	rule: "After a record has expired, Inspect returns ErrNoRecord, also if no other call has used the key since.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		since := time.Now()
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newReceipt("short-lived"), short))
		t.waitUntil("the completed record expires", func() bool {
			_, err := t.asInspector().Inspect(t.ctx, t.key)
			if err == nil {
				return false
			}
			t.checkError("Inspect", err, idempotency.ErrNoRecord)
			t.checkNotEarly("the completed record expired", since, short, beginResult{returnedAt: time.Now()})
			return true
		})
		t = t.withKey(newKey())
		t.claimUntilExpired()
		t.checkNoRecord()
	},
}, {
	name: "inspect/lease",
	rule: "Inspect does not extend a lease.",
	checkRule: func(t *trial) {
		own := t.claimKey(withDurations(request, short, long))
		t.waitUntil("the lease lapses", func() bool {
			seen := t.inspectKey()
			if seen.State == idempotency.StateRunning {
				return false
			}
			t.checkEntry(seen.Entry, idempotency.StateAbandoned, own)
			t.checkNotEarly("the lease lapsed", own.calledAt, short, beginResult{returnedAt: seen.returnedAt})
			return true
		})
	},
}, {
	name: "inspect/keys",
	rule: "Two users who have sent the same key have separate records.",
	checkRule: func(t *trial) {
		other := t.withKey(idempotency.Key{User: t.key.User + "'", Endpoint: t.key.Endpoint, ID: t.key.ID})
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("of the first user"))
		other.checkNoRecord()
		theirs := other.claimKey(otherRequest)
		other.completeClaim(theirs, newReceipt("of the second user"))
		t.checkEntryResponse(t.inspectState(idempotency.StateCompleted, own), newReceipt("of the first user"))
		seen := other.inspectState(idempotency.StateCompleted, theirs)
		other.checkEntryResponse(seen, newReceipt("of the second user"))
		other.forgetRecord(seen.Entry)
		other.checkNoRecord()
		t.checkReplay(own, newReceipt("of the first user"))
	},
}}

// newSampleWithNote returns newSample with a note.
func newSampleWithNote(note string) idempotency.Response {
	resp := newSample()
	resp.Note = note
	return resp
}

// checkReason checks the reason for which the last attempt ended.
func (t *trial) checkReason(want idempotency.EndReason) {
	if got := t.inspectKey().Ended; got != want {
		t.failf("Inspect returned the reason %q, want %q", got, want)
	}
}
