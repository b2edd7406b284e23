package idempotency

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency/internal/backlog"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// fate is what becomes of the record of an operation when an attempt at it ends.
//
//	fate      what settle asks the store    what the next attempt finds
//	unknown   Release, or with Refuse       the same as after failed; with Refuse, a lapsed
//	          nothing: the lease lapses     lease: outcome-unknown
//	failed    Release, kept for TTL         it may run, if it is the same request
//	freed     Release, not kept             a new operation, whatever the request; the same as after
//	                                        failed if an earlier attempt may have done something
//	kept      Complete                      the response
type fate int8

const (
	fateUnknown fate = iota
	fateFailed
	fateFreed
	fateKept
)

// attemptOutcome is what an attempt has come to. The fate of the record and the answer to the client follow from it, see
// [answerJudge.judgeAnswer] and [exchange.execute].
type attemptOutcome struct {
	ending      ending   // of the handler
	endCause    error    // why the context of a silent handler had ended
	answer      Response // of the handler, as Storable sees it
	fate        fate
	kept        Response // what is stored with fateKept
	status      int      // for the Observer; 0: there is no answer
	cause       error    // why the answer is not stored
	isUntouched bool     // the handler has done nothing
}

// claimState is how far the store has come with the claim of an attempt.
type claimState int8

const (
	claimOpen       claimState = iota // nothing was asked of the store, or the store has panicked
	claimUnrecorded                   // the store has not taken the response yet
	claimSettled                      // the claim has ended
)

// settlement ends the claim of an admission as the outcome of the attempt asks.
type settlement struct {
	admission
	*attempt // nil: the handler has not run
	outcome  attemptOutcome
	state    claimState
}

// reportUnprotected reports an attempt without a claim.
func (s *settlement) reportUnprotected(ctx context.Context) {
	s.event.Status = s.outcome.status
	s.report(ctx)
}

// settle carries the outcome out, and reports what became of the claim. An overflow may have settled the claim before.
func (s *settlement) settle(ctx context.Context) (refusal error) {
	defer s.finish(ctx)
	if s.state == claimSettled {
		return nil
	}
	s.state = claimOpen
	s.event.Status, s.event.Err = s.outcome.status, s.outcome.cause
	s.event.untouched = s.outcome.isUntouched
	switch s.outcome.fate {
	case fateKept:
		return s.completeRecord()
	case fateFreed:
		s.event.untouched = !s.hasSteps()
		return s.free()
	case fateFailed:
		return s.releaseClaim(s.runner.opts.TTL)
	default:
		return s.abandonClaim()
	}
}

// finish reports the end of the attempt, and goes on in the background if the store has not taken the response. If the store has
// panicked, nobody knows the outcome.
func (s *settlement) finish(ctx context.Context) {
	if s.state == claimOpen {
		s.event.Err = cmp.Or(s.event.Err, errInterrupted)
		_ = s.abandonClaim()
	}
	s.runner.wakeWaiters(s.key)
	s.report(ctx)
	if s.state == claimUnrecorded {
		s.completeInBackground()
	}
}

// endClaim ends the renewals of the lease. Nothing more is asked of the store but the call that ends the claim.
func (s *settlement) endClaim() {
	s.state = claimSettled
	if s.attempt != nil {
		s.lease.stop()
	}
}

// completeRecord stores the response. Without a refusal, the answer may be sent, also if the store failed: the effects exist, so the
// answer is true. The claim is unrecorded then.
func (s *settlement) completeRecord() (refusal error) {
	if !s.outcome.kept.Omitted {
		s.outcome.kept.Note = s.event.Note
	}
	began := s.runner.events.now()
	err := s.persistResponse(s.runner.opts.StoreTimeout)
	s.event.Completion += s.runner.events.since(began)
	s.noteCompletion(err)
	if s.event.Outcome == OutcomeClaimLost {
		return refusalFor(err)
	}
	return nil
}

// isFinal reports whether Complete has said what became of the record.
func isFinal(err error) bool {
	return err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrRecordInvalid)
}

// noteCompletion sets state and event to what Complete has said.
func (s *settlement) noteCompletion(err error) {
	if isFinal(err) {
		s.endClaim()
	} else {
		s.state = claimUnrecorded
	}
	if err == nil && s.lease.restored.Load() {
		err = ErrRestored
	}
	s.event.Err = err
	switch {
	case err == nil:
		s.event.Outcome = OutcomeExecuted
		s.event.keeps(&s.outcome.kept)
	case errors.Is(err, ErrRestored):
		s.event.Outcome = OutcomeRestored
		s.event.keeps(&s.outcome.kept)
	case errors.Is(err, ErrClaimLost):
		s.event.Outcome = OutcomeClaimLost
	default:
		s.event.Outcome = OutcomeUnrecorded
	}
}

// The pauses between two calls of a store that does not work.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// persistResponse calls Complete, which may be repeated, until the result is final or the time is up.
func (s *settlement) persistResponse(within time.Duration) error {
	until := time.Now().Add(within)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := s.sendCompletion(time.Until(until))
		if isFinal(err) || time.Until(until) < pause || !polling.Sleep(s.detachedContext(), pause, nil) {
			return err
		}
	}
}

// sendCompletion calls Complete once.
func (s *settlement) sendCompletion(limit time.Duration) error {
	ctx, cancel := s.storeContext(limit)
	defer cancel()
	return s.claim.Complete(ctx, s.outcome.kept, s.runner.opts.TTL)
}

