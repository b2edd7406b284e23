package idempotency

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency/internal/backlog"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// recordAction is what an attempt does to the record at its end.
//
//	action               call of the store           the next request with the key
//	abandon, ReExecute   Release, kept for TTL       runs if the fingerprint is the same
//	abandon, Refuse      Release as abandoned        is refused with outcome-unknown
//	release              Release, kept for TTL       runs if the fingerprint is the same
//	free                 Release, record forgotten   runs a new operation, whatever the fingerprint; as after release
//	                                                 if an earlier attempt may have had effects, or a step may be stored
//	complete             Complete                    gets the stored response
type recordAction int8

const (
	actionAbandon recordAction = iota
	actionRelease
	actionFree
	actionComplete
)

// attemptOutcome is the result of an attempt. [answerJudge.judgeAnswer] chooses the action on the record by the ending,
// and [exchange.executeHandler] chooses the answer to the client. For Runner.Do, judgeWork chooses the action.
type attemptOutcome struct {
	ending         ending   // how the handler ended
	giveUpCause    error    // why the context had ended, for endingGaveUp
	answer         Response // the handler's answer, as Storable gets the answer
	recordAction   recordAction
	storedResponse Response // the response to store, for actionComplete
	status         int      // the status for the Observer; 0 without an answer
	notStoredCause error    // why the answer is not stored
	hadNoEffect    bool     // the handler turned the request away
}

// endReason returns the reason why the answer is not stored, for the record.
func (o *attemptOutcome) endReason() EndReason {
	switch {
	case errors.Is(o.giveUpCause, ErrClaimLost):
		return EndClaimLost
	case o.notStoredCause == errInterrupted:
		return EndPanicked
	case o.notStoredCause == errGaveUp:
		return EndGaveUp
	case o.notStoredCause == errLeftToFramework:
		return EndNoAnswer
	case o.notStoredCause == errTruncated:
		return EndTruncated
	case o.notStoredCause == errNotStorable:
		return EndNotStorable
	case o.notStoredCause == errNotKept:
		return EndNotKept
	default:
		return EndFailed
	}
}

// claimState is what this process still has to do for a claim.
type claimState int8

const (
	claimOpen       claimState = iota // the store was not asked to end the claim, or panicked when asked
	claimUnrecorded                   // the store has not confirmed the response yet
	claimSettled                      // nothing, except the one call of Release that may follow endClaim
)

// settlement ends the claim of an admission by the outcome of the attempt.
type settlement struct {
	admission
	*attempt   // nil if the handler has never run
	outcome    attemptOutcome
	claimState claimState
}

// reportUnprotected reports an attempt without a claim.
func (s *settlement) reportUnprotected(ctx context.Context) {
	s.event.Status = s.outcome.status
	s.reportEvent(ctx)
}

// settleClaim carries out the action of the outcome and reports the result. If overflowSettler has settled the claim
// before, settleClaim only reports. If the store has not confirmed the response of overflowSettler, settleClaim
// completes the record again.
func (s *settlement) settleClaim(ctx context.Context) (refusal error) {
	defer s.endSettlement(ctx)
	if s.claimState == claimSettled {
		return nil
	}
	s.claimState = claimOpen // so that endSettlement abandons the claim if the store panics now
	s.event.Status, s.event.Err = s.outcome.status, s.outcome.notStoredCause
	s.event.hadNoEffect = s.outcome.hadNoEffect
	switch s.outcome.recordAction {
	case actionComplete:
		return s.completeRecord()
	case actionFree:
		s.event.hadNoEffect = !s.mayHaveStoredSteps()
		return s.freeKey()
	case actionRelease:
		return s.releaseClaim(Release{TTL: s.runner.opts.TTL, Reason: s.outcome.endReason()})
	default:
		return s.abandonClaim()
	}
}

// errStorePanicked is the reason to abandon an attempt whose store panicked.
var errStorePanicked = errors.New("idempotency: the store panicked while the attempt was settled")

// endSettlement reports the end of the attempt. A response that the store has not confirmed goes to the background. If
// the store has panicked, endSettlement abandons the claim, because the outcome is unknown.
func (s *settlement) endSettlement(ctx context.Context) {
	if s.claimState == claimOpen {
		s.event.Err = cmp.Or(s.event.Err, errStorePanicked)
		_ = s.abandonClaim()
	}
	s.runner.wakeWaiters(s.key)
	s.reportEvent(ctx)
	if s.claimState == claimUnrecorded {
		s.completeInBackground()
	}
}

