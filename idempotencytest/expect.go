package idempotencytest

import (
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
)

// checkSuccess checks that the method with this name has returned no error.
func (t *trial) checkSuccess(method string, err error) {
	if err != nil {
		t.failf("%s: %w", method, err)
	}
}

// checkSuccessOrRestored checks the error of a method that may have been called after the record expired.
func (t *trial) checkSuccessOrRestored(method string, err error) {
	if !errors.Is(err, idempotency.ErrRestored) {
		t.checkSuccess(method, err)
	}
}

// checkSuccessOrLost checks the error of a method that may have been called after the end of the claim.
func (t *trial) checkSuccessOrLost(method string, err error) {
	if !errors.Is(err, idempotency.ErrClaimLost) {
		t.checkSuccess(method, err)
	}
}

// checkError checks that the method with this name has returned an error that wraps want.
func (t *trial) checkError(method string, err, want error) {
	if !errors.Is(err, want) {
		t.failf("%s returned %q, want %q", method, fmt.Sprint(err), want)
	}
}

// checkClaimLost checks that each method of the claim returns ErrClaimLost.
func (t *trial) checkClaimLost(own beginResult) {
	t.checkError("Extend", own.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
	t.checkError("Complete", own.claim.Complete(t.ctx, newReceipt("of the old owner"), short), idempotency.ErrClaimLost)
	t.checkError("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long}), idempotency.ErrClaimLost)
}

// checkAttempt checks that the record of seen describes the attempt of own.
func (t *trial) checkAttempt(seen, own beginResult) {
	switch {
	case seen.Attempt != own.Attempt:
		t.failf("the record has attempt number %d, want %d", seen.Attempt, own.Attempt)
	case seen.Created.Sub(own.Created).Abs() > clockResolution:
		t.failf("the record says that the operation was created at %v, want %v", seen.Created, own.Created)
	}
	t.checkFingerprint(seen, own)
}

// checkFingerprint checks that the fingerprint in seen equals the fingerprint of the caller of Begin if the caller has
// sent the same request as own, and otherwise differs from the fingerprint of the caller.
func (t *trial) checkFingerprint(seen, own beginResult) {
	switch {
	case seen.requestFingerprint == own.requestFingerprint && seen.Fingerprint != seen.requestFingerprint:
		t.failf("the record has fingerprint %v, want the fingerprint of its request, %v",
			seen.Fingerprint, seen.requestFingerprint)
	case seen.requestFingerprint != own.requestFingerprint && seen.Fingerprint == seen.requestFingerprint:
		t.failf("the record has the fingerprint of the caller, although the caller has sent another request")
	case seen.Fingerprint == idempotency.Fingerprint{}:
		t.failf("the record has no fingerprint")
	}
}

// checkRunning checks that a further request, with or without TakeOver, cannot claim the key while the attempt of own
// runs.
func (t *trial) checkRunning(own beginResult) {
	t.checkRunningRecord(t.readHeldRecord(request), own)
	t.checkRunningRecord(t.readHeldRecord(withTakeOver(request)), own)
}

// checkRunningRecord checks the record that another caller was given while the attempt of own runs.
func (t *trial) checkRunningRecord(seen, own beginResult) {
	if seen.Response != nil {
		t.failf("the record of a running attempt has a response")
	}
	t.checkAttempt(seen, own)
	t.checkLease(seen, own)
}

// checkLease checks LeaseLeft in seen against the lease of own, as exactly as the duration of the calls allows.
func (t *trial) checkLease(seen, own beginResult) {
	age := seen.returnedAt.Sub(own.calledAt)
	least, most := max(own.leaseDuration-age-clockResolution, 0), own.leaseDuration+clockResolution
	if left := seen.LeaseLeft; left < least || left > most || left == 0 && age < own.leaseDuration {
		t.failf("LeaseLeft of a lease of %v, at most %v after its beginning, is %v", own.leaseDuration, age, left)
	}
}

// checkEndedWithoutResponse checks that seen is the record of own, which is no longer running and not completed.
func (t *trial) checkEndedWithoutResponse(seen, own beginResult) {
	t.checkAttempt(seen, own)
	if seen.LeaseLeft != 0 || seen.Response != nil {
		t.failf("the attempt has ended without a response, but the record says otherwise: %s", describeResult(seen))
	}
}

// checkFirstAttempt checks that own is the first attempt at a new operation, created after the attempt before.
func (t *trial) checkFirstAttempt(own, before beginResult) {
	least := own.calledAt.Sub(before.returnedAt) - clockResolution
	if own.Attempt != 1 || own.Created.Sub(before.Created) < least {
		t.failf("the claim must be attempt 1 of an operation created now: %s", describeResult(own))
	}
}

// checkReplay checks that Begin returns the response of own for the same request and for another request, with and
// without TakeOver.
func (t *trial) checkReplay(own beginResult, resp idempotency.Response) {
	for _, req := range []idempotency.ClaimRequest{request, withTakeOver(request), otherRequest, withTakeOver(otherRequest)} {
		t.checkResponse(t.readHeldRecord(req), own, resp)
	}
}

// checkResponse checks that the record of seen is the completed record of own, with resp.
func (t *trial) checkResponse(seen, own beginResult, resp idempotency.Response) {
	if seen.Response == nil {
		t.failf("the record has no response: %s", describeResult(seen))
	}
	t.checkAttempt(seen, own)
	if seen.LeaseLeft != 0 {
		t.failf("the record of a completed operation has LeaseLeft %v, want 0", seen.LeaseLeft)
	}
	if diff := describeDifference(*seen.Response, resp); diff != "" {
		t.failf("the response differs from the completed response: %s", diff)
	}
}

// checkNotEarly checks that the event in seen has happened at least span after since.
func (t *trial) checkNotEarly(event string, since time.Time, span time.Duration, seen beginResult) {
	if took := seen.returnedAt.Sub(since); took < span-clockResolution {
		t.failf("%s too early: after %v, want %v", event, took, span)
	}
}

// describeResult returns the record of a result as text for a message.
func describeResult(result beginResult) string {
	return fmt.Sprintf("attempt %d, created %v, LeaseLeft %v, completed %t",
		result.Attempt, result.Created, result.LeaseLeft, result.Response != nil)
}
