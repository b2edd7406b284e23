package idempotencytest

import (
	"context"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// resolverBugs names the faults in the resolver of the reference store, by a case that must fail for them.
var resolverBugs = map[string][]string{
	"resolve/happened": {
		"resolving does nothing", "resolved answer has no note", "resolving keeps the lifetime", "resolution is another one",
	},
	"resolve/happened, without the answer": {"resolved answer is not omitted"},
	"resolve/not happened":                 {"resolving forgets", "resolving frees the key", "resolution is lost"},
	"resolve/who and why": {
		"claiming forgets the resolution", "completing forgets the resolution", "note of a handler is the reason",
	},
	"resolve/who and why, visible text": {"reason is cut"},
	"resolve/steps":                     {"answer leaves the steps"},
	"resolve/steps that were begun":     {"marks stay", "marks are removed that nobody has seen"},
	"resolve/again":                     {"first resolution counts"},
	"resolve/another operation":         {"resolution outlives the record"},
	"resolve/late owner":                {"resolving leaves the claim"},
	"resolve/by digest":                 {"digests are not found"},
	"resolve/running":                   {"running is resolved"},
	"resolve/taken over":                {"attempt is not compared"},
	"resolve/decided":                   {"released is resolved", "completed is resolved"},
	"resolve/no record":                 {"resolving nothing succeeds"},
	"resolve/new operation":             {"time of creation is not compared"},
	"resolve/during Begin":              {"resolving checks, then writes"},
	"resolve/during Complete":           {"resolving checks, then writes"},
	"resolve/twice at once":             {"resolving checks, then writes"},
}

// stepBugs are faults of a store that keeps checkpoints, which the reference store does not.
var stepBugs = map[string]func() idempotency.Store{
	"answer leaves the steps":                func() idempotency.Store { return leavesSteps{newMemory()} },
	"marks stay":                             func() idempotency.Store { return leavesMarks{newMemory()} },
	"marks are removed that nobody has seen": func() idempotency.Store { return seesMarks{newMemory()} },
}

// TestResolverBugs shows that each of the seeded bugs is caught by the case that is meant for it, and that each case has one.
func TestResolverBugs(t *testing.T) {
	unproven := names(resolverCases())
	for caughtBy, bugs := range resolverBugs {
		delete(unproven, caughtBy)
		for _, bug := range bugs {
			t.Run(caughtBy+" "+bug, func(t *testing.T) {
				t.Parallel()
				newStore := func() idempotency.Store { return newReference(bug) }
				if buggy, ok := stepBugs[bug]; ok {
					newStore = buggy
				}
				err := resolverViolations(t, newStore, caughtBy)[caughtBy]
				if err == nil {
					t.Errorf("not caught by %q", caughtBy)
				}
				t.Log(err)
			})
		}
	}
	for name := range unproven {
		t.Errorf("there is no bug for %q to catch", name)
	}
}

// TestNoFalseAlarmsOfResolvers shows that correct resolvers pass.
func TestNoFalseAlarmsOfResolvers(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":    func() idempotency.Store { return newMemory() },
		"reference": func() idempotency.Store { return newReference("") },
		"sealed":    func() idempotency.Store { return mustSeal(t, newMemory()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, err := range resolverViolations(t, newStore) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func resolverViolations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	return failures(t, resolverCases(), func() subject { return subject{store: newStore()} }, names)
}

func newMemory() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// leavesSteps shows a step of an operation that has its answer.
type leavesSteps struct{ *idempotency.MemoryStore }

func (s leavesSteps) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	entry, err := s.MemoryStore.Inspect(ctx, key)
	if entry.State == idempotency.StateCompleted {
		entry.Steps = []idempotency.StepSize{{Name: "charge"}}
	}
	return entry, err
}

// leavesMarks removes no mark.
type leavesMarks struct{ *idempotency.MemoryStore }

func (s leavesMarks) Resolve(ctx context.Context, entry idempotency.Entry, r idempotency.Resolution) error {
	entry.Steps = nil
	return s.MemoryStore.Resolve(ctx, entry, r)
}

// seesMarks removes every mark that is there when an operation is resolved.
type seesMarks struct{ *idempotency.MemoryStore }

func (s seesMarks) Resolve(ctx context.Context, entry idempotency.Entry, r idempotency.Resolution) error {
	if now, err := s.Inspect(ctx, entry.Key); err == nil {
		entry.Steps = now.Steps
	}
	return s.MemoryStore.Resolve(ctx, entry, r)
}

var _ idempotency.Resolver = (*reference)(nil)

// InspectDigest implements [idempotency.Resolver].
func (r *reference) InspectDigest(ctx context.Context, digest [32]byte) (idempotency.Entry, error) {
	r.mu.Lock()
	var found idempotency.Key
	for key := range r.entries {
		if key.Digest() == digest && !r.has("digests are not found") {
			found = key
		}
	}
	r.mu.Unlock()
	return r.Inspect(ctx, found)
}

// Resolve implements [idempotency.Resolver].
func (r *reference) Resolve(_ context.Context, asked idempotency.Entry, resolution idempotency.Resolution) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	e := r.find(asked.Key, now)
	if e == nil {
		if r.has("resolving nothing succeeds") {
			return nil
		}
		return idempotency.ErrNoRecord
	}
	if err := r.unresolvable(r.entry(asked.Key, e, now), asked); err != nil {
		return err
	}
	if r.has("resolving checks, then writes") {
		r.pause()
	}
	switch {
	case r.has("resolving does nothing"):
		return nil
	case r.has("resolving forgets"):
		delete(r.entries, asked.Key)
		return nil
	case !r.has("resolving leaves the claim"):
		e.owner = &referenceClaim{store: r, key: asked.Key, claimed: e.owner.claimed}
	}
	if r.has("resolving frees the key") {
		e.Fingerprint = another.Fingerprint
	}
	if !r.has("resolving keeps the lifetime") {
		e.ttl = now.Add(resolution.TTL)
	} else {
		e.ttl = now.Add(2 * resolution.TTL)
	}
	e.lease = now
	r.keep(e, resolution.Resolved(asked))
	if resolution.Response == nil {
		e.released = true
		return nil
	}
	resp := resolution.Response.Clone()
	switch {
	case r.has("resolved answer has no note"):
		resp.Note = ""
	case r.has("resolved answer is not omitted"):
		resp.Omitted = false
	}
	e.Response, e.released = &resp, false
	return nil
}

// keep keeps who has resolved an operation, and why.
func (r *reference) keep(e *entry, resolved idempotency.Resolved) {
	switch {
	case r.has("resolution is lost"), e.resolved != nil && r.has("first resolution counts"):
		return
	case r.has("resolution is another one"):
		resolved.Happened = false
	case r.has("reason is cut"):
		resolved.Reason = resolved.Reason[:min(255, len(resolved.Reason))]
	}
	e.resolved, r.resolved = &resolved, &resolved
}

// unresolvable returns why an entry is not resolved.
func (r *reference) unresolvable(have, asked idempotency.Entry) error {
	switch {
	case have.State == idempotency.StateRunning && !r.has("running is resolved"):
		return idempotency.ErrInProgress
	case have.State == idempotency.StateReleased && r.has("released is resolved"),
		have.State == idempotency.StateCompleted && r.has("completed is resolved"),
		have.State == idempotency.StateRunning:
		return nil
	case have.State != idempotency.StateAbandoned,
		have.Attempt != asked.Attempt && !r.has("attempt is not compared"),
		!have.Created.Equal(asked.Created) && !r.has("time of creation is not compared"):
		return idempotency.ErrEntryChanged
	}
	return nil
}
