package idempotencytest

import (
	"context"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// resolverBugs names the faults in the resolver of the reference store, by a case that must fail for them.
var resolverBugs = map[string][]string{
	"resolve/happened":                     {"resolving does nothing", "resolved answer has no note", "resolving keeps the lifetime"},
	"resolve/happened, without the answer": {"resolved answer is not omitted"},
	"resolve/not happened":                 {"resolving forgets", "resolving frees the key", "note of a resolution is lost"},
	"resolve/steps":                        {"note is a step"},
	"resolve/again":                        {"first resolution counts"},
	"resolve/late owner":                   {"resolving leaves the claim"},
	"resolve/by digest":                    {"digests are not found"},
	"resolve/running":                      {"running is resolved"},
	"resolve/taken over":                   {"attempt is not compared"},
	"resolve/decided":                      {"released is resolved", "completed is resolved"},
	"resolve/no record":                    {"resolving nothing succeeds"},
	"resolve/new operation":                {"time of creation is not compared"},
	"resolve/during Begin":                 {"resolving checks, then writes"},
	"resolve/during Complete":              {"resolving checks, then writes"},
	"resolve/twice at once":                {"resolving checks, then writes"},
}

// TestResolverBugs shows that each of the seeded bugs is caught by the case that is meant for it, and that each case has one.
func TestResolverBugs(t *testing.T) {
	unproven := names(resolverCasesFor(leased))
	for caughtBy, bugs := range resolverBugs {
		delete(unproven, caughtBy)
		for _, bug := range bugs {
			t.Run(caughtBy+" "+bug, func(t *testing.T) {
				t.Parallel()
				newStore := func() idempotency.Store { return newReference(bug) }
				if bug == "note is a step" {
					newStore = func() idempotency.Store { return noteAsStep{newMemory()} }
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
	return failures(t, resolverCasesFor(leased), func() subject { return subject{store: newStore(), kind: leased} }, names)
}

func newMemory() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// noteAsStep shows the note of a resolution as if it were a step.
type noteAsStep struct{ *idempotency.MemoryStore }

func (s noteAsStep) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	entry, err := s.MemoryStore.Inspect(ctx, key)
	if entry.Note != "" {
		entry.Steps = append(entry.Steps, idempotency.StepSize{Name: idempotency.ResolutionNote, Bytes: len(entry.Note)})
	}
	return entry, err
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
	if resolution.Response == nil {
		e.released = true
		if e.note == "" || !r.has("first resolution counts") {
			e.note = resolution.Note
		}
		if r.has("note of a resolution is lost") {
			e.note = ""
		}
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
