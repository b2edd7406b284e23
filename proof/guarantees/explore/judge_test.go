package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// checkPromise records a broken promise in brokenPromise, unless an earlier one is recorded.
func (w *world) checkPromise(holds bool, format string, args ...any) {
	if !holds && w.brokenPromise == nil {
		w.brokenPromise = fmt.Errorf(format, args...)
	}
}

// enterHandler is called when the handler begins. enterHandler checks that no other attempt forbids the handler to run.
func (r *request) enterHandler(ctx context.Context) {
	op, _ := idempotency.FromContext(ctx)
	w, k := r.world, r.key
	w.mu.Lock()
	defer w.mu.Unlock()
	r.hasEntered, r.handlerCtx = true, ctx
	w.checkPromise(op.Attempt == r.attemptNumber, "%s is told attempt %d, and is %d", r.name, op.Attempt, r.attemptNumber)
	w.checkPromise(k.lastOperation.Attempt == 0 || k.lastOperation.ID == op.ID, "the operation of %s is another one", r.name)
	if l := r.ownLease(); w.onlyJumpEnded(l) {
		l.wasInterrupted = true
		if r.claimToken != k.record.token && !w.Refuses {
			return // the handler runs beside its successor, or after its successor
		}
	}
	w.checkPromise(!k.hasAnswer, "the handler of %s runs although an answer is stored", r.name)
	w.checkPromise(r.countObstacles(r.claimToken) == 0, "the handler of %s runs beside the claim of another attempt", r.name)
	w.checkPromise(op.Attempt > k.lastOperation.Attempt, "attempt %d of %s after %d", op.Attempt, r.name, k.lastOperation.Attempt)
	k.lastOperation = op
}

// onlyJumpEnded reports whether a lease has ended only because the store's clock jumped. The owner cannot know, because the
// lease still runs by the clock of the owner.
func (w *world) onlyJumpEnded(l *grantedLease) bool {
	return l.expiresAt <= w.storeTime() && l.expiresAt-l.clockAhead > time.Since(w.startTime)
}

// leaveHandler is called when the handler returns, panics or exits.
func (r *request) leaveHandler() {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.handlerCtx = nil
}

// countEffect counts the effect of the handler, and checks that the handler may still act.
func (r *request) countEffect() error {
	again := r.key.hasStepResult && r.key.record.isHeldBy(r.claimToken)
	r.world.checkPromise(!again, "%s does a step again whose result is stored", r.name)
	r.effectCount++
	r.ownLease().effectCount++
	r.world.checkPromise(r.handlerCtx.Err() != nil || r.claimToken == r.key.record.token || r.world.onlyJumpEnded(r.ownLease()),
		"%s acts although its claim is lost, and was not told", r.name)
	return nil
}

// countObstacles returns how many claims other than the claim with token forbid a handler to run.
func (r *request) countObstacles(token int) (n int) {
	for i, l := range r.key.grantedLeases {
		if i+1 != token && l.isHeld && (l.expiresAt > r.world.storeTime() || r.world.Refuses) {
			n++
		}
	}
	return n
}

// checkLeases marks leases that have lapsed, and checks what the handlers of their owners were told.
func (w *world) checkLeases() {
	now := w.storeTime()
	for _, r := range w.requests {
		if !r.hasEntered || r.claimToken == 0 {
			continue
		}
		l := r.ownLease()
		lapsed := l.isHeld && l.expiresAt <= now
		l.wasInterrupted = l.wasInterrupted || lapsed && !r.key.hasAnswer
		l.endedByJump = l.endedByJump || lapsed && w.onlyJumpEnded(l)
		if r.handlerCtx == nil || r.process.hasCrashed {
			continue
		}
		told := r.handlerCtx.Err() != nil
		w.checkPromise(told || !lapsed || w.onlyJumpEnded(l), "the lease of %s lapses, and its handler has not been told", r.name)
		w.checkPromise(!told || r.wasHarmed || l.endedByJump, "the handler of %s is told that its claim is lost, for no reason", r.name)
	}
}

