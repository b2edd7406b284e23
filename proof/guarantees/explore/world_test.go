package explore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

const leaseDuration = 3 * time.Second

// maxPassage is how long time passes at most between two decisions of the explorer while a request is being served. maxPassage is
// longer than the interval of renewals, so renewals happen in between, and three passages are longer than a lease.
const maxPassage = 35 * leaseDuration / 100

var errStoreDown = errors.New("the store is down")

// world is the state of an execution. The budgets of bound shrink as the execution goes on.
type world struct {
	bound
	startTime  time.Time
	clockAhead time.Duration // sum of the jumps of the store's clock

	mu            sync.Mutex // protects every field; the explorer holds mu except in awaitSettled and passTime
	keys          []*key
	processes     []*process
	requests      []*request
	pendingCalls  []*pendingCall
	nextActions   []action
	changeSignal  chan struct{} // has a value after an event, and wakes passTime
	trace         actionTrace
	brokenPromise error // the first broken promise; nil: all promises are kept
}

func newWorld(b bound) *world {
	w := &world{bound: b, startTime: time.Now(), changeSignal: make(chan struct{}, 1)}
	for name := range strings.FieldsSeq(b.Requests) {
		p := w.findProcess(name[:1])
		r := &request{process: p, world: w, name: name, key: w.findKey(name[1:2])}
		p.requests, w.requests = append(p.requests, r), append(w.requests, r)
		p.openRequests++
	}
	return w
}

func (w *world) findProcess(name string) *process {
	for _, p := range w.processes {
		if p.name == name {
			return p
		}
	}
	p := newProcess(w, name)
	w.processes = append(w.processes, p)
	return p
}

func (w *world) findKey(name string) *key {
	for _, k := range w.keys {
		if k.name == name {
			return k
		}
	}
	k := &key{name: name}
	w.keys = append(w.keys, k)
	return k
}

// storeTime returns the time since startTime by the clock of the store.
func (w *world) storeTime() time.Duration { return time.Since(w.startTime) + w.clockAhead }

// maxActions is more than the actions of any execution that ends.
const maxActions = 5000

// performActions performs the actions that pick chooses until no action is left, and then judges the execution.
func (w *world) performActions(pick func([]action) action) {
	w.mu.Lock()
	for w.awaitSettled(); w.brokenPromise == nil; w.awaitSettled() {
		next := w.listActions()
		if len(next) == 0 {
			break
		}
		w.checkPromise(len(w.trace) < maxActions, "it never ends")
		w.performAction(pick(next))
	}
	if w.brokenPromise != nil {
		for _, p := range w.processes {
			p.crash()
		}
	}
	w.mu.Unlock()
	time.Sleep(2 * leaseDuration) // crashed processes end, and every lease lapses
	if w.brokenPromise == nil {
		w.judgeExecution()
	}
}

// awaitSettled waits until every goroutine waits for the explorer or for time. Overdue timers fire before Sleep returns, because
// Wait alone would not wait for these timers.
func (w *world) awaitSettled() {
	w.mu.Unlock()
	time.Sleep(time.Nanosecond)
	synctest.Wait()
	w.mu.Lock()
	slices.SortFunc(w.pendingCalls, func(a, b *pendingCall) int {
		return cmp.Or(strings.Compare(a.request.name, b.request.name), int(a.call)-int(b.call), a.callNumber-b.callNumber)
	})
}

// listActions returns the actions that can happen next.
func (w *world) listActions() []action {
	w.nextActions = w.nextActions[:0]
	for _, r := range w.requests {
		if r.hasBegun || r.process.hasCrashed {
			continue
		}
		for _, o := range w.outcomesOfCall(beginCall) {
			w.nextActions = append(w.nextActions, action{r, nil, o})
		}
	}
	for _, p := range w.pendingCalls {
		for _, o := range p.possibleOutcomes(w) {
			w.nextActions = append(w.nextActions, action{p.request, p, o})
		}
	}
	if w.mayTimePass() {
		w.nextActions = append(w.nextActions, action{outcome: timePasses})
	}
	if w.ClockJumps > 0 && slices.ContainsFunc(w.keys, w.hasLiveLease) {
		w.nextActions = append(w.nextActions, action{outcome: clockJumps})
	}
	return w.nextActions
}

// mayTimePass reports whether time may pass: the explorer has decided every call to the store, and time can change something.
func (w *world) mayTimePass() bool {
	delayed := false
	for _, p := range w.pendingCalls {
		if p.stage == undecided && p.call.goesToStore() {
			return false
		}
		delayed = delayed || p.stage != undecided && !p.isAbandoned
	}
	return w.anyProcessPauses() || w.Passages > 0 && (delayed || slices.ContainsFunc(w.keys, w.hasLiveLease))
}