// completeInBackground goes on to store the response, and to renew the lease meanwhile. It gives up when the response would have
// expired, or at the end of a Shutdown.
func (s *settlement) completeInBackground() {
	later, told := s.inBackground(), s.detachedContext()
	kept := s.outcome.kept.Clone() // because the buffer of the body serves the next request
	later.outcome.kept = kept
	size := len(kept.Header) + len(kept.Trailer) + len(kept.Body)
	ok := s.runner.backlog.Run(backlog.MostAnswers, size, func() {
		defer later.lease.stop()
		began := later.runner.events.now()
		later.noteCompletion(later.persistResponse(later.runner.opts.TTL))
		later.event.Completion += later.runner.events.since(began)
		switch later.event.Outcome {
		case OutcomeUnrecorded: // was reported before
			return
		case OutcomeExecuted:
			later.event.Outcome = OutcomeRecorded
		}
		later.runner.wakeWaiters(later.key)
		later.reportAlone(told)
	})
	if !ok {
		s.endClaim()
	}
}

// releaseInBackground releases a claim that the store may have granted although its reply was lost. Otherwise the claim would
// block the key for a lease, or with Refuse leave an unknown outcome.
func (s *settlement) releaseInBackground() {
	later, began, limit := s.inBackground(), time.Now(), s.runner.opts.Lease
	if s.runner.opts.Abandoned == Refuse {
		limit = s.runner.opts.TTL
	}
	s.runner.backlog.Run(backlog.MostReleases, 0, func() {
		var deniedAt time.Time // when the store first said that it does not know the claim
		for pause := firstRetry; time.Since(began) < limit; pause = min(2*pause, lastRetry) {
			err := later.sendRelease(later.releaseTTL())
			isDenied := errors.Is(err, ErrClaimLost)
			if isDenied && deniedAt.IsZero() {
				deniedAt = time.Now()
			}
			// The request for the claim may still be on its way, behind the request for its release.
			wasNeverGranted := isDenied && time.Since(deniedAt) > later.runner.opts.StoreTimeout
			if err == nil || wasNeverGranted || !polling.Sleep(later.ctx, pause, nil) {
				break
			}
		}
		later.runner.wakeWaiters(later.key)
	})
}

// inBackground returns a settlement that goes on with the claim after the request, until the end of a Shutdown.
func (s *settlement) inBackground() *settlement {
	later := &settlement{admission: s.admission, attempt: s.attempt}
	later.ctx = s.runner.backlog.Context
	later.detachedCtx = later.ctx
	return later
}

// hasSteps reports whether this attempt may have stored a step, which is an effect.
func (s *settlement) hasSteps() bool { return s.attempt != nil && s.steps.Load().Kept() }

// free ends the claim of an attempt that has done nothing. The key is as if it had never been used, unless an earlier attempt may
// have done something: then the record stays, and only the same request may be tried again.
func (s *settlement) free() (refusal error) {
	if s.record.Attempt == 1 && !s.hasSteps() {
		return s.releaseClaim(0)
	}
	return s.releaseClaim(s.releaseTTL())
}

// releaseTTL returns how long to keep the record of an attempt that has done nothing, except steps perhaps: for TTL if there may be
// steps, or if Remaining is not known, as after a lost reply (Attempt 0). Otherwise the record is kept for Remaining, because earlier
// attempts may have had effects, but for two leases at least.
func (s *settlement) releaseTTL() time.Duration {
	opts := &s.runner.opts
	if s.hasSteps() || s.record.Remaining == 0 {
		return opts.TTL
	}
	return max(s.record.Remaining, min(2*opts.Lease, opts.TTL))
}

// releaseClaim ends the claim without a response, so that the operation may be tried again, and keeps the record for ttl. A ttl of
// zero frees the key. The result is a refusal if another attempt has taken over. If the store fails, the lease lapses by itself.
func (s *settlement) releaseClaim(ttl time.Duration) (refusal error) {
	s.endClaim()
	began := s.runner.events.now()
	err := s.sendRelease(ttl)
	s.event.Completion += s.runner.events.since(began)
	s.event.Outcome = OutcomeReleased
	if err != nil {
		s.event.Err = errors.Join(err, s.event.Err)
	}
	if errors.Is(err, ErrClaimLost) {
		s.event.Outcome = OutcomeClaimLost
		return refusalFor(s.event.Err)
	}
	return nil
}

// sendRelease calls Release once.
func (s *settlement) sendRelease(ttl time.Duration) error {
	ctx, cancel := s.storeContext(s.runner.opts.StoreTimeout)
	defer cancel()
	return s.claim.Release(ctx, ttl)
}

// abandonClaim ends the claim of an attempt of which nobody can say how far it came. With Refuse, the lease is left to lapse, as
// after a crash.
func (s *settlement) abandonClaim() (refusal error) {
	if s.runner.opts.Abandoned == ReExecute {
		return s.releaseClaim(s.runner.opts.TTL)
	}
	s.endClaim()
	s.event.Outcome = OutcomeAbandoned
	return nil
}

// reportAlone is report outside of a request, where no server recovers from a panic of the Observer.
func (s *settlement) reportAlone(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			s.runner.events.panicked(ctx, p)
		}
	}()
	s.report(ctx)
}
