package idempotencytest

import (
	"slices"
	"testing"

	"github.com/idempotency-go/idempotency"
)

// RunResolver tests stores that implement [idempotency.Resolver]. NewStore returns the stores. Each rule has a subtest,
// which has its own store, as in [Run]. RunResolver does not repeat the rules of Run and [RunInspector], which the stores
// must keep, too. A store needs what it needs for Run.
//
// The stores may share a database, because every subtest uses its own keys.
func RunResolver(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	if _, ok := store.(idempotency.Resolver); !ok {
		t.Fatalf("a %T is no idempotency.Resolver", store)
	}
	kind, err := probe(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	runAll(t, "resolver", resolverCasesFor(kind), func(t *testing.T) subject {
		return subject{store: newStore(t), kind: kind}
	})
}

func resolverCasesFor(kind kind) []testCase {
	return only(kind, slices.Concat(resolveCases, resolveRaceCases))
}

// found is the answer of an operator.
func found() idempotency.Response {
	resp := sample()
	resp.Note = "alice: found at the provider"
	return resp
}

func happened(resp idempotency.Response) idempotency.Resolution {
	return idempotency.Resolution{Response: &resp, TTL: long}
}

func notHappened(note string) idempotency.Resolution {
	return idempotency.Resolution{Note: note, TTL: long}
}

var resolveCases = []testCase{{
	name: "resolve/happened",
	rule: "An operation that has happened is completed: its answer is replayed, and the request is told apart from others.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), happened(found()))
		t.replays(own, found())
		seen := t.inspectAs(idempotency.StateCompleted, own)
		t.hasAnswer(seen, found())
		t.isKeptFor(seen, long, own.asked, seen.asked)
	},
}, {
	name: "resolve/happened, without the answer",
	rule: "An operation that has happened may have an answer of which only the status is known.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		resp := idempotency.Response{Status: 201, Omitted: true, Note: "alice: charged"}
		t.resolve(t.abandoned(own), happened(resp))
		t.replays(own, resp)
	},
}, {
	name: "resolve/not happened",
	rule: "An operation that has not happened is released: the same request runs it as the next attempt, another is refused.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), notHappened("bob: no charge"))
		seen := t.inspect()
		t.isReleased(seen, own, "bob: no charge")
		t.isKeptFor(seen, long, own.asked, seen.asked)
		t.isAbandoned(t.refused(another), own)
		next := t.next(own, request)
		t.runs(next)
		t.complete(next, receipt("after all"))
		t.replays(next, receipt("after all"))
	},
}, {
	name: "resolve/steps",
	rule: "Checkpoints stay if the operation has not happened, and the note is none of them. The answer removes them.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		if _, ok := own.claim.(idempotency.Checkpointer); !ok {
			return
		}
		t.stores(own, "charge", "17", "17")
		t.resolve(t.abandoned(own), notHappened("bob: the first"))
		t.isReleased(t.inspect(), own, "bob: the first")
		next := t.nextLapsed(own, request)
		t.has(t.next(next, takingOver(request)), map[string]string{"charge": "17"})
		next.Attempt++
		last := t.inspect().Entry
		if len(last.Steps) != 1 || last.Steps[0].Name != "charge" || last.Note != "bob: the first" {
			t.failf("the steps are %v, and the note is %q", last.Steps, last.Note)
		}
	},
}, {
	name: "resolve/again",
	rule: "An operation that is uncertain again is resolved again: the last note counts, and the answer has its own.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), notHappened("bob: the first"))
		own = t.nextLapsed(own, request)
		t.resolve(t.abandoned(own), notHappened("carol: the second, which is longer"))
		t.isReleased(t.inspect(), own, "carol: the second, which is longer")
		own = t.nextLapsed(own, request)
		t.resolve(t.abandoned(own), happened(found()))
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), found())
	},
}, {
	name: "resolve/late owner",
	rule: "The owner of an operation that was resolved has lost its claim. It changes nothing any more.",
	only: leased,
	check: func(t *trial) {
		old := t.lapsed()
		t.resolve(t.abandoned(old), happened(found()))
		t.loses(old)
		t.replays(old, found())

		t = t.at(freshKey())
		old = t.lapsed()
		t.resolve(t.abandoned(old), notHappened("bob: no charge"))
		t.loses(old)
		if _, ok := old.claim.(idempotency.Checkpointer); ok {
			t.isFenced(old)
		}
		t.isReleased(t.inspect(), old, "bob: no charge")
		t.runs(t.next(old, request))
	},
}, {
	name: "resolve/by digest",
	rule: "Whoever knows only the digest of the key finds the operation, and resolves it.",
	check: func(t *trial) {
		_, err := t.resolver().InspectDigest(t.ctx, t.key.Digest())
		t.says("InspectDigest", err, idempotency.ErrNoRecord)
		if t.kind == transactional {
			own := t.claim(request)
			t.complete(own, sample())
			t.byDigest(idempotency.StateCompleted, own)
			return
		}
		own := t.lapsed()
		t.resolve(t.byDigest(idempotency.StateAbandoned, own), happened(found()))
		seen := t.byDigest(idempotency.StateCompleted, own)
		if diff := difference(*seen.Response, found()); diff != "" {
			t.failf("the response is not that of the operator: %s", diff)
		}
	},
}, {
	name: "resolve/running",
	rule: "An operation that runs is never resolved, whatever the entry says: ErrInProgress.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		entry := t.abandoned(own)
		own = t.extend(own, long)
		t.refuses(entry, idempotency.ErrInProgress)
		t.runs(own)
		t.complete(own, receipt("kept"))
		t.replays(own, receipt("kept"))
	},
}, {
	name: "resolve/taken over",
	rule: "ErrEntryChanged says that the operation was tried again since, although that attempt was abandoned, too.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		entry := t.abandoned(own)
		own = t.nextLapsed(own, takingOver(request))
		t.refuses(entry, idempotency.ErrEntryChanged)
		t.abandoned(own)
	},
}, {
	name: "resolve/decided",
	rule: "What was completed, released or resolved is not resolved: ErrEntryChanged.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("kept"))
		t.refuses(t.inspectAs(idempotency.StateCompleted, own).Entry, idempotency.ErrEntryChanged)
		t.replays(own, receipt("kept"))
		if t.kind == transactional {
			return
		}
		t = t.at(freshKey())
		own = t.claim(request)
		t.release(own)
		t.refuses(t.inspectAs(idempotency.StateReleased, own).Entry, idempotency.ErrEntryChanged)

		t = t.at(freshKey())
		own = t.lapsed()
		entry := t.abandoned(own)
		t.resolve(entry, notHappened("bob: no charge"))
		t.refuses(entry, idempotency.ErrEntryChanged)
		t.isReleased(t.inspect(), own, "bob: no charge")
	},
}, {
	name: "resolve/no record",
	rule: "ErrNoRecord says that there is nothing to resolve.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, sample())
		entry := t.inspect().Entry
		t.forget(entry)
		t.refuses(entry, idempotency.ErrNoRecord)
		t.isFree()
	},
}, {
	name: "resolve/new operation",
	rule: "ErrEntryChanged says that another operation has the key since.",
	only: leased,
	check: func(t *trial) {
		entry := t.abandoned(t.lapsed())
		t.forget(entry)
		t.later()
		own := t.lapsed()
		t.refuses(entry, idempotency.ErrEntryChanged)
		t.abandoned(own)
	},
}}

