package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// The explorer runs a few processes, each with a Runner of its own, that do the same operation once on one store. It
// decides step by step whose call goes on, how that call ends, and when a lease lapses by the store's clock. It tries
// every execution within a bound, depth first, each in a bubble of its own.

// bound says what may happen in an execution.
type bound struct {
	processes int
	faults    int // calls that do not end well
	renewals  int // times that handlers run for so long that their leases are renewed
	abandoned idempotency.Abandoned
	bug       string // of the store
}

// outcome is how a call ends.
type outcome string

const (
	fine       outcome = "is fine"
	failed     outcome = "fails"
	unanswered outcome = "fails, but has its effect"
	diedBefore outcome = "crashes"
	diedAfter  outcome = "crashes, but has its effect"
	exited     outcome = "has its effect, and the handler exits"

	lapses   outcome = "the lease lapses" // of no call
	renewing outcome = "it is time to renew"
)

var (
	ofStore   = []outcome{fine, failed, unanswered, diedBefore, diedAfter}
	ofHandler = []outcome{fine, failed, exited, diedBefore, diedAfter}
)

// point is a call that waits for the explorer.
type point struct {
	process  *process
	call     string
	outcomes []outcome
	goOn     chan outcome
}

// action is what can happen next. It has no point if it is not the end of a call.
type action struct {
	*point
	outcome
}

func (a action) String() string {
	if a.point == nil {
		return string(a.outcome)
	}
	return fmt.Sprintf("%s of %d %s", a.call, a.process.id, a.outcome)
}

// execution is the state of the world, and what must hold of it.
type execution struct {
	bound
	mu        sync.Mutex // for all of this; the explorer holds it except in pass
	store     leaseStore
	processes []*process
	points    []*point
	begun     int // processes that have made a call
	trace     []action
	broken    error // the first promise that was broken

	leases  map[int]time.Duration // by token, until when: every claim that was granted and not released
	stored  bool                  // an answer was stored
	effects int
	repeats bool                  // a lease lapsed before an answer was stored, or a handler exited: ReExecute goes on
	entered idempotency.Operation // by the last handler
	answers []string              // that clients got, and that must stay as they are
}

func (e *execution) promise(holds bool, format string, args ...any) {
	if !holds && e.broken == nil {
		e.broken = fmt.Errorf(format+": %q", append(args, e.trace)...)
	}
}

// process does the operation once. It is also the Store of its Runner: a connection to the store that all share.
type process struct {
	*execution
	id       int
	outcomes []idempotency.Outcome
	answer   string // that its client has got
	died     chan struct{}
	ended    bool
	alone    bool // nothing is left to the explorer
}

// patiently is how calls wait for the explorer: if they fail, it is its choice. A renewal however may be aborted.
var patiently = context.Background()

// do makes a call, or does not, as the explorer decides.
func (p *process) do(ctx context.Context, call string, outcomes []outcome, step func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.wait(ctx, call, outcomes)
	err := errDown
	if o != failed && o != diedBefore {
		err = step()
	}
	switch o {
	case fine:
		return err
	case diedBefore, diedAfter:
		if !p.dead() {
			close(p.died)
		}
		runtime.Goexit()
	case exited:
		p.repeats = true
		runtime.Goexit()
	}
	return errDown
}

func (p *process) wait(ctx context.Context, call string, outcomes []outcome) outcome {
	switch {
	case p.alone:
		return fine
	case p.dead():
		return failed
	}
	pt := &point{p, call, outcomes, make(chan outcome)}
	p.points = append(p.points, pt)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.points = slices.DeleteFunc(p.points, func(other *point) bool { return other == pt })
	}()
	select {
	case o := <-pt.goOn:
		return o
	case <-p.died:
		return diedBefore
	case <-ctx.Done():
		return failed
	}
}

func (p *process) dead() bool {
	select {
	case <-p.died:
		return true
	default:
		return false
	}
}

func (p *process) Begin(
	_ context.Context, _ idempotency.Key, a idempotency.ClaimRequest,
) (rec idempotency.Record, claim idempotency.Claim, err error) {
	free := func() bool { return p.store.free(a, p.bug) }
	if p.bug == "claim is not atomic" {
		was := false
		if err := p.do(patiently, "Begin", ofStore, func() error { was = free(); return nil }); err != nil {
			return rec, nil, err
		}
		free = func() bool { return was }
	}
	err = p.do(patiently, "Begin", ofStore, func() error {
		if free() {
			p.store.claim(a, p.bug)
			p.leases[p.store.token] = p.store.until
			claim = &connectedClaim{p, p.store.token}
		}
		rec = p.store.record(a)
		return nil
	})
	return rec, claim, err
}

