package idempotencytest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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
	if err := probe(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runAll(t, "resolver", resolverCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

func resolverCases() []testCase { return slices.Concat(resolveCases, resolveRaceCases) }

// found is the answer of an operator, with a note that is not about who has resolved the operation.
func found() idempotency.Response {
	resp := sample()
	resp.Note = "charge ch_17"
	return resp
}

// happened is the resolution of an operator who has found the answer.
func happened(resp idempotency.Response) idempotency.Resolution {
	return idempotency.Resolution{Response: &resp, Operator: "alice", Reason: "found at the provider", At: someTime, TTL: long}
}

func notHappened(operator, reason string) idempotency.Resolution {
	return idempotency.Resolution{Operator: operator, Reason: reason, At: someTime, TTL: long}
}

// someTime is one in the microseconds that a store keeps.
var someTime = time.Date(2026, 11, 21, 10, 5, 29, 123456000, time.UTC)

var resolveCases = []testCase{{
	name: "resolve/happened",
	rule: "An operation that has happened is completed: its answer is replayed, and the request is told apart from others.",
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), happened(found()))
		t.replays(own, found())
		seen := t.inspectAs(idempotency.StateCompleted, own)
		t.hasAnswer(seen, found())
		t.isKeptFor(seen, long, own.asked, seen.asked)
		t.isResolved(seen, own, happened(found()))
	},
}, {
	name: "resolve/happened, without the answer",
	rule: "An operation that has happened may have an answer of which only the status is known.",
	check: func(t *trial) {
		own := t.lapsed()
		resp := idempotency.Response{Status: 201, Omitted: true, Note: "charge ch_17"}
		t.resolve(t.abandoned(own), happened(resp))
		t.replays(own, resp)
	},
}, {
	name: "resolve/not happened",
	rule: "An operation that has not happened is released: the same request runs it as the next attempt, another is refused.",
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), notHappened("bob", "no charge"))
		seen := t.inspectAs(idempotency.StateReleased, own)
		t.isResolved(seen, own, notHappened("bob", "no charge"))
		t.isKeptFor(seen, long, own.asked, seen.asked)
		t.isAbandoned(t.refused(another), own)
		next := t.next(own, request)
		t.runs(next)
		t.complete(next, receipt("after all"))
		t.replays(next, receipt("after all"))
	},
}, {
	name: "resolve/who and why",
	rule: "Who has resolved an operation, and why, stays in the record while later attempts run, fail and complete. A note " +
		"of a handler is something else.",
	check: func(t *trial) {
		own, verdict := t.lapsed(), notHappened("bob", "no charge")
		t.resolve(t.abandoned(own), verdict)
		own2 := t.next(own, request)
		t.isResolved(t.inspectAs(idempotency.StateRunning, own2), own, verdict)
		t.release(own2)
		t.isResolved(t.inspectAs(idempotency.StateReleased, own2), own, verdict)
		own3 := t.nextLapsed(own2, request)
		t.isResolved(t.inspectAs(idempotency.StateAbandoned, own3), own, verdict)
		own4 := t.extend(t.next(own3, takingOver(request)), long)
		resp := noted("bob: it is all right")
		t.complete(own4, resp)
		seen := t.inspectAs(idempotency.StateCompleted, own4)
		t.hasAnswer(seen, resp)
		t.isResolved(seen, own, verdict)
		t.replays(own4, resp)
	},
}, {
	name: "resolve/who and why, visible text",
	rule: "Operator and reason are kept byte for byte. Neither need be there.",
	check: func(t *trial) {
		for _, verdict := range []idempotency.Resolution{
			notHappened("", ""), notHappened("Zoë", `"日本語" \ 'a'`), notHappened(strings.Repeat("x", 255), strings.Repeat("é", 500)),
		} {
			t := t.at(freshKey())
			own := t.lapsed()
			t.resolve(t.abandoned(own), verdict)
			t.isResolved(t.inspectAs(idempotency.StateReleased, own), own, verdict)
		}
	},
}, {
	name: "resolve/steps",
	rule: "Checkpoints stay if the operation has not happened. The answer removes them.",
	check: func(t *trial) {
		own := t.lapsed()
		if _, ok := own.claim.(idempotency.Checkpointer); !ok {
			return
		}
		t.stores(own, "charge", "17", "17")
		t.resolve(t.abandoned(own), notHappened("bob", "the first"))
		t.isResolved(t.inspectAs(idempotency.StateReleased, own), own, notHappened("bob", "the first"))
		next := t.nextLapsed(own, request)
		t.shows("charge")
		last := t.nextLapsed(next, takingOver(request))
		t.has(last, map[string]string{"charge": "17"})
		t.resolve(t.abandoned(last), happened(found()))
		t.shows()
		t.isResolved(t.inspectAs(idempotency.StateCompleted, last), last, happened(found()))
	},
}, {
	name: "resolve/steps that were begun",
	rule: "Of an operation that has not happened, the marks are removed that the entry names and that have no result. A mark " +
		"stays which the owner has stored since.",
	check: func(t *trial) {
		own := t.lapsed()
		if _, ok := own.claim.(idempotency.Checkpointer); !ok || !t.canInspect() {
			return
		}
		for _, name := range []string{"charge?", "charge", "mail?", "reserve"} {
			t.stores(own, name, "of "+name, "of "+name)
		}
		entry := t.abandoned(own)
		t.stores(own, "ship?", "of ship?", "of ship?")
		t.resolve(entry, notHappened("bob", "no mail"))
		t.shows("charge", "charge?", "reserve", "ship?")
		t.has(t.next(own, request), map[string]string{
			"charge": "of charge", "charge?": "of charge?", "reserve": "of reserve", "ship?": "of ship?",
		})

		t = t.at(freshKey())
		own = t.lapsed()
		t.stores(own, "mail?", "of mail?", "of mail?")
		t.resolve(t.abandoned(own), notHappened("bob", "no mail"))
		t.shows()
		own = t.next(own, request)
		t.has(own, nil)
		t.stores(own, "mail?", "again", "again")
	},
}, {
	name: "resolve/again",
	rule: "An operation that is uncertain again is resolved again: the last resolution counts.",
	check: func(t *trial) {
		own := t.lapsed()
		t.resolve(t.abandoned(own), notHappened("bob", "the first"))
		own = t.nextLapsed(own, request)
		second := notHappened("carol", "the second, which is longer")
		t.resolve(t.abandoned(own), second)
		t.isResolved(t.inspectAs(idempotency.StateReleased, own), own, second)
		own = t.nextLapsed(own, request)
		t.resolve(t.abandoned(own), happened(found()))
		seen := t.inspectAs(idempotency.StateCompleted, own)
		t.hasAnswer(seen, found())
		t.isResolved(seen, own, happened(found()))
	},
}, {
	name: "resolve/another operation",
	rule: "A new operation with the key was resolved by nobody.",
	check: func(t *trial) {
		own, brief := t.lapsed(), notHappened("bob", "no charge")
		brief.TTL = short
		t.resolve(t.abandoned(own), brief)
		t.until("the record expires", func() bool {
			_, err := t.inspector().Inspect(t.ctx, t.key)
			return errors.Is(err, idempotency.ErrNoRecord)
		})
		own = t.claim(request)
		t.isUnresolved(t.inspectAs(idempotency.StateRunning, own))
		t.complete(own, receipt("of another operation"))
		t.isUnresolved(t.inspectAs(idempotency.StateCompleted, own))

		t = t.at(freshKey())
		own = t.lapsed()
		t.resolve(t.abandoned(own), happened(found()))
		t.forget(t.inspect().Entry)
		t.later()
		own = t.claim(request)
		t.isUnresolved(t.inspectAs(idempotency.StateRunning, own))
	},
}, {
	name: "resolve/late owner",
	rule: "The owner of an operation that was resolved has lost its claim. It changes nothing any more.",
	check: func(t *trial) {
		old := t.lapsed()
		t.resolve(t.abandoned(old), happened(found()))
		t.loses(old)
		t.replays(old, found())

		t = t.at(freshKey())
		old = t.lapsed()
		t.resolve(t.abandoned(old), notHappened("bob", "no charge"))
		t.loses(old)
		if _, ok := old.claim.(idempotency.Checkpointer); ok {
			t.isFenced(old)
		}
		t.isResolved(t.inspectAs(idempotency.StateReleased, old), old, notHappened("bob", "no charge"))
		t.runs(t.next(old, request))
	},
}, {
	name: "resolve/by digest",
	rule: "Whoever knows only the digest of the key finds the operation, and resolves it.",
	check: func(t *trial) {
		_, err := t.resolver().InspectDigest(t.ctx, t.key.Digest())
		t.says("InspectDigest", err, idempotency.ErrNoRecord)
		own := t.lapsed()
		t.resolve(t.byDigest(idempotency.StateAbandoned, own), happened(found()))
		seen := t.byDigest(idempotency.StateCompleted, own)
		if diff := difference(*seen.Response, found()); diff != "" {
			t.failf("the response is not that of the operator: %s", diff)
		}
		t.isResolved(inspected{Entry: seen}, own, happened(found()))
	},
}, {
	name: "resolve/running",
	rule: "An operation that runs is never resolved, whatever the entry says: ErrInProgress.",
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
	check: func(t *trial) {
		own := t.lapsed()
		entry := t.abandoned(own)
		own = t.nextLapsed(own, takingOver(request))
		t.refuses(entry, idempotency.ErrEntryChanged)
		t.isUnresolved(inspected{Entry: t.abandoned(own)})
	},
}, {
	name: "resolve/decided",
	rule: "What was completed, released or resolved is not resolved: ErrEntryChanged.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("kept"))
		t.refuses(t.inspectAs(idempotency.StateCompleted, own).Entry, idempotency.ErrEntryChanged)
		t.replays(own, receipt("kept"))
		t = t.at(freshKey())
		own = t.claim(request)
		t.release(own)
		t.refuses(t.inspectAs(idempotency.StateReleased, own).Entry, idempotency.ErrEntryChanged)

		t = t.at(freshKey())
		own = t.lapsed()
		entry := t.abandoned(own)
		t.resolve(entry, notHappened("carol", "no charge"))
		t.refuses(entry, idempotency.ErrEntryChanged)
		t.isResolved(t.inspectAs(idempotency.StateReleased, own), own, notHappened("carol", "no charge"))
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
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.abandoned(own)
			var one, other error
			atOnce(round, func() { one = t.resolver().Resolve(t.ctx, entry, happened(found())) }, func() {
				other = t.resolver().Resolve(t.ctx, entry, notHappened("bob", "no charge"))
			})
			if one == nil {
				t.says("Resolve", other, idempotency.ErrEntryChanged)
				t.replays(own, found())
				continue
			}
			t.says("Resolve", one, idempotency.ErrEntryChanged)
			t.succeeds("Resolve", other)
			t.isResolved(t.inspectAs(idempotency.StateReleased, own), own, notHappened("bob", "no charge"))
		}
	},
}}

