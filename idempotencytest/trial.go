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
	short    = 80 * time.Millisecond // ends while a check waits for it
	long     = 10 * time.Minute      // outlives every check
	timeout  = 2 * time.Minute       // for a check
	patience = 30 * time.Second      // for what must happen after short, or while claims are held
	grace    = 5 * time.Second       // for settling the claims of a check
	rounds   = 32                    // of two steps at once, for them to meet in every order

	// resolution is by how much the clocks of the store and of the suite may round.
	resolution = 10 * time.Millisecond
)

// Two requests, asked with attempts that outlive the check.
var (
	request = idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("request")), Lease: long, TTL: long}
	another = idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("another")), Lease: long, TTL: long}
)

func takingOver(a idempotency.ClaimRequest) idempotency.ClaimRequest {
	a.TakeOver = true
	return a
}

func lasting(a idempotency.ClaimRequest, lease, ttl time.Duration) idempotency.ClaimRequest {
	a.Lease, a.TTL = lease, ttl
	return a
}

func freshKey() idempotency.Key {
	return idempotency.Key{User: "user " + uuid.NewString(), Endpoint: "POST /payments", ID: uuid.NewString()}
}

// session is a check under way.
type session struct {
	subject
	ctx    context.Context
	claims []idempotency.Claim // all that were granted
	err    error               // what broke the rule
}

// trial is what a check works with: the store under test and a fresh key. Its methods end the check when the store
// does not do as they say.
type trial struct {
	*session
	key idempotency.Key
}

func (t *trial) at(key idempotency.Key) *trial { return &trial{t.session, key} }

// failf ends the check, which runs in a goroutine of its own, as FailNow of package testing ends a test.
func (t *trial) failf(format string, args ...any) {
	t.err = fmt.Errorf(format, args...)
	runtime.Goexit()
}

// settle gives back what the store holds for claims that are still open.
func (t *trial) settle() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), grace)
	defer cancel()
	for _, claim := range t.claims {
		_ = claim.Release(ctx, long) // of most the check itself has seen the end
	}
}

// answer is what Begin returned, to which request and when.
type answer struct {
	idempotency.Record
	claim           idempotency.Claim
	asker           idempotency.Fingerprint
	lease           time.Duration
	asked, answered time.Time
}

func (t *trial) ask(ctx context.Context, a idempotency.ClaimRequest) (answer, error) {
	asked := time.Now()
	record, claim, err := t.store.Begin(ctx, t.key, a)
	if err != nil && claim != nil {
		t.failf("Begin returned a claim together with the error %v", err)
	}
	if inDoubt := t.claimInDoubt(err); inDoubt != nil {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second) // a transaction that the check has open may have the record locked
		defer cancel()
		_ = inDoubt.Release(ctx, long)
	}
	return answer{record, claim, a.Fingerprint, a.Lease, asked, time.Now()}, err
}

// claimInDoubt returns the claim of a ClaimInDoubtError, or nil for another error.
func (t *trial) claimInDoubt(err error) idempotency.Claim {
	inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err)
	if !ok {
		return nil
	}
	if inDoubt.Claim == nil {
		t.failf("Begin returned a ClaimInDoubtError without a claim: %v", err)
	}
	return inDoubt.Claim
}

func (t *trial) begin(a idempotency.ClaimRequest) answer {
	got, err := t.ask(t.ctx, a)
	t.succeeds("Begin", err)
	t.keep(got)
	return got
}

// keep notes a claim, to be given back at the end of the check.
func (t *trial) keep(got answer) {
	if got.claim != nil {
		t.claims = append(t.claims, got.claim)
	}
}

// claim begins an attempt that must be granted.
func (t *trial) claim(a idempotency.ClaimRequest) answer {
	own := t.begin(a)
	switch {
	case own.claim == nil:
		t.failf("the key was not claimed: %s", show(own))
	case own.Attempt < 1:
		t.failf("the record of the claim has attempt number %d", own.Attempt)
	case own.Fingerprint != a.Fingerprint:
		t.failf("the record of the claim has fingerprint %v, not that of its request, %v", own.Fingerprint, a.Fingerprint)
	case own.Response != nil:
		t.failf("the record of the claim has a response")
	}
	t.leaseRuns(own, own)
	return own
}

// refused begins an attempt that must not be granted.
func (t *trial) refused(a idempotency.ClaimRequest) answer {
	seen := t.begin(a)
	if seen.claim != nil {
		t.failf("the key was claimed: %s", show(seen))
	}
	return seen
}

// next claims the next attempt at the operation of own.
func (t *trial) next(own answer, a idempotency.ClaimRequest) answer {
	next := t.claim(a)
	own.Attempt++
	t.describes(next, own)
	return next
}

// callers is how many ask for a key at once.
const callers = 32