// recordOutcome is the Observer of the process. The context of an outcome in the background has no request, so recordOutcome
// finds the request by key and attempt.
func (p *process) recordOutcome(ctx context.Context, e idempotency.Event) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	r := requestIn(ctx)
	for _, other := range p.requests {
		if r == nil && other.key.name == e.Key.ID && other.attemptNumber == e.Attempt {
			r = other
		}
	}
	if r == nil {
		w.checkPromise(false, "%s is reported of nobody", e.Outcome)
		return
	}
	r.outcomes = append(r.outcomes, e.Outcome)
	later := len(r.outcomes) == 2 && r.outcomes[0] == idempotency.OutcomeUnrecorded
	w.checkPromise(len(r.outcomes) == 1 || later, "%s reports %q", r.name, r.outcomes)
	r.noteFinalAnswer()
}

// recordAnswer is called when the client has received an answer or an error.
func (r *request) recordAnswer(answer string, err error) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.refusalErr = err
	if err == nil {
		r.answer = answer
		r.noteFinalAnswer()
	}
}

// noteFinalAnswer adds the answer of the client to finalAnswers once the store has the answer, because every later answer must be
// the same.
func (r *request) noteFinalAnswer() {
	if r.answer == "" || len(r.outcomes) == 0 {
		return
	}
	switch r.outcomes[len(r.outcomes)-1] {
	case idempotency.OutcomeUnrecorded, idempotency.OutcomeClaimLost:
	default:
		r.key.finalAnswers = append(r.key.finalAnswers, r.answer)
	}
}

// judgeExecution checks the promises for an execution that has ended, and for later requests.
func (w *world) judgeExecution() {
	for _, k := range w.keys {
		w.judgeEffects(k)
		w.judgeLaterRequests(k)
		for _, answer := range k.finalAnswers {
			w.checkPromise(answer == k.finalAnswers[0], "different answers: %q", k.finalAnswers)
			w.checkPromise(answer[1:2] == k.name, "%s is answered with %s", k.name, answer)
		}
	}
	for _, p := range w.processes {
		w.checkPromise(p.hasCrashed || p.hasStopped, "process %s never ends", p.name)
	}
	for _, r := range w.requests {
		w.judgeRequest(r)
	}
}

// judgeEffects allows one effect for each key. With ReExecute, each interrupted attempt may add an effect.
func (w *world) judgeEffects(k *key) {
	w.checkPromise(k.rowCount <= 1, "there are %d rows of %s", k.rowCount, k.name)
	effects, last := 0, 0
	for _, l := range k.grantedLeases {
		effects += l.effectCount
		if !l.wasInterrupted {
			last += l.effectCount
		}
	}
	w.checkPromise(last <= 1, "%d effects of %s, of attempts that were not interrupted", last, k.name)
	w.checkPromise(effects <= 1 || !w.Refuses, "%d effects of %s", effects, k.name)
}

func (w *world) judgeRequest(r *request) {
	if r.process.hasCrashed {
		return
	}
	w.checkPromise(r.hasEnded, "%s is never answered", r.name)
	w.checkPromise(len(r.outcomes) > 0, "%s reports nothing", r.name)
	w.checkPromise(len(r.outcomes) != 1 || r.outcomes[0] != idempotency.OutcomeUnrecorded, "the answer of %s is never stored", r.name)
	for _, k := range w.keys {
		for _, answer := range k.finalAnswers {
			w.checkPromise(answer != r.name || r.effectCount > 0, "an answer of %s without an effect", r.name)
		}
	}
}

// judgeLaterRequests sends two more requests after every lease has lapsed.
func (w *world) judgeLaterRequests(k *key) {
	interrupted := !k.hasAnswer && slices.ContainsFunc(k.grantedLeases, func(l grantedLease) bool { return l.isHeld })
	p := newProcess(w, "later")
	p.bypassesExplorer = true
	for range 2 {
		r := &request{process: p, world: w, name: "0" + k.name, key: k}
		p.serveRequest(r)
		refused := w.Refuses && interrupted && errors.Is(r.refusalErr, idempotency.ErrOutcomeUnknown)
		gone := w.AnswerTooLarge && k.hasAnswer && errors.Is(r.refusalErr, idempotency.ErrNotReplayable)
		w.checkPromise(r.refusalErr == nil || refused || gone, "the key %s is wedged: %v", k.name, r.refusalErr)
	}
}
