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

const lease = 3 * time.Second

// longest is how long time passes at most, while somebody is at work, until the explorer decides again. It is longer than
// the interval of renewals, so that these come in between, and three of them are longer than a lease.
const longest = 35 * lease / 100

var errDown = errors.New("the store is down")

// world is the state of an execution. Its bound counts what may still happen.
type world struct {
	bound
	began time.Time
	ahead time.Duration // by which the store's clock has jumped

	mu        sync.Mutex // for all of this; the explorer holds it except in settle and pass
	keys      []*key
	processes []*process
	requests  []*request
	points    []*point
	next      []action
	changed   chan struct{} // something has happened
	trace     steps
	broken    error // the first promise that was broken
}

func newWorld(b bound) *world {
	w := &world{bound: b, began: time.Now(), changed: make(chan struct{}, 1)}
	for name := range strings.FieldsSeq(b.Requests) {
		p := w.process(name[:1])
		r := &request{process: p, world: w, name: name, key: w.key(name[1:2])}
		p.requests, w.requests = append(p.requests, r), append(w.requests, r)
		p.open++
	}
	return w
}

func (w *world) process(name string) *process {
	for _, p := range w.processes {
		if p.name == name {
			return p
		}
	}
	p := newProcess(w, name)
	w.processes = append(w.processes, p)
	return p
}

func (w *world) key(name string) *key {
	for _, k := range w.keys {
		if k.name == name {
			return k
		}
	}
	k := &key{name: name}
	w.keys = append(w.keys, k)
	return k
}

// now is the time by the store's clock.
func (w *world) now() time.Duration { return time.Since(w.began) + w.ahead }

// mostSteps is more than any execution takes that comes to an end.
const mostSteps = 5000

// run lets happen what pick chooses, to the end, and judges it.
func (w *world) run(pick func([]action) action) {
	w.mu.Lock()
	for w.settle(); w.broken == nil; w.settle() {
		next := w.actions()
		if len(next) == 0 {
			break
		}
		w.promise(len(w.trace) < mostSteps, "it never ends")
		w.perform(pick(next))
	}
	if w.broken != nil {
		for _, p := range w.processes {
			p.die()
		}
	}
	w.mu.Unlock()
	time.Sleep(2 * lease) // what has crashed comes to its end, and every lease lapses
	if w.broken == nil {
		w.judge()
	}
}

// settle returns when everything that can go on without the explorer has. Timers that are overdue fire before Sleep
// returns; Wait alone would not wait for them.
func (w *world) settle() {
	w.mu.Unlock()
	time.Sleep(time.Nanosecond)
	synctest.Wait()
	w.mu.Lock()
	slices.SortFunc(w.points, func(a, b *point) int {
		return cmp.Or(strings.Compare(a.request.name, b.request.name), int(a.call)-int(b.call), a.number-b.number)
	})
}

// actions returns what can happen next.
func (w *world) actions() []action {
	w.next = w.next[:0]
	for _, r := range w.requests {
		if r.begun || r.process.died {
			continue
		}
		for _, o := range w.outcomesOf(begin) {
			w.next = append(w.next, action{r, nil, o})
		}
	}
	for _, p := range w.points {
		for _, o := range p.outcomes(w) {
			w.next = append(w.next, action{p.request, p, o})
		}
	}
	if w.mayPass() {
		w.next = append(w.next, action{outcome: passes})
	}
	if w.Jumps > 0 && slices.ContainsFunc(w.keys, w.leased) {
		w.next = append(w.next, action{outcome: jumps})
	}
	return w.next
}

// mayPass reports whether time may pass: the store has decided about every call, and something can happen.
func (w *world) mayPass() bool {
	delayed := false
	for _, p := range w.points {
		if p.stage == asked && p.call.toStore() {
			return false
		}
		delayed = delayed || p.stage != asked && !p.gone
	}
	return w.pauses() || w.Passages > 0 && (delayed || slices.ContainsFunc(w.keys, w.leased))
}

// leased reports whether a lease of the key runs.
func (w *world) leased(k *key) bool {
	return slices.ContainsFunc(k.leases, func(l granted) bool { return l.holds && l.until > w.now() })
}

// pauses reports whether a process pauses, before it tries something again.
func (w *world) pauses() bool { return slices.ContainsFunc(w.processes, (*process).pauses) }

func (w *world) perform(a action) {
	s := step{request: a.request, outcome: a.outcome, at: w.now()}
	if a.point != nil {
		s.call = a.point.call
	}
	w.trace = append(w.trace, s)
	if a.outcome.isFault() {
		w.Faults--
		a.request.harmed = true
	}
	switch {
	case a.outcome == passes:
		if !w.pauses() {
			w.Passages--
		}
		w.pass()
	case a.outcome == jumps:
		w.Jumps--
		w.ahead += w.untilLapse()
		w.lapse()
	case a.point == nil:
		a.request.start(a.outcome)
	default:
		w.decide(a.point, a.outcome)
	}
}

// untilLapse returns when the next lease lapses, or a long time.
func (w *world) untilLapse() time.Duration {
	d := 2 * lease
	for _, k := range w.keys {
		for _, l := range k.leases {
			if left := l.until - w.now(); l.holds && left > 0 {
				d = min(d, left)
			}
		}
	}
	return d
}

// pass lets time pass until something happens.
func (w *world) pass() {
	d := w.untilLapse()
	if slices.ContainsFunc(w.requests, (*request).works) {
		d = min(d, longest)
	}
	select {
	case <-w.changed:
	default:
	}
	w.mu.Unlock()
	timer := time.NewTimer(d)
	select {
	case <-w.changed:
		timer.Stop()
	case <-timer.C:
	}
	w.mu.Lock()
	w.settle()
	w.lapse()
}

// changes wakes pass.
func (w *world) changes() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// decide lets a call go on.
func (w *world) decide(p *point, o outcome) {
	switch {
	case o == diedBefore:
		p.request.process.die()
	case o == diedAfter:
		_ = p.effect()
		p.request.process.die()
	case o == failed:
		w.reply(p, errDown)
	case o == unanswered:
		p.sent = true
		_ = p.effect()
		w.reply(p, errDown)
	case o == slow:
		p.sent, p.stage, p.err = true, held, p.effect()
	case o == late:
		p.sent, p.stage = true, underway
	case o == exited:
		p.exits, p.request.lease().interrupted = true, true
		w.reply(p, p.effect())
	case p.stage == held:
		w.reply(p, p.err)
	default:
		w.reply(p, p.effect())
	}
}

func (w *world) reply(p *point, err error) {
	w.remove(p)
	if !p.gone {
		p.err = err
		p.goOn <- struct{}{}
	}
}

func (w *world) add(p *point) {
	w.points = append(w.points, p)
	p.request.waits++
	p.number = p.request.calls
	p.request.calls++
	w.changes()
}

func (w *world) remove(p *point) {
	w.points = slices.DeleteFunc(w.points, func(other *point) bool { return other == p })
	if !p.gone {
		p.request.waits--
	}
}

// giveUp ends a call whose context has ended. What is on its way to the store stays on its way.
func (w *world) giveUp(ctx context.Context, p *point) (sent bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.stage == underway {
		p.request.waits--
		p.gone = true
	} else {
		w.remove(p)
	}
	w.changes()
	return p.sent, ctx.Err()
}
