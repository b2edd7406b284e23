package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

// promise notes the first promise that is broken.
func (w *world) promise(holds bool, format string, args ...any) {
	if !holds && w.broken == nil {
		w.broken = fmt.Errorf(format, args...)
	}
}

// enter is called when the handler begins.
func (r *request) enter(ctx context.Context) {
	op, _ := idempotency.FromContext(ctx)
	w, k := r.world, r.key
	w.mu.Lock()
	defer w.mu.Unlock()
	r.entered, r.ctx = true, ctx
	w.promise(op.Attempt == r.attempt, "%s is told attempt %d, and is %d", r.name, op.Attempt, r.attempt)
	w.promise(k.entered.Attempt == 0 || k.entered.ID == op.ID, "the operation of %s is another one", r.name)
	if l := r.lease(); w.unawares(l) {
		l.interrupted = true
		if r.token != k.record.token && !w.Refuse {
			return // it runs beside its successor, or after it
		}
	}
	w.promise(!k.stored, "the handler of %s runs although an answer is stored", r.name)
	w.promise(r.obstacles(r.token) == 0, "the handler of %s runs beside the claim of another attempt", r.name)
	w.promise(op.Attempt > k.entered.Attempt, "attempt %d of %s after %d", op.Attempt, r.name, k.entered.Attempt)
	k.entered = op
}

// unawares reports whether only a jump has ended a lease: its owner cannot know, for by its own clock the lease runs.
func (w *world) unawares(l *granted) bool {
	return l.until <= w.now() && l.until-l.ahead > time.Since(w.began)
}

// leave is called when the handler ends, however it does.
func (r *request) leave() {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.ctx = nil
}

// act is the effect of the handler.
func (r *request) act() error {
	again := r.key.finished && r.key.record.isOf(r.token)
	r.world.promise(!again, "%s does a step again whose result is stored", r.name)
	r.effects++
	r.lease().effects++
	r.world.promise(r.ctx.Err() != nil || r.token == r.key.record.token || r.world.unawares(r.lease()),
		"%s acts although its claim is lost, and was not told", r.name)
	return nil
}

// obstacles returns how many claims beside that of token forbid a handler to run.
func (r *request) obstacles(token int) (n int) {
	for i, l := range r.key.leases {
		if i+1 != token && l.holds && (l.until > r.world.now() || r.world.Refuse) {
			n++
		}
	}
	return n
}

// lapse looks at what time has brought.
func (w *world) lapse() {
	now := w.now()
	for _, r := range w.requests {
		if !r.entered || r.token == 0 {
			continue
		}
		l := r.lease()
		lapsed := l.holds && l.until <= now
		l.interrupted = l.interrupted || lapsed && !r.key.stored
		l.jumped = l.jumped || lapsed && w.unawares(l)
		if r.ctx == nil || r.process.died {
			continue
		}
		told := r.ctx.Err() != nil
		w.promise(told || !lapsed || w.unawares(l), "the lease of %s lapses, and its handler has not been told", r.name)
		w.promise(!told || r.harmed || l.jumped, "the handler of %s is told that its claim is lost, for no reason", r.name)
	}
}

// observe is told of outcomes. Those of the background have no request in their context.
func (p *process) observe(ctx context.Context, e idempotency.Event) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	r := requestIn(ctx)
	for _, other := range p.requests {
		if r == nil && other.key.name == e.Key.ID && other.attempt == e.Attempt {
			r = other
		}
	}
	if r == nil {
		w.promise(false, "%s is reported of nobody", e.Outcome)
		return
	}
	r.outcomes = append(r.outcomes, e.Outcome)
	later := len(r.outcomes) == 2 && r.outcomes[0] == idempotency.OutcomeUnrecorded
	w.promise(len(r.outcomes) == 1 || later, "%s reports %q", r.name, r.outcomes)
	r.keep()
}

// end is called when the client has got its answer, or an error.
func (r *request) end(answer string, err error) {
	r.world.mu.Lock()
	defer r.world.mu.Unlock()
	r.refusal = err
	if err == nil {
		r.answer = answer
		r.keep()
	}
}

// keep adds the answer that the client has got to those that must stay as they are, once the store has it.
func (r *request) keep() {
	if r.answer == "" || len(r.outcomes) == 0 {
		return
	}
	switch r.outcomes[len(r.outcomes)-1] {
	case idempotency.OutcomeUnrecorded, idempotency.OutcomeClaimLost:
	default:
		r.key.answers = append(r.key.answers, r.answer)
	}
}

// judge says what must hold in the end, and for those who come later.
func (w *world) judge() {
	for _, k := range w.keys {
		w.judgeEffects(k)
		w.judgeLater(k)
		for _, answer := range k.answers {
			w.promise(answer == k.answers[0], "different answers: %q", k.answers)
			w.promise(answer[1:2] == k.name, "%s is answered with %s", k.name, answer)
		}
	}
	for _, p := range w.processes {
		w.promise(p.died || p.stopped, "process %s never ends", p.name)
	}
	for _, r := range w.requests {
		w.judgeRequest(r)
	}
}

// judgeEffects allows for one effect. With ReExecute, each attempt that was interrupted may have had one more.
func (w *world) judgeEffects(k *key) {
	w.promise(k.rows <= 1, "there are %d rows of %s", k.rows, k.name)
	effects, last := 0, 0
	for _, l := range k.leases {
		effects += l.effects
		if !l.interrupted {
			last += l.effects
		}
	}
	w.promise(last <= 1, "%d effects of %s, of attempts that were not interrupted", last, k.name)
	w.promise(effects <= 1 || !w.Refuse, "%d effects of %s", effects, k.name)
}

func (w *world) judgeRequest(r *request) {
	if r.process.died {
		return
	}
	w.promise(r.ended, "%s is never answered", r.name)
	w.promise(len(r.outcomes) > 0, "%s reports nothing", r.name)
	w.promise(len(r.outcomes) != 1 || r.outcomes[0] != idempotency.OutcomeUnrecorded, "the answer of %s is never stored", r.name)
	for _, k := range w.keys {
		for _, answer := range k.answers {
			w.promise(answer != r.name || r.effects > 0, "an answer of %s without an effect", r.name)
		}
	}
}

// judgeLater has two more requests come after every lease has lapsed.
func (w *world) judgeLater(k *key) {
	interrupted := !k.stored && slices.ContainsFunc(k.leases, func(l granted) bool { return l.holds })
	p := newProcess(w, "later")
	p.alone = true
	for range 2 {
		r := &request{process: p, world: w, name: "0" + k.name, key: k}
		p.serve(r)
		refused := w.Refuse && interrupted && errors.Is(r.refusal, idempotency.ErrOutcomeUnknown)
		gone := w.Outgrows && k.stored && errors.Is(r.refusal, idempotency.ErrNotReplayable)
		w.promise(r.refusal == nil || refused || gone, "the key %s is wedged: %v", k.name, r.refusal)
	}
}
