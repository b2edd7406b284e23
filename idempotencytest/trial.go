package idempotencytest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

const (
	short        = 80 * time.Millisecond // a lease or TTL whose end a case waits for
	long         = 10 * time.Minute      // a lease or TTL that outlives every case
	caseTimeout  = 2 * time.Minute       // bounds one case
	waitLimit    = 30 * time.Second      // bounds the wait for an event, such as the end of a lease, and concurrent calls
	cleanUpLimit = 5 * time.Second       // bounds the release of the claims after a case
	raceRounds   = 32                    // repetitions of two concurrent calls, to see them in every order

	// clockResolution is the rounding error that the cases allow in the times of the store and of the suite.
	clockResolution = 10 * time.Millisecond
)

// Two different requests. Their claims outlive every case.
var (
	request      = idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("request")), Lease: long, TTL: long}
	otherRequest = idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("another")), Lease: long, TTL: long}
)

// withTakeOver returns req with TakeOver set.
func withTakeOver(req idempotency.ClaimRequest) idempotency.ClaimRequest {
	req.TakeOver = true
	return req
}

// withDurations returns req with another lease and TTL.
func withDurations(req idempotency.ClaimRequest, lease, ttl time.Duration) idempotency.ClaimRequest {
	req.Lease, req.TTL = lease, ttl
	return req
}

// newKey returns a key that no other case uses.
func newKey() idempotency.Key {
	return idempotency.Key{User: "user " + uuid.NewString(), Endpoint: "POST /payments", ID: uuid.NewString()}
}

// session is one run of a case.
type session struct {
	subject
	ctx           context.Context
	grantedClaims []idempotency.Claim // all claims of the case, to be released at the end
	violation     error               // why the store has failed the case
}

// trial gives a case its store and a new key. Each method that checks or needs a result of the store ends the case if
// the store returns another result.
//
// In the parameters of these methods, own is the beginResult with the claim of an attempt, and seen is a later result
// for the same key.
type trial struct {
	*session
	key idempotency.Key
}

// withKey returns a trial of the same session with another key.
func (t *trial) withKey(key idempotency.Key) *trial { return &trial{t.session, key} }

// failf stores the violation, and ends the goroutine of the case, as FailNow of package testing does.
func (t *trial) failf(format string, args ...any) {
	t.violation = fmt.Errorf(format, args...)
	runtime.Goexit()
}

// cleanUpClaims releases all claims of the case. Errors are ignored, because the case has ended most of the claims
// itself.
func (t *trial) cleanUpClaims() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), cleanUpLimit)
	defer cancel()
	for _, claim := range t.grantedClaims {
		_ = claim.Release(ctx, idempotency.Release{TTL: long})
	}
}

// beginResult is the result of a call to Begin.
type beginResult struct {
	idempotency.Record
	claim                idempotency.Claim
	requestFingerprint   idempotency.Fingerprint
	leaseDuration        time.Duration
	calledAt, returnedAt time.Time
}

// callBegin calls Begin, and returns its error to the caller. callBegin releases a claim in doubt.
func (t *trial) callBegin(ctx context.Context, req idempotency.ClaimRequest) (beginResult, error) {
	calledAt := time.Now()
	record, claim, err := t.store.Begin(ctx, t.key, req)
	if err != nil && claim != nil {
		t.failf("Begin returned both a claim and the error %v", err)
	}
	if inDoubt := t.unwrapClaimInDoubt(err); inDoubt != nil {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second) // an open transaction of the case may lock the record
		defer cancel()
		_ = inDoubt.Release(ctx, idempotency.Release{TTL: long})
	}
	return beginResult{record, claim, req.Fingerprint, req.Lease, calledAt, time.Now()}, err
}

// unwrapClaimInDoubt returns the claim of a ClaimInDoubtError, and nil for any other error.
func (t *trial) unwrapClaimInDoubt(err error) idempotency.Claim {
	inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err)
	if !ok {
		return nil
	}
	if inDoubt.Claim == nil {
		t.failf("Begin returned a ClaimInDoubtError without a claim: %v", err)
	}
	return inDoubt.Claim
}