type connectedClaim struct {
	*process
	token int
}

func (c *connectedClaim) Context(ctx context.Context) context.Context { return ctx }

func (c *connectedClaim) Extend(ctx context.Context, d time.Duration) error {
	return c.do(ctx, "Extend", ofStore, func() error {
		err := c.store.extend(c.token, d, c.bug)
		if err == nil {
			c.leases[c.token] = c.store.now + d
			c.promise(c.obstacles() == 0, "%d extends its lease beside another one", c.id)
		}
		return err
	})
}

func (c *connectedClaim) Complete(_ context.Context, resp idempotency.Response, _ time.Duration) error {
	return c.do(patiently, "Complete", ofStore, func() error {
		err := c.store.complete(c.token, resp.Clone(), c.bug)
		c.stored = c.stored || err == nil
		return err
	})
}

func (c *connectedClaim) Release(context.Context, time.Duration) error {
	return c.do(patiently, "Release", ofStore, func() error {
		err := c.store.release(c.token, c.bug)
		if err == nil {
			delete(c.leases, c.token)
		}
		return err
	})
}

// obstacles returns how many claims beside the last one forbid a handler to run.
func (e *execution) obstacles() (n int) {
	for token, until := range e.leases {
		if token != e.store.token && (until > e.store.now || e.abandoned == idempotency.Refuse) {
			n++
		}
	}
	return n
}

// handle is the handler. It takes no notice of a lost claim.
func (p *process) handle(ctx context.Context) (idempotency.Response, error) {
	op, _ := idempotency.FromContext(ctx)
	p.enter(op)
	err := p.do(patiently, "effect", ofHandler, func() error { p.effects++; return nil })
	return idempotency.Response{Status: 200, Body: fmt.Append(nil, "answer of ", p.id)}, err
}

func (p *process) enter(op idempotency.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise(!p.stored, "the handler of %d runs although an answer is stored", p.id)
	p.promise(p.obstacles() == 0, "the handler of %d runs beside the claim of another process", p.id)
	p.promise(op.Attempt > p.entered.Attempt, "attempt %d of %d after %d", op.Attempt, p.id, p.entered.Attempt)
	p.promise(p.entered.Attempt == 0 || p.entered.ID == op.ID, "the operation of %d is another one", p.id)
	p.entered = op
}

// request does the operation. What the store has not taken is no promise: it is sent, but only until the lease lapses.
func (p *process) request() error {
	runner, err := idempotency.NewRunner(p, idempotency.RunnerOptions{
		Lease: time.Minute, StoreTimeout: pause * 3 / 2, Abandoned: p.abandoned, // time for a second try of Complete
		Logger:   slog.New(slog.DiscardHandler),
		Observer: func(_ context.Context, event idempotency.Event) { p.observe(event.Outcome) },
	})
	if err != nil {
		return err
	}
	defer p.shutdown(runner)
	resp, _, err := runner.Do(context.Background(), someKey, nil, p.handle)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise(len(p.outcomes) > 0, "%d reports nothing", p.id)
	if err == nil {
		p.answer = string(resp.Body)
		p.keep()
	}
	return err
}

func (p *process) observe(o idempotency.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outcomes = append(p.outcomes, o)
	late := len(p.outcomes) == 2 && p.outcomes[0] == idempotency.OutcomeUnrecorded
	p.promise(len(p.outcomes) == 1 || late, "%d reports %q", p.id, p.outcomes)
	p.keep()
}

// keep adds the answer that the client of p has got to those that must stay as they are, once the store has it.
func (p *process) keep() {
	if p.answer == "" || len(p.outcomes) == 0 {
		return
	}
	switch p.outcomes[len(p.outcomes)-1] {
	case idempotency.OutcomeUnrecorded, idempotency.OutcomeClaimLost:
	default:
		p.answers = append(p.answers, p.answer)
	}
}

// shutdown waits for what the runner does in the background, unless the process has died.
func (p *process) shutdown(runner *idempotency.Runner) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.died:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := runner.Shutdown(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise(err == nil || p.dead(), "%d leaves something behind: %v", p.id, err)
}