// The steps of a Resolver.

func (t *trial) resolver() idempotency.Resolver { return t.store.(idempotency.Resolver) }

func (t *trial) resolve(entry idempotency.Entry, resolution idempotency.Resolution) {
	t.succeeds("Resolve", t.resolver().Resolve(t.ctx, entry, resolution))
}

// abandoned returns the entry of an operation, which must be abandoned.
func (t *trial) abandoned(own answer) idempotency.Entry {
	return t.inspectAs(idempotency.StateAbandoned, own).Entry
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
	t.says("Resolve", t.resolver().Resolve(t.ctx, entry, notHappened("bob", "no charge")), want)
}

// isResolved checks what an entry says of the resolution that ended the attempt of own.
func (t *trial) isResolved(seen inspected, own answer, r idempotency.Resolution) {
	want := idempotency.Resolved{
		Happened: r.Response != nil, Attempt: own.Attempt, At: r.At, Operator: r.Operator, Reason: r.Reason,
	}
	switch got := seen.Resolved; {
	case got == nil:
		t.failf("the entry does not say that %q has resolved the operation", r.Operator)
	case !got.At.Equal(want.At):
		t.failf("the operation was resolved at %v, not at %v", got.At, want.At)
	case got.Happened != want.Happened, got.Attempt != want.Attempt, got.Operator != want.Operator, got.Reason != want.Reason:
		t.failf("of the resolution %+v, the entry says %+v", want, *got)
	}
}

func (t *trial) isUnresolved(seen inspected) {
	if seen.Resolved != nil {
		t.failf("the entry says that the operation was resolved: %+v", *seen.Resolved)
	}
}

// nextLapsed claims the next attempt at the operation of own, and returns when its lease has run out.
func (t *trial) nextLapsed(own answer, a idempotency.ClaimRequest) answer {
	next := t.next(own, lasting(a, short, long))
	t.until("the lease lapses", func() bool { return t.inspect().State == idempotency.StateAbandoned })
	return next
}