// hasLiveLease reports whether a lease of k runs.
func (w *world) hasLiveLease(k *key) bool {
	return slices.ContainsFunc(k.grantedLeases, func(l grantedLease) bool { return l.isHeld && l.expiresAt > w.storeTime() })
}

// anyProcessPauses reports whether a process pauses before it repeats a call.
func (w *world) anyProcessPauses() bool {
	return slices.ContainsFunc(w.processes, (*process).isPausing)
}

func (w *world) performAction(a action) {
	s := performedAction{request: a.request, outcome: a.outcome, performedAt: w.storeTime()}
	if a.pendingCall != nil {
		s.call = a.pendingCall.call
	}
	w.trace = append(w.trace, s)
	if a.outcome.isFault() {
		w.Faults--
		a.request.wasHarmed = true
	}
	switch {
	case a.outcome == timePasses:
		if !w.anyProcessPauses() {
			w.Passages--
		}
		w.passTime()
	case a.outcome == clockJumps:
		w.ClockJumps--
		w.clockAhead += w.timeUntilLapse()
		w.checkLeases()
	case a.pendingCall == nil:
		a.request.startServing(a.outcome)
	default:
		w.decideCall(a.pendingCall, a.outcome)
	}
}

// timeUntilLapse returns the time until the next lease lapses, or two leases if no lease runs.
func (w *world) timeUntilLapse() time.Duration {
	d := 2 * leaseDuration
	for _, k := range w.keys {
		for _, l := range k.grantedLeases {
			if left := l.expiresAt - w.storeTime(); l.isHeld && left > 0 {
				d = min(d, left)
			}
		}
	}
	return d
}

// passTime lets time pass until an event, the next lapse of a lease, or the end of maxPassage.
func (w *world) passTime() {
	d := w.timeUntilLapse()
	if slices.ContainsFunc(w.requests, (*request).isBeingServed) {
		d = min(d, maxPassage)
	}
	select {
	case <-w.changeSignal:
	default:
	}
	w.mu.Unlock()
	timer := time.NewTimer(d)
	select {
	case <-w.changeSignal:
		timer.Stop()
	case <-timer.C:
	}
	w.mu.Lock()
	w.awaitSettled()
	w.checkLeases()
}

// signalChange wakes passTime.
func (w *world) signalChange() {
	select {
	case w.changeSignal <- struct{}{}:
	default:
	}
}

// decideCall continues a call with the outcome o.
func (w *world) decideCall(p *pendingCall, o outcome) {
	switch {
	case o == crashesBefore:
		p.request.process.crash()
	case o == crashesAfter:
		_ = p.applyEffect()
		p.request.process.crash()
	case o == fails:
		w.replyTo(p, errStoreDown)
	case o == replyIsLost:
		p.mayHaveEffect = true
		_ = p.applyEffect()
		w.replyTo(p, errStoreDown)
	case o == replyIsDelayed:
		p.mayHaveEffect, p.stage, p.replyErr = true, replyDelayed, p.applyEffect()
	case o == callIsDelayed:
		p.mayHaveEffect, p.stage = true, callDelayed
	case o == exitsAfterEffect:
		p.handlerExits, p.request.ownLease().wasInterrupted = true, true
		w.replyTo(p, p.applyEffect())
	case p.stage == replyDelayed:
		w.replyTo(p, p.replyErr)
	default:
		w.replyTo(p, p.applyEffect())
	}
}

func (w *world) replyTo(p *pendingCall, err error) {
	w.removeCall(p)
	if !p.isAbandoned {
		p.replyErr = err
		p.resume <- struct{}{}
	}
}

func (w *world) addCall(p *pendingCall) {
	w.pendingCalls = append(w.pendingCalls, p)
	p.request.pendingCount++
	p.callNumber = p.request.callCount
	p.request.callCount++
	w.signalChange()
}

func (w *world) removeCall(p *pendingCall) {
	w.pendingCalls = slices.DeleteFunc(w.pendingCalls, func(other *pendingCall) bool { return other == p })
	if !p.isAbandoned {
		p.request.pendingCount--
	}
}

// abandonCall ends a call whose context has ended. A call on its way to the store stays on its way, and may still have its effect.
func (w *world) abandonCall(ctx context.Context, p *pendingCall) (sent bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.stage == callDelayed {
		p.request.pendingCount--
		p.isAbandoned = true
	} else {
		w.removeCall(p)
	}
	w.signalChange()
	return p.mayHaveEffect, ctx.Err()
}