const pause = 20 * time.Millisecond // of the Runner before it repeats Complete

// run lets happen what pick chooses.
func (e *execution) run(pick func(n int) int) {
	e.mu.Lock()
	for id := range e.bound.processes {
		p := &process{execution: e, id: id + 1, died: make(chan struct{})}
		e.processes = append(e.processes, p)
		go func() {
			defer p.end()
			_ = p.request()
		}()
	}
	for e.settle(); len(e.points) > 0; e.settle() {
		next := e.actions()
		e.perform(next[pick(len(next))])
	}
	e.mu.Unlock()
	e.judge()
}

func (p *process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// pass lets everything go on that can, for d.
func (e *execution) pass(d time.Duration) {
	e.mu.Unlock()
	defer e.mu.Lock()
	time.Sleep(d)
	synctest.Wait()
}

// settle returns when every process waits for the explorer, or has ended.
func (e *execution) settle() {
	busy := func(p *process) bool {
		return !p.ended && !slices.ContainsFunc(e.points, func(pt *point) bool { return pt.process == p })
	}
	for e.pass(0); slices.ContainsFunc(e.processes, busy); {
		e.pass(pause / 2)
	}
	slices.SortFunc(e.points, func(a, b *point) int {
		return cmp.Or(a.process.id-b.process.id, cmp.Compare(a.call, b.call))
	})
}

// actions returns what can happen next. It leaves out what differs from something else only in the order of steps that
// do not affect each other: which of the processes begins first; that a lease lapses, until somebody looks; and the
// effect, until its process goes on.
func (e *execution) actions() (next []action) {
	var last action
	if len(e.trace) > 0 {
		last = e.trace[len(e.trace)-1]
	}
	looks := func(pt *point) bool { return pt.call == "Begin" }
	handles := func(pt *point) bool { return pt.call == "effect" }
	goesOn := func(pt *point) bool { return last.point != nil && handles(last.point) && pt.process == last.process }
	canGoOn := slices.ContainsFunc(e.points, goesOn)
	for _, pt := range e.points {
		if pt.process.id > e.begun+1 || last.outcome == lapses && !looks(pt) || canGoOn && !goesOn(pt) {
			continue
		}
		for _, o := range pt.outcomes {
			if o == fine || e.faults > 0 {
				next = append(next, action{pt, o})
			}
		}
	}
	if e.store.running() && slices.ContainsFunc(e.points, looks) && !canGoOn {
		next = append(next, action{nil, lapses})
	}
	if e.renewals > 0 && slices.ContainsFunc(e.points, handles) && !canGoOn && last.outcome != lapses {
		next = append(next, action{nil, renewing})
	}
	return next
}

func (e *execution) perform(a action) {
	e.trace = append(e.trace, a)
	switch a.outcome {
	case lapses:
		e.store.now, e.repeats = e.store.until, true
		return
	case renewing:
		e.renewals--
		e.pass(time.Minute / 3)
		return
	case fine:
	default:
		e.faults--
	}
	e.begun = max(e.begun, a.process.id)
	a.goOn <- a.outcome
}

// judge says what must hold in the end, and for those who come later.
func (e *execution) judge() {
	e.promise(e.effects <= 1 || e.repeats && e.abandoned == idempotency.ReExecute, "%d effects", e.effects)
	e.promise(e.effects > 0 || len(e.answers) == 0, "an answer without an effect")
	interrupted := !e.stored && len(e.leases) > 0
	e.store.now += time.Minute
	for range 2 {
		err := (&process{execution: e, alone: true, died: make(chan struct{})}).request()
		refused := e.abandoned == idempotency.Refuse && interrupted && errors.Is(err, idempotency.ErrOutcomeUnknown)
		e.promise(err == nil || refused, "the key is wedged: %v", err)
	}
	for _, answer := range e.answers {
		e.promise(answer == e.answers[0], "different answers: %q", e.answers)
	}
}

// explore runs all executions within b, or until one breaks a promise.
func explore(t *testing.T, b bound) (executions int, broken error) {
	var picked, width []int // at each step of the execution
	for {
		executions++
		step := 0
		synctest.Test(t, func(*testing.T) {
			e := &execution{bound: b, leases: map[int]time.Duration{}}
			e.run(func(n int) int {
				if step++; step > len(picked) {
					picked, width = append(picked, 0), append(width, n)
				}
				return picked[step-1]
			})
			broken = e.broken
		})
		last := len(picked) - 1
		for ; last >= 0 && picked[last] == width[last]-1; last-- {
		}
		if broken != nil || last < 0 {
			return executions, broken
		}
		picked, width = picked[:last+1], width[:last+1]
		picked[last]++
	}
}

// IDEMPOTENCY_EXPLORE=1 allows for one more fault in each execution, and takes about ten times as long.
var moreFaults, _ = strconv.Atoi(os.Getenv("IDEMPOTENCY_EXPLORE"))

func TestEveryExecutionKeepsThePromises(t *testing.T) {
	t.Parallel()
	for _, b := range []bound{
		{processes: 2, faults: 2},
		{processes: 2, faults: 1, renewals: 1},
		{processes: 3, faults: 1},
		{processes: 2, faults: 2, abandoned: idempotency.Refuse},
		{processes: 2, faults: 1, renewals: 1, abandoned: idempotency.Refuse},
		{processes: 3, faults: 1, abandoned: idempotency.Refuse},
	} {
		b.faults += moreFaults
		t.Run(fmt.Sprintf("%d processes, %d faults, %d renewals, refuse=%t",
			b.processes, b.faults, b.renewals, b.abandoned == idempotency.Refuse), func(t *testing.T) {
			t.Parallel()
			executions, broken := explore(t, b)
			t.Log(executions, "executions")
			require.NoError(t, broken)
		})
	}
}

func TestExplorerFindsBugsOfAStore(t *testing.T) {
	t.Parallel()
	for bug, b := range map[string]bound{
		"claim is not atomic":          {processes: 2},
		"live lease is taken over":     {processes: 2},
		"lapsed lease is kept":         {processes: 1, faults: 1},
		"answer lapses with its lease": {processes: 1},
		"attempt number stays":         {processes: 2},
		"any claim extends":            {processes: 2, renewals: 1},
		"any claim completes":          {processes: 2},
		"any claim releases":           {processes: 3, faults: 1},
	} {
		b.bug = bug
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			executions, broken := explore(t, b)
			require.Error(t, broken)
			t.Log(executions, "executions:", broken)
		})
	}
}

