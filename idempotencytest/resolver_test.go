package idempotencytest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// resolverBugs maps the name of a case to the bugs of referenceStore, or of stepBugs, that the case must find.
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
	"resolve/reason":                    {"reason outlives the resolution"},
	"resolve/steps":                     {"answer leaves the steps"},
	"resolve/steps that were begun":     {"marks stay", "marks beyond the entry are removed"},
	"resolve/again":                     {"first resolution counts"},
	"resolve/another operation":         {"resolution outlives the record"},
	"resolve/late owner":                {"resolving leaves the claim"},
	"resolve/by operation":              {"operations are not found"},
	"resolve/running":                   {"running is resolved"},
	"resolve/taken over":                {"attempt is not compared"},
	"resolve/decided":                   {"released is resolved", "completed is resolved"},
	"resolve/no record":                 {"resolving nothing succeeds"},
	"resolve/new operation":             {"time of creation is not compared"},
	"resolve/during Begin":              {"resolving checks, then writes"},
	"resolve/during Complete":           {"resolving checks, then writes"},
	"resolve/twice at once":             {"resolving checks, then writes"},
}

// stepBugs returns stores with checkpoints by the name of their bug, because referenceStore has no checkpoints.
var stepBugs = map[string]func() idempotency.Store{
	"answer leaves the steps":            func() idempotency.Store { return stepKeepingStore{newPlainMemoryStore()} },
	"marks stay":                         func() idempotency.Store { return markKeepingStore{newPlainMemoryStore()} },
	"marks beyond the entry are removed": func() idempotency.Store { return markRemovingStore{newPlainMemoryStore()} },
}

// TestResolverBugs checks that each case finds its seeded bugs, and that each case has a bug.
func TestResolverBugs(t *testing.T) {
	checkSeededBugs(t, resolverCases(), resolverBugs, func(t *testing.T, bug, caughtBy string) error {
		newStore := func() idempotency.Store { return newReferenceStore(bug) }
		if newStepStore, ok := stepBugs[bug]; ok {
			newStore = newStepStore
		}
		return findResolverViolations(t, newStore, caughtBy)[caughtBy]
	})
}

// TestNoFalseAlarmsOfResolvers checks that correct resolvers pass.
func TestNoFalseAlarmsOfResolvers(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":    func() idempotency.Store { return newPlainMemoryStore() },
		"reference": func() idempotency.Store { return newReferenceStore("") },
		"sealed":    func() idempotency.Store { return mustSeal(t, newPlainMemoryStore()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, err := range findResolverViolations(t, newStore) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func findResolverViolations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	return findFailures(t, resolverCases(), func() subject { return subject{store: newStore()} }, names)
}

func newPlainMemoryStore() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// stepKeepingStore shows a step of a completed operation.
type stepKeepingStore struct{ *idempotency.MemoryStore }

func (s stepKeepingStore) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	entry, err := s.MemoryStore.Inspect(ctx, key)
	if entry.State == idempotency.StateCompleted {
		entry.Steps = []idempotency.StepSize{{Name: "charge"}}
	}
	return entry, err
}

// markKeepingStore removes no marks of begun steps when an operation is resolved.
type markKeepingStore struct{ *idempotency.MemoryStore }

func (s markKeepingStore) Resolve(ctx context.Context, entry idempotency.Entry, r idempotency.Resolution) error {
	entry.Steps = nil
	return s.MemoryStore.Resolve(ctx, entry, r)
}

// markRemovingStore removes all marks of begun steps when an operation is resolved, also marks that the entry does not
// list.
type markRemovingStore struct{ *idempotency.MemoryStore }

func (s markRemovingStore) Resolve(ctx context.Context, entry idempotency.Entry, r idempotency.Resolution) error {
	if now, err := s.Inspect(ctx, entry.Key); err == nil {
		entry.Steps = now.Steps
	}
	return s.MemoryStore.Resolve(ctx, entry, r)
}

var _ idempotency.Resolver = (*referenceStore)(nil)

// InspectOperation implements [idempotency.Inspector].
func (r *referenceStore) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	r.mu.Lock()
	var found idempotency.Key
	for key := range r.entries {
		if key.OperationID() == operation && !r.hasBug("operations are not found") {
			found = key
		}
	}
	r.mu.Unlock()
	return r.Inspect(ctx, found)
}

// Resolve implements [idempotency.Resolver].
func (r *referenceStore) Resolve(_ context.Context, asked idempotency.Entry, resolution idempotency.Resolution) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	e := r.findEntry(asked.Key, now)
	if e == nil {
		if r.hasBug("resolving nothing succeeds") {
			return nil
		}
		return idempotency.ErrNoRecord
	}
	if err := r.checkResolvable(r.describeEntry(asked.Key, e, now), asked); err != nil {
		return err
	}
	if r.hasBug("resolving checks, then writes") {
		r.yieldLock()
	}
	switch {
	case r.hasBug("resolving does nothing"):
		return nil
	case r.hasBug("resolving forgets"):
		delete(r.entries, asked.Key)
		return nil
	case !r.hasBug("resolving leaves the claim"):
		e.owner = &referenceClaim{store: r, key: asked.Key, claimed: e.owner.claimed}
	}
	if r.hasBug("resolving frees the key") {
		e.Fingerprint = otherRequest.Fingerprint
	}
	if !r.hasBug("resolving keeps the lifetime") {
		e.expiresAt = now.Add(resolution.TTL)
	} else {
		e.expiresAt = now.Add(2 * resolution.TTL)
	}
	e.leaseEnd = now
	if !r.hasBug("reason outlives the resolution") {
		e.endReason = ""
	}
	r.keepResolution(e, resolution.Resolved(asked))
	if resolution.Response == nil {
		e.isReleased = true
		return nil
	}
	resp := resolution.Response.Clone()
	switch {
	case r.hasBug("resolved answer has no note"):
		resp.Note = ""
	case r.hasBug("resolved answer is not omitted"):
		resp.Omitted = false
	}
	e.Response, e.isReleased = &resp, false
	return nil
}

// keepResolution stores the resolution of e.
func (r *referenceStore) keepResolution(e *entry, resolved idempotency.Resolved) {
	switch {
	case r.hasBug("resolution is lost"), e.resolved != nil && r.hasBug("first resolution counts"):
		return
	case r.hasBug("resolution is another one"):
		resolved.Happened = false
	case r.hasBug("reason is cut"):
		resolved.Reason = resolved.Reason[:min(255, len(resolved.Reason))]
	}
	e.resolved, r.resolved = &resolved, &resolved
}

// checkResolvable returns the error of Resolve: nil if the record have may be resolved by a caller who has the entry
// asked.
func (r *referenceStore) checkResolvable(have, asked idempotency.Entry) error {
	switch {
	case have.State == idempotency.StateRunning && !r.hasBug("running is resolved"):
		return idempotency.ErrInProgress
	case have.State == idempotency.StateReleased && r.hasBug("released is resolved"),
		have.State == idempotency.StateCompleted && r.hasBug("completed is resolved"),
		have.State == idempotency.StateRunning:
		return nil
	case have.State != idempotency.StateAbandoned,
		have.Attempt != asked.Attempt && !r.hasBug("attempt is not compared"),
		!have.Created.Equal(asked.Created) && !r.hasBug("time of creation is not compared"):
		return idempotency.ErrEntryChanged
	}
	return nil
}