var resolveRaceCases = []testCase{{
	name: "resolve/during Begin",
	rule: "When an operation is resolved while a request takes it over, one of the two has it.",
	only: leased,
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.abandoned(own)
			var resolved, failed error
			var got answer
			atOnce(round, func() { resolved = t.resolver().Resolve(t.ctx, entry, happened(found())) }, func() {
				got, failed = t.ask(t.ctx, takingOver(request))
			})
			t.keep(got)
			t.succeeds("Begin", failed)
			if got.claim == nil {
				t.succeeds("Resolve", resolved)
				t.replays(own, found())
				continue
			}
			t.isRefusedFor(resolved)
			own.Attempt++
			t.describes(got, own)
			t.complete(got, receipt("of the claim"))
			t.replays(own, receipt("of the claim"))
		}
	},
}, {
	name: "resolve/during Complete",
	rule: "When an operation is resolved while its owner completes it, one of the two answers counts, and both know which.",
	only: leased,
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.abandoned(own)
			var resolved, completed error
			atOnce(round, func() { resolved = t.resolver().Resolve(t.ctx, entry, happened(found())) }, func() {
				completed = own.claim.Complete(t.ctx, receipt("of a late owner"), long)
			})
			if resolved == nil {
				t.says("Complete", completed, idempotency.ErrClaimLost)
				t.replays(own, found())
				continue
			}
			t.says("Resolve", resolved, idempotency.ErrEntryChanged)
			t.succeeds("Complete", completed)
			t.replays(own, receipt("of a late owner"))
		}
	},
}, {
	name: "resolve/twice at once",
	rule: "Of two operators who decide otherwise at once, one decides.",
	only: leased,
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.abandoned(own)
			var one, other error
			atOnce(round, func() { one = t.resolver().Resolve(t.ctx, entry, happened(found())) }, func() {
				other = t.resolver().Resolve(t.ctx, entry, notHappened("bob: no charge"))
			})
			if one == nil {
				t.says("Resolve", other, idempotency.ErrEntryChanged)
				t.replays(own, found())
				continue
			}
			t.says("Resolve", one, idempotency.ErrEntryChanged)
			t.succeeds("Resolve", other)
			t.isReleased(t.inspect(), own, "bob: no charge")
		}
	},
}}