// crowd lets callers begin at once on each of the keys. The answer at i is for the key at i modulo the number of keys.
func (t *trial) crowd(a idempotency.ClaimRequest, keys ...idempotency.Key) []answer {
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	answers, errs := make([]answer, callers*len(keys)), make([]error, callers*len(keys))
	start := make(chan struct{})
	var crowd sync.WaitGroup
	for i := range answers {
		crowd.Go(func() {
			<-start
			answers[i], errs[i] = t.at(keys[i%len(keys)]).ask(ctx, a)
		})
	}
	close(start)
	crowd.Wait()
	for _, got := range answers {
		t.keep(got)
	}
	for _, err := range errs {
		t.succeeds("Begin", err)
	}
	return answers
}

// race lets a crowd begin, one caller of which must be granted the claim to each of the keys.
func (t *trial) race(a idempotency.ClaimRequest, keys ...idempotency.Key) []answer {
	answers := t.crowd(a, keys...)
	winners, granted := make([]answer, len(keys)), make([]int, len(keys))
	for i, got := range answers {
		if got.claim != nil {
			winners[i%len(keys)] = got
			granted[i%len(keys)]++
		}
	}
	for i, got := range answers {
		if n := granted[i%len(keys)]; n != 1 {
			t.failf("%d of %d concurrent calls were granted the claim", n, callers)
		}
		if got.claim == nil {
			t.runsAs(got, winners[i%len(keys)])
		}
	}
	return winners
}

// together runs do n times at once, each with a fresh key. If one of them fails, it ends the check.
func (t *trial) together(n int, do func(t *trial, i int)) {
	all := make([]*trial, n)
	start := make(chan struct{})
	var crowd sync.WaitGroup
	for i := range all {
		all[i] = &trial{&session{subject: t.subject, ctx: t.ctx}, freshKey()}
		crowd.Go(func() {
			defer all[i].settle()
			<-start
			do(all[i], i)
		})
	}
	close(start)
	crowd.Wait()
	for _, each := range all {
		if each.err != nil {
			t.failf("%w", each.err)
		}
	}
}

func (t *trial) complete(own answer, resp idempotency.Response) {
	t.succeeds("Complete", own.claim.Complete(t.ctx, resp, long))
}

func (t *trial) release(own answer) {
	t.succeeds("Release", own.claim.Release(t.ctx, long))
}

// extend returns own with its new lease.
func (t *trial) extend(own answer, lease time.Duration) answer {
	own.lease, own.asked = lease, time.Now()
	t.succeeds("Extend", own.claim.Extend(t.ctx, lease))
	own.answered = time.Now()
	return own
}

// lapsed claims the key, and returns when the lease has run out.
func (t *trial) lapsed() answer {
	own := t.claim(lasting(request, short, long))
	t.until("the lease lapses", func() bool {
		seen := t.refused(request)
		if seen.LeaseLeft > 0 {
			return false
		}
		t.notEarly("the lease lapsed", own.asked, short, seen)
		return true
	})
	return own
}

// overtaken returns an attempt and the one that took its claim over.
func (t *trial) overtaken() (old, successor answer) {
	old = t.lapsed()
	return old, t.next(old, takingOver(request))
}

// forgotten claims the key, and returns when the record has expired although nobody has asked for it since.
func (t *trial) forgotten() answer {
	fleeting := lasting(request, short, short)
	own := t.claim(fleeting)
	later := t.at(freshKey()) // what was claimed later expires later
	canary := later.claim(fleeting)
	t.until("the record of an unfinished attempt expires", func() bool {
		seen := later.begin(request)
		if seen.claim == nil {
			return false
		}
		t.notEarly("the record expired", canary.asked, short, seen)
		return true
	})
	return own
}

// forgottenClaim is a claim whose record has expired.
type forgottenClaim struct {
	*trial
	own answer
}

// allForgotten claims n keys, and returns when their records have expired although nobody has asked for them since.
func (t *trial) allForgotten(n int) []forgottenClaim {
	all := make([]forgottenClaim, n)
	for i := range all {
		all[i].trial = t.at(freshKey())
		all[i].own = all[i].claim(lasting(request, short, short))
	}
	t.at(freshKey()).forgotten() // was claimed last
	return all
}

// whileExtending ends a claim while it is extended. The two change places from round to round, since that of this
// goroutine mostly begins first.
func (t *trial) whileExtending(own answer, round int, end func() error) (extended, ended error) {
	steps := [2]func(){
		func() { extended = own.claim.Extend(t.ctx, long) },
		func() { ended = end() },
	}
	var other sync.WaitGroup
	other.Go(steps[round%2])
	steps[1-round%2]()
	other.Wait()
	return extended, ended
}

// until waits for an event.
func (t *trial) until(event string, happened func() bool) {
	for start := time.Now(); !happened(); t.pause() {
		if time.Since(start) > patience {
			t.failf("%s: not within %v", event, patience)
		}
	}
}

// throughout repeats check until it has passed with a start after end.
func (t *trial) throughout(end time.Time, check func()) {
	for over := false; !over; t.pause() {
		over = time.Now().After(end)
		check()
	}
}

func (t *trial) pause() {
	select {
	case <-time.After(5 * time.Millisecond):
	case <-t.ctx.Done():
		t.failf("the check has run out of time: %w", t.ctx.Err())
	}
}