// endClaim marks the claim as settled and stops the renewals of the lease. Afterwards, the only call may be Release.
func (s *settlement) endClaim() {
	s.claimState = claimSettled
	if s.attempt != nil {
		s.lease.stopRenewals()
	}
}

// completeRecord stores the response. If completeRecord returns nil, the answer may be sent, even if the store has
// failed: the answer is true, because the effects exist. The claim is then unrecorded, and Complete is repeated in the
// background. After [ErrRecordInvalid], which a repetition cannot mend, nothing is repeated. A refusal means that the claim
// is lost.
func (s *settlement) completeRecord() (refusal error) {
	if !s.outcome.storedResponse.Omitted {
		s.outcome.storedResponse.Note = s.event.Note
	}
	began := s.runner.eventReporter.currentTime()
	err := s.persistResponse(s.runner.opts.StoreTimeout)
	s.event.Completion += s.runner.eventReporter.elapsedSince(began)
	s.noteCompletion(err)
	if s.event.Outcome == OutcomeClaimLost {
		return refusalFor(err)
	}
	return nil
}

// isFinal reports whether a repetition of Complete is useless after err, the result of Complete.
func isFinal(err error) bool {
	return err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrRecordInvalid)
}

// noteCompletion sets claimState and event by err, the result of Complete.
func (s *settlement) noteCompletion(err error) {
	if isFinal(err) {
		s.endClaim()
	} else {
		s.claimState = claimUnrecorded
	}
	if err == nil && s.lease.wasRestored.Load() { // an earlier renewal or checkpoint has restored the record
		err = ErrRestored
	}
	s.event.Err = err
	switch {
	case err == nil:
		s.event.Outcome = OutcomeExecuted
		s.event.setStored(&s.outcome.storedResponse)
	case errors.Is(err, ErrRestored):
		s.event.Outcome = OutcomeRestored
		s.event.setStored(&s.outcome.storedResponse)
	case errors.Is(err, ErrClaimLost):
		s.event.Outcome = OutcomeClaimLost
	default:
		s.event.Outcome = OutcomeUnrecorded
	}
}

// The pause between two calls of a failing store begins with firstRetryPause, and doubles up to longestRetryPause.
const (
	firstRetryPause   = 20 * time.Millisecond
	longestRetryPause = time.Second
)

// persistResponse repeats Complete until the result is final or limit has passed. In the background, the end of a
// Shutdown also ends the repetitions.
func (s *settlement) persistResponse(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for pause := firstRetryPause; ; pause = min(2*pause, longestRetryPause) {
		err := s.sendCompletion(time.Until(deadline))
		if isFinal(err) || time.Until(deadline) < pause || !polling.Sleep(s.detachedContext(), pause, nil) {
			return err
		}
	}
}

// sendCompletion calls Complete once.
func (s *settlement) sendCompletion(limit time.Duration) error {
	ctx, cancel := s.storeContext(limit)
	defer cancel()
	return s.claim.Complete(ctx, s.outcome.storedResponse, s.runner.opts.TTL)
}

// completeInBackground goes on storing the response, and renews the lease meanwhile. The repetitions end when the
// response would have expired, or at the end of a Shutdown. If the backlog has no room, the lease is left to lapse and
// the response is lost.
func (s *settlement) completeInBackground() {
	background, eventCtx := s.newBackgroundSettlement(), withoutReport(s.detachedContext())
	response := s.outcome.storedResponse.Clone() // the buffer of the body goes to the next request
	background.outcome.storedResponse = response
	size := len(response.Header) + len(response.Trailer) + len(response.Body)
	hasRoom := s.runner.settlementBacklog.Run(backlog.MostAnswers, size, func() {
		defer background.lease.stopRenewals()
		began := background.runner.eventReporter.currentTime()
		background.noteCompletion(background.persistResponse(background.runner.opts.TTL))
		background.event.Completion += background.runner.eventReporter.elapsedSince(began)
		switch background.event.Outcome {
		case OutcomeUnrecorded: // reported before
			return
		case OutcomeExecuted:
			background.event.Outcome = OutcomeRecorded
		}
		background.runner.wakeWaiters(background.key)
		background.reportOutsideRequest(eventCtx)
	})
	if !hasRoom {
		s.endClaim()
	}
}