// beginAttempt calls Begin, which may grant the claim, but must not fail.
func (t *trial) beginAttempt(req idempotency.ClaimRequest) beginResult {
	got, err := t.callBegin(t.ctx, req)
	t.checkSuccess("Begin", err)
	t.rememberClaim(got)
	return got
}

// rememberClaim makes cleanUpClaims release the claim of got, if got has a claim.
func (t *trial) rememberClaim(got beginResult) {
	if got.claim != nil {
		t.grantedClaims = append(t.grantedClaims, got.claim)
	}
}

// claimKey calls Begin, which must grant the claim with a valid record.
func (t *trial) claimKey(req idempotency.ClaimRequest) beginResult {
	own := t.beginAttempt(req)
	switch {
	case own.claim == nil:
		t.failf("the key was not claimed: %s", describeResult(own))
	case own.Attempt < 1:
		t.failf("the record of the claim has attempt number %d", own.Attempt)
	case own.Fingerprint != req.Fingerprint:
		t.failf("the record of the claim has fingerprint %v, want the fingerprint of the request, %v",
			own.Fingerprint, req.Fingerprint)
	case own.Response != nil:
		t.failf("the record of the claim has a response")
	}
	t.checkLease(own, own)
	return own
}

// readHeldRecord calls Begin, which must grant no claim, and returns the record that holds the key.
func (t *trial) readHeldRecord(req idempotency.ClaimRequest) beginResult {
	seen := t.beginAttempt(req)
	if seen.claim != nil {
		t.failf("the key was claimed, although a record holds the key: %s", describeResult(seen))
	}
	return seen
}

// claimNextAttempt claims the next attempt at the operation of own.
func (t *trial) claimNextAttempt(own beginResult, req idempotency.ClaimRequest) beginResult {
	next := t.claimKey(req)
	own.Attempt++
	t.checkAttempt(next, own)
	return next
}

// callerCount is the number of concurrent calls for each key.
const callerCount = 32

// beginConcurrently makes callerCount concurrent calls to Begin for each of the keys. The result with index i belongs
// to the key with index i modulo the number of keys.
func (t *trial) beginConcurrently(req idempotency.ClaimRequest, keys ...idempotency.Key) []beginResult {
	ctx, cancel := context.WithTimeout(t.ctx, waitLimit)
	defer cancel()
	results, errs := make([]beginResult, callerCount*len(keys)), make([]error, callerCount*len(keys))
	start := make(chan struct{})
	var calls sync.WaitGroup
	for i := range results {
		calls.Go(func() {
			<-start
			results[i], errs[i] = t.withKey(keys[i%len(keys)]).callBegin(ctx, req)
		})
	}
	close(start)
	calls.Wait()
	for _, got := range results {
		t.rememberClaim(got)
	}
	for _, err := range errs {
		t.checkSuccess("Begin", err)
	}
	return results
}

// raceForClaims makes concurrent calls to Begin, exactly one of which must be granted the claim of each key, and
// returns the results with the claims.
func (t *trial) raceForClaims(req idempotency.ClaimRequest, keys ...idempotency.Key) []beginResult {
	results := t.beginConcurrently(req, keys...)
	winners, granted := make([]beginResult, len(keys)), make([]int, len(keys))
	for i, got := range results {
		if got.claim != nil {
			winners[i%len(keys)] = got
			granted[i%len(keys)]++
		}
	}
	for i, got := range results {
		if n := granted[i%len(keys)]; n != 1 {
			t.failf("%d of %d concurrent calls were granted the claim, want 1", n, callerCount)
		}
		if got.claim == nil {
			t.checkRunningRecord(got, winners[i%len(keys)])
		}
	}
	return winners
}

// runConcurrently makes n concurrent calls to do, each with a new key. If a call fails, the case fails with its
// violation.
func (t *trial) runConcurrently(n int, do func(t *trial, i int)) {
	all := make([]*trial, n)
	start := make(chan struct{})
	var calls sync.WaitGroup
	for i := range all {
		all[i] = &trial{&session{subject: t.subject, ctx: t.ctx}, newKey()}
		calls.Go(func() {
			defer all[i].cleanUpClaims()
			<-start
			do(all[i], i)
		})
	}
	close(start)
	calls.Wait()
	for _, each := range all {
		if each.violation != nil {
			t.failf("%w", each.violation)
		}
	}
}