// The steps of a Resolver.

func (t *trial) resolver() idempotency.Resolver { return t.store.(idempotency.Resolver) }

func (t *trial) resolve(entry idempotency.Entry, resolution idempotency.Resolution) {
	t.succeeds("Resolve", t.resolver().Resolve(t.ctx, entry, resolution))
}

// abandoned returns the entry of an operation, which must be abandoned. It may have the note of an earlier resolution.
func (t *trial) abandoned(own answer) idempotency.Entry {
	entry := t.inspect().Entry
	bare := entry
	bare.Note = ""
	t.isEntry(bare, idempotency.StateAbandoned, own)
	return entry
}

// byDigest returns the entry that is found by the digest of the key alone.
func (t *trial) byDigest(state idempotency.State, own answer) idempotency.Entry {
	entry, err := t.resolver().InspectDigest(t.ctx, t.key.Digest())
	t.succeeds("InspectDigest", err)
	t.isEntry(entry, state, own)
	return entry
}

// refuses checks the error of both kinds of resolution.
func (t *trial) refuses(entry idempotency.Entry, want error) {
	t.says("Resolve", t.resolver().Resolve(t.ctx, entry, happened(found())), want)
	t.says("Resolve", t.resolver().Resolve(t.ctx, entry, notHappened("bob: no charge")), want)
}

// isReleased checks that an entry is that of an operation that has not happened.
func (t *trial) isReleased(seen inspected, own answer, note string) {
	if seen.Note != note {
		t.failf("the note is %q, not %q", seen.Note, note)
	}
	for _, step := range seen.Steps {
		if step.Name == idempotency.ResolutionNote {
			t.failf("the note is shown as a step")
		}
	}
	seen.Note = ""
	t.isEntry(seen.Entry, idempotency.StateReleased, own)
}

// nextLapsed claims the next attempt at the operation of own, and returns when its lease has run out.
func (t *trial) nextLapsed(own answer, a idempotency.ClaimRequest) answer {
	next := t.next(own, lasting(a, short, long))
	t.until("the lease lapses", func() bool { return t.inspect().State == idempotency.StateAbandoned })
	return next
}