// leaseStore is a store of one record, whose clock stands still until a lease lapses. It may have a bug.
type leaseStore struct {
	now, until time.Duration
	token      int // of the last claim; 0: there is no record
	operation  uuid.UUID
	attempt    int
	released   bool
	response   *idempotency.Response
}

func (s *leaseStore) running() bool {
	return s.token > 0 && !s.released && s.response == nil && s.until > s.now
}

func (s *leaseStore) free(a idempotency.ClaimRequest, bug string) bool {
	switch {
	case s.token == 0:
		return true
	case s.response != nil:
		return bug == "answer lapses with its lease" && s.until <= s.now
	case s.running():
		return bug == "live lease is taken over"
	default:
		return s.released || a.TakeOver && bug != "lapsed lease is kept"
	}
}

func (s *leaseStore) claim(a idempotency.ClaimRequest, bug string) {
	if s.token == 0 {
		s.operation = uuid.New()
	}
	if s.token == 0 || bug != "attempt number stays" {
		s.attempt++
	}
	s.token++
	s.until, s.released, s.response = s.now+a.Lease, false, nil
}

func (s *leaseStore) record(a idempotency.ClaimRequest) idempotency.Record {
	rec := idempotency.Record{Operation: s.operation, Attempt: s.attempt, Fingerprint: a.Fingerprint, Response: s.response}
	if s.running() {
		rec.LeaseLeft = s.until - s.now
	}
	return rec
}

func (s *leaseStore) extend(token int, lease time.Duration, bug string) error {
	if token != s.token && bug != "any claim extends" || s.released || s.response != nil {
		return idempotency.ErrClaimLost
	}
	s.until = s.now + lease
	return nil
}

func (s *leaseStore) complete(token int, resp idempotency.Response, bug string) error {
	if token != s.token && bug != "any claim completes" || s.released {
		return idempotency.ErrClaimLost
	}
	if s.response == nil || token != s.token {
		s.response = &resp
	}
	return nil
}

func (s *leaseStore) release(token int, bug string) error {
	if token != s.token && bug != "any claim releases" || s.response != nil {
		return idempotency.ErrClaimLost
	}
	s.released = true
	return nil
}