// releaseInBackground releases a claim whose reply was lost. The store may have granted the claim, and a granted claim
// would block the key for a lease or, with Refuse, end with an unknown outcome.
func (s *settlement) releaseInBackground() {
	background, began, limit := s.newBackgroundSettlement(), time.Now(), s.runner.opts.Lease
	if s.runner.opts.Abandoned == Refuse { // the claim would block the key until the record expires
		limit = s.runner.opts.TTL
	}
	s.runner.settlementBacklog.Run(backlog.MostReleases, 0, func() {
		var deniedAt time.Time // when the store first denied the claim
		for pause := firstRetryPause; time.Since(began) < limit; pause = min(2*pause, longestRetryPause) {
			err := background.sendRelease(Release{TTL: background.releaseTTL()})
			isDenied := errors.Is(err, ErrClaimLost)
			if isDenied && deniedAt.IsZero() {
				deniedAt = time.Now()
			}
			// The release may have overtaken the request for the claim, so a first denial proves nothing.
			wasNeverGranted := isDenied && time.Since(deniedAt) > background.runner.opts.StoreTimeout
			if err == nil || wasNeverGranted || !polling.Sleep(background.ctx, pause, nil) {
				break
			}
		}
		background.runner.wakeWaiters(background.key)
	})
}

// newBackgroundSettlement returns a settlement of the same claim that outlives the request. The context ends at the end
// of a Shutdown.
func (s *settlement) newBackgroundSettlement() *settlement {
	background := &settlement{admission: s.admission, attempt: s.attempt}
	background.ctx = s.runner.settlementBacklog.Context
	background.detachedCtx = background.ctx
	return background
}

// mayHaveStoredSteps reports whether this attempt may have stored a step. A stored step is an effect. The caller has
// called endSteps before, if the handler has run.
func (s *settlement) mayHaveStoredSteps() bool {
	return s.attempt != nil && s.steps.Load().MayHaveStored()
}

// freeKey ends the claim of an attempt whose handler says that nothing has happened. The key becomes unused again, unless
// an earlier attempt may have had effects or this attempt may have stored a step. In these cases the record stays, and only
// the same request may run again.
func (s *settlement) freeKey() (refusal error) {
	if s.record.Attempt == 1 && !s.mayHaveStoredSteps() {
		return s.releaseClaim(Release{})
	}
	return s.releaseClaim(Release{TTL: s.releaseTTL(), Reason: s.outcome.endReason()})
}

// releaseTTL returns how long to keep the record of an attempt without effects except steps perhaps:
//
//   - TTL if this attempt may have stored steps;
//   - TTL if Remaining is unknown, as after a lost reply (Attempt 0);
//   - Remaining otherwise, because earlier attempts may have had effects, but at least two leases or TTL, whichever is
//     less. A request for this claim that the client has sent twice may still arrive, and would claim a key without a
//     record.
func (s *settlement) releaseTTL() time.Duration {
	opts := &s.runner.opts
	if s.mayHaveStoredSteps() || s.record.Remaining == 0 {
		return opts.TTL
	}
	return max(s.record.Remaining, min(2*opts.Lease, opts.TTL))
}

// releaseClaim ends the claim without a response. A refusal means that the claim is lost. If the store fails, the lease
// lapses, and the attempt counts as abandoned then, although the outcome may be OutcomeReleased.
func (s *settlement) releaseClaim(end Release) (refusal error) {
	s.endClaim()
	began := s.runner.eventReporter.currentTime()
	err := s.sendRelease(end)
	s.event.Completion += s.runner.eventReporter.elapsedSince(began)
	s.event.Outcome = OutcomeReleased
	if end.Abandoned {
		s.event.Outcome = OutcomeAbandoned
	}
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
func (s *settlement) sendRelease(end Release) error {
	ctx, cancel := s.storeContext(s.runner.opts.StoreTimeout)
	defer cancel()
	return s.claim.Release(ctx, end)
}

// abandonClaim ends the claim of an attempt with an unknown outcome. With [Refuse], the lease ends at once, so the next
// request need not wait for the lease to learn that the outcome is unknown.
func (s *settlement) abandonClaim() (refusal error) {
	return s.releaseClaim(Release{
		TTL: s.runner.opts.TTL, Abandoned: s.runner.opts.Abandoned == Refuse, Reason: s.outcome.endReason(),
	})
}

// reportOutsideRequest reports the event from the background, where no server recovers from a panic of the Observer.
func (s *settlement) reportOutsideRequest(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			s.runner.eventReporter.logPanic(ctx, p)
		}
	}()
	s.reportEvent(ctx)
}