// completeClaim completes the claim of own with resp, for a long TTL.
func (t *trial) completeClaim(own beginResult, resp idempotency.Response) {
	t.checkSuccess("Complete", own.claim.Complete(t.ctx, resp, long))
}

// releaseClaim releases the claim of own, for a long TTL.
func (t *trial) releaseClaim(own beginResult) {
	t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{TTL: long}))
}

// extendLease extends the claim of own, and returns own with the new lease.
func (t *trial) extendLease(own beginResult, lease time.Duration) beginResult {
	own.leaseDuration, own.calledAt = lease, time.Now()
	t.checkSuccess("Extend", own.claim.Extend(t.ctx, lease))
	own.returnedAt = time.Now()
	return own
}

// claimUntilLapsed claims the key, and returns when the lease has lapsed.
func (t *trial) claimUntilLapsed() beginResult {
	own := t.claimKey(withDurations(request, short, long))
	t.waitUntil("the lease lapses", func() bool {
		seen := t.readHeldRecord(request)
		if seen.LeaseLeft > 0 {
			return false
		}
		t.checkNotEarly("the lease lapsed", own.calledAt, short, seen)
		return true
	})
	return own
}

// claimAndTakeOver claims the key, takes the claim over when the lease has lapsed, and returns both attempts.
func (t *trial) claimAndTakeOver() (old, successor beginResult) {
	old = t.claimUntilLapsed()
	return old, t.claimNextAttempt(old, withTakeOver(request))
}

// claimUntilExpired claims the key, and returns when the record has expired, without a further call for the key. A
// second key, claimed later with the same TTL, shows when the record has expired.
func (t *trial) claimUntilExpired() beginResult {
	shortLived := withDurations(request, short, short)
	own := t.claimKey(shortLived)
	later := t.withKey(newKey())
	laterClaim := later.claimKey(shortLived)
	t.waitUntil("the record of an unfinished attempt expires", func() bool {
		seen := later.beginAttempt(request)
		if seen.claim == nil {
			return false
		}
		t.checkNotEarly("the record expired", laterClaim.calledAt, short, seen)
		return true
	})
	return own
}

// expiredClaim is a claim whose record has expired.
type expiredClaim struct {
	*trial
	own beginResult
}

// claimAllUntilExpired claims n keys, and returns when all records have expired, without a call for these keys
// meanwhile.
func (t *trial) claimAllUntilExpired(n int) []expiredClaim {
	all := make([]expiredClaim, n)
	for i := range all {
		all[i].trial = t.withKey(newKey())
		all[i].own = all[i].claimKey(withDurations(request, short, short))
	}
	t.withKey(newKey()).claimUntilExpired() // claimed last, so this record is the last to expire
	return all
}

// endWhileExtending calls end, which ends the claim of own, during a call to Extend. For round see runBothAtOnce.
func (t *trial) endWhileExtending(own beginResult, round int, end func() error) (extendErr, endErr error) {
	runBothAtOnce(round, func() { extendErr = own.claim.Extend(t.ctx, long) }, func() { endErr = end() })
	return extendErr, endErr
}

// waitUntil calls hasHappened repeatedly until the result is true. After waitLimit, waitUntil fails, and names the
// event.
func (t *trial) waitUntil(event string, hasHappened func() bool) {
	for start := time.Now(); !hasHappened(); t.waitBriefly() {
		if time.Since(start) > waitLimit {
			t.failf("timeout after %v, waiting until %s", waitLimit, event)
		}
	}
}

// checkUntil calls check repeatedly. The last call starts after end.
func (t *trial) checkUntil(end time.Time, check func()) {
	for isOver := false; !isOver; t.waitBriefly() {
		isOver = time.Now().After(end)
		check()
	}
}

// waitBriefly waits for 5 milliseconds, and fails if the time for the case is over.
func (t *trial) waitBriefly() {
	select {
	case <-time.After(5 * time.Millisecond):
	case <-t.ctx.Done():
		t.failf("the case took longer than %v: %w", caseTimeout, t.ctx.Err())
	}
}
