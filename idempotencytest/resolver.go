package idempotencytest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
)

// RunResolver tests stores that implement [idempotency.Resolver]. As [Run] does, RunResolver calls newStore for each
// rule, and tests the rule in a subtest. The stores must also pass Run and [RunInspector], whose rules RunResolver does
// not repeat, and need the same room as for Run.
//
// The stores may share a database, because every subtest uses its own keys.
func RunResolver(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	if _, ok := store.(idempotency.Resolver); !ok {
		t.Fatalf("a %T does not implement idempotency.Resolver", store)
	}
	if err := checkTwoClaims(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runCases(t, "resolver", resolverCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

func resolverCases() []testCase { return slices.Concat(resolveCases, resolveRaceCases) }

// operatorResponse returns the response that an operator has found, with a note that says nothing about the resolution.
func operatorResponse() idempotency.Response {
	resp := newSample()
	resp.Note = "charge ch_17"
	return resp
}

// asHappened returns the resolution of an operation that has happened, with its response.
func asHappened(resp idempotency.Response) idempotency.Resolution {
	return idempotency.Resolution{Response: &resp, Operator: "alice", Reason: "found at the provider", At: resolvedAt, TTL: long}
}

// asNotHappened returns the resolution of an operation that has not happened.
func asNotHappened(operator, reason string) idempotency.Resolution {
	return idempotency.Resolution{Operator: operator, Reason: reason, At: resolvedAt, TTL: long}
}

// resolvedAt is a time in whole microseconds, because a store may keep no smaller unit.
var resolvedAt = time.Date(2026, 11, 21, 10, 5, 29, 123456000, time.UTC)

var resolveCases = []testCase{{
	name: "resolve/happened",
	rule: "After Resolve as happened, the response is replayed, and other requests are still recognised by their " +
		"fingerprint.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(own), asHappened(operatorResponse()))
		t.checkReplay(own, operatorResponse())
		seen := t.inspectState(idempotency.StateCompleted, own)
		t.checkEntryResponse(seen, operatorResponse())
		t.checkRemaining(seen, long, own.calledAt, seen.calledAt)
		t.checkResolved(seen, own, asHappened(operatorResponse()))
	},
}, {
	name: "resolve/happened, without the answer",
	rule: "An operation that has happened can be resolved with a response of which only the status is known.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		resp := idempotency.Response{Status: 201, Omitted: true, Note: "charge ch_17"}
		t.resolveEntry(t.inspectAbandoned(own), asHappened(resp))
		t.checkReplay(own, resp)
	},
}, {
	name: "resolve/not happened",
	rule: "After Resolve as not happened, the operation is released: only the same request can claim the next attempt.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(own), asNotHappened("bob", "no charge"))
		seen := t.inspectState(idempotency.StateReleased, own)
		t.checkResolved(seen, own, asNotHappened("bob", "no charge"))
		t.checkRemaining(seen, long, own.calledAt, seen.calledAt)
		t.checkEndedWithoutResponse(t.readHeldRecord(otherRequest), own)
		next := t.claimNextAttempt(own, request)
		t.checkRunning(next)
		t.completeClaim(next, newReceipt("after all"))
		t.checkReplay(next, newReceipt("after all"))
	},
}, {
	name: "resolve/who and why",
	rule: "The record keeps operator and reason of a resolution while later attempts run, fail and complete. The note " +
		"of a handler does not replace the reason.",
	checkRule: func(t *trial) {
		own, resolution := t.claimUntilLapsed(), asNotHappened("bob", "no charge")
		t.resolveEntry(t.inspectAbandoned(own), resolution)
		own2 := t.claimNextAttempt(own, request)
		t.checkResolved(t.inspectState(idempotency.StateRunning, own2), own, resolution)
		t.releaseClaim(own2)
		t.checkResolved(t.inspectState(idempotency.StateReleased, own2), own, resolution)
		own3 := t.claimNextUntilLapsed(own2, request)
		t.checkResolved(t.inspectState(idempotency.StateAbandoned, own3), own, resolution)
		own4 := t.extendLease(t.claimNextAttempt(own3, withTakeOver(request)), long)
		resp := newSampleWithNote("bob: it is all right")
		t.completeClaim(own4, resp)
		seen := t.inspectState(idempotency.StateCompleted, own4)
		t.checkEntryResponse(seen, resp)
		t.checkResolved(seen, own, resolution)
		t.checkReplay(own4, resp)
	},
}, {
	name: "resolve/who and why, visible text",
	rule: "The store keeps every byte of operator and reason. Both may be empty.",
	checkRule: func(t *trial) {
		for _, resolution := range []idempotency.Resolution{
			asNotHappened("", ""), asNotHappened("Zoë", `"日本語" \ 'a'`), asNotHappened(strings.Repeat("x", 255), strings.Repeat("é", 500)),
		} {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			t.resolveEntry(t.inspectAbandoned(own), resolution)
			t.checkResolved(t.inspectState(idempotency.StateReleased, own), own, resolution)
		}
	},
}, {
	name: "resolve/reason",
	rule: "After Resolve, Inspect no longer shows why the attempt has ended.",
	checkRule: func(t *trial) {
		for _, resolution := range []idempotency.Resolution{asHappened(operatorResponse()), asNotHappened("bob", "no charge")} {
			t := t.withKey(newKey())
			own := t.claimKey(request)
			t.checkSuccess("Release", own.claim.Release(t.ctx, idempotency.Release{Abandoned: true, Reason: idempotency.EndPanicked}))
			t.resolveEntry(t.inspectAbandoned(own), resolution)
			t.checkReason("")
		}
	},
}, {
	name: "resolve/steps",
	rule: "Resolve as not happened keeps the checkpoints. Resolve as happened removes the checkpoints.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		if _, ok := own.claim.(idempotency.Checkpointer); !ok {
			return
		}
		t.storeCheckpoint(own, "charge", "17", "17")
		t.resolveEntry(t.inspectAbandoned(own), asNotHappened("bob", "the first"))
		t.checkResolved(t.inspectState(idempotency.StateReleased, own), own, asNotHappened("bob", "the first"))
		next := t.claimNextUntilLapsed(own, request)
		t.checkShownSteps("charge")
		last := t.claimNextUntilLapsed(next, withTakeOver(request))
		t.checkCheckpoints(last, map[string]string{"charge": "17"})
		t.resolveEntry(t.inspectAbandoned(last), asHappened(operatorResponse()))
		t.checkShownSteps()
		t.checkResolved(t.inspectState(idempotency.StateCompleted, last), last, asHappened(operatorResponse()))
	},
}, {
	name: "resolve/steps that were begun",
	rule: "Resolve as not happened removes each mark of a begun step that the entry lists, unless the step has a " +
		"result. A mark that the owner has stored since the entry was read stays.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		if _, ok := own.claim.(idempotency.Checkpointer); !ok || !t.canInspect() {
			return
		}
		for _, name := range []string{"charge?", "charge", "mail?", "reserve"} {
			t.storeCheckpoint(own, name, "of "+name, "of "+name)
		}
		entry := t.inspectAbandoned(own)
		t.storeCheckpoint(own, "ship?", "of ship?", "of ship?")
		t.resolveEntry(entry, asNotHappened("bob", "no mail"))
		t.checkShownSteps("charge", "charge?", "reserve", "ship?")
		t.checkCheckpoints(t.claimNextAttempt(own, request), map[string]string{
			"charge": "of charge", "charge?": "of charge?", "reserve": "of reserve", "ship?": "of ship?",
		})

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		t.storeCheckpoint(own, "mail?", "of mail?", "of mail?")
		t.resolveEntry(t.inspectAbandoned(own), asNotHappened("bob", "no mail"))
		t.checkShownSteps()
		own = t.claimNextAttempt(own, request)
		t.checkCheckpoints(own, nil)
		t.storeCheckpoint(own, "mail?", "again", "again")
	},
}, {
	name: "resolve/again",
	rule: "An operation that is abandoned again can be resolved again. The last resolution counts.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(own), asNotHappened("bob", "the first"))
		own = t.claimNextUntilLapsed(own, request)
		second := asNotHappened("carol", "the second, which is longer")
		t.resolveEntry(t.inspectAbandoned(own), second)
		t.checkResolved(t.inspectState(idempotency.StateReleased, own), own, second)
		own = t.claimNextUntilLapsed(own, request)
		t.resolveEntry(t.inspectAbandoned(own), asHappened(operatorResponse()))
		seen := t.inspectState(idempotency.StateCompleted, own)
		t.checkEntryResponse(seen, operatorResponse())
		t.checkResolved(seen, own, asHappened(operatorResponse()))
	},
}, {
	name: "resolve/another operation",
	rule: "A new operation with the same key has no resolution.",
	checkRule: func(t *trial) {
		own, shortResolution := t.claimUntilLapsed(), asNotHappened("bob", "no charge")
		shortResolution.TTL = short
		t.resolveEntry(t.inspectAbandoned(own), shortResolution)
		t.waitUntil("the record expires", func() bool {
			_, err := t.asInspector().Inspect(t.ctx, t.key)
			return errors.Is(err, idempotency.ErrNoRecord)
		})
		own = t.claimKey(request)
		t.checkUnresolved(t.inspectState(idempotency.StateRunning, own))
		t.completeClaim(own, newReceipt("of another operation"))
		t.checkUnresolved(t.inspectState(idempotency.StateCompleted, own))

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(own), asHappened(operatorResponse()))
		t.forgetRecord(t.inspectKey().Entry)
		t.waitForClock()
		own = t.claimKey(request)
		t.checkUnresolved(t.inspectState(idempotency.StateRunning, own))
	},
}, {
	name: "resolve/late owner",
	rule: "The owner of a resolved operation has lost its claim, and changes nothing.",
	checkRule: func(t *trial) {
		old := t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(old), asHappened(operatorResponse()))
		t.checkClaimLost(old)
		t.checkReplay(old, operatorResponse())

		t = t.withKey(newKey())
		old = t.claimUntilLapsed()
		t.resolveEntry(t.inspectAbandoned(old), asNotHappened("bob", "no charge"))
		t.checkClaimLost(old)
		if _, ok := old.claim.(idempotency.Checkpointer); ok {
			t.checkFenced(old)
		}
		t.checkResolved(t.inspectState(idempotency.StateReleased, old), old, asNotHappened("bob", "no charge"))
		t.checkRunning(t.claimNextAttempt(old, request))
	},
}, {
	name: "resolve/by operation",
	rule: "InspectOperation finds an operation by its ID. The entry can be resolved.",
	checkRule: func(t *trial) {
		_, err := t.asResolver().InspectOperation(t.ctx, t.key.OperationID())
		t.checkError("InspectOperation", err, idempotency.ErrNoRecord)
		own := t.claimUntilLapsed()
		t.resolveEntry(t.inspectByOperation(idempotency.StateAbandoned, own), asHappened(operatorResponse()))
		seen := t.inspectByOperation(idempotency.StateCompleted, own)
		if diff := describeDifference(*seen.Response, operatorResponse()); diff != "" {
			t.failf("the response differs from the response of the operator: %s", diff)
		}
		t.checkResolved(inspectedEntry{Entry: seen}, own, asHappened(operatorResponse()))
	},
}, {
	name: "resolve/running",
	rule: "A running operation is never resolved, even if the entry says abandoned: Resolve returns ErrInProgress.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		entry := t.inspectAbandoned(own)
		own = t.extendLease(own, long)
		t.checkResolveRefused(entry, idempotency.ErrInProgress)
		t.checkRunning(own)
		t.completeClaim(own, newReceipt("kept"))
		t.checkReplay(own, newReceipt("kept"))
	},
}, {
	name: "resolve/taken over",
	rule: "If a further attempt was abandoned since the entry was read, Resolve returns ErrEntryChanged.",
	checkRule: func(t *trial) {
		own := t.claimUntilLapsed()
		entry := t.inspectAbandoned(own)
		own = t.claimNextUntilLapsed(own, withTakeOver(request))
		t.checkResolveRefused(entry, idempotency.ErrEntryChanged)
		t.checkUnresolved(inspectedEntry{Entry: t.inspectAbandoned(own)})
	},
}, {
	name: "resolve/decided",
	rule: "If the operation was completed, released or resolved, Resolve returns ErrEntryChanged.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("kept"))
		t.checkResolveRefused(t.inspectState(idempotency.StateCompleted, own).Entry, idempotency.ErrEntryChanged)
		t.checkReplay(own, newReceipt("kept"))
		t = t.withKey(newKey())
		own = t.claimKey(request)
		t.releaseClaim(own)
		t.checkResolveRefused(t.inspectState(idempotency.StateReleased, own).Entry, idempotency.ErrEntryChanged)

		t = t.withKey(newKey())
		own = t.claimUntilLapsed()
		entry := t.inspectAbandoned(own)
		t.resolveEntry(entry, asNotHappened("carol", "no charge"))
		t.checkResolveRefused(entry, idempotency.ErrEntryChanged)
		t.checkResolved(t.inspectState(idempotency.StateReleased, own), own, asNotHappened("carol", "no charge"))
	},
}, {
	name: "resolve/no record",
	rule: "If the key has no record, Resolve returns ErrNoRecord.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newSample())
		entry := t.inspectKey().Entry
		t.forgetRecord(entry)
		t.checkResolveRefused(entry, idempotency.ErrNoRecord)
		t.checkNoRecord()
	},
}, {
	name: "resolve/new operation",
	rule: "If the key belongs to a new operation since the entry was read, Resolve returns ErrEntryChanged.",
	checkRule: func(t *trial) {
		entry := t.inspectAbandoned(t.claimUntilLapsed())
		t.forgetRecord(entry)
		t.waitForClock()
		own := t.claimUntilLapsed()
		t.checkResolveRefused(entry, idempotency.ErrEntryChanged)
		t.inspectAbandoned(own)
	},
}}

var resolveRaceCases = []testCase{{
	name: "resolve/during Begin",
	rule: "If an operation is resolved while a request takes it over, exactly one of the two succeeds.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			entry := t.inspectAbandoned(own)
			var resolveErr, beginErr error
			var got beginResult
			runBothAtOnce(round, func() { resolveErr = t.asResolver().Resolve(t.ctx, entry, asHappened(operatorResponse())) }, func() {
				got, beginErr = t.callBegin(t.ctx, withTakeOver(request))
			})
			t.rememberClaim(got)
			t.checkSuccess("Begin", beginErr)
			if got.claim == nil {
				t.checkSuccess("Resolve", resolveErr)
				t.checkReplay(own, operatorResponse())
				continue
			}
			t.checkChangedOrInProgress("Resolve", resolveErr)
			own.Attempt++
			t.checkAttempt(got, own)
			t.completeClaim(got, newReceipt("of the claim"))
			t.checkReplay(own, newReceipt("of the claim"))
		}
	},
}, {
	name: "resolve/during Complete",
	rule: "If an operation is resolved while its owner completes it, exactly one of the two calls succeeds.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			entry := t.inspectAbandoned(own)
			var resolveErr, completeErr error
			runBothAtOnce(round, func() { resolveErr = t.asResolver().Resolve(t.ctx, entry, asHappened(operatorResponse())) }, func() {
				completeErr = own.claim.Complete(t.ctx, newReceipt("of a late owner"), long)
			})
			if resolveErr == nil {
				t.checkError("Complete", completeErr, idempotency.ErrClaimLost)
				t.checkReplay(own, operatorResponse())
				continue
			}
			t.checkError("Resolve", resolveErr, idempotency.ErrEntryChanged)
			t.checkSuccess("Complete", completeErr)
			t.checkReplay(own, newReceipt("of a late owner"))
		}
	},
}, {
	name: "resolve/twice at once",
	rule: "If two operators resolve an operation differently at the same time, exactly one of them succeeds.",
	checkRule: func(t *trial) {
		for round := range 8 {
			t := t.withKey(newKey())
			own := t.claimUntilLapsed()
			entry := t.inspectAbandoned(own)
			var happenedErr, notHappenedErr error
			runBothAtOnce(round, func() { happenedErr = t.asResolver().Resolve(t.ctx, entry, asHappened(operatorResponse())) }, func() {
				notHappenedErr = t.asResolver().Resolve(t.ctx, entry, asNotHappened("bob", "no charge"))
			})
			if happenedErr == nil {
				t.checkError("Resolve", notHappenedErr, idempotency.ErrEntryChanged)
				t.checkReplay(own, operatorResponse())
				continue
			}
			t.checkError("Resolve", happenedErr, idempotency.ErrEntryChanged)
			t.checkSuccess("Resolve", notHappenedErr)
			t.checkResolved(t.inspectState(idempotency.StateReleased, own), own, asNotHappened("bob", "no charge"))
		}
	},
}}

// asResolver returns the store as a Resolver.
func (t *trial) asResolver() idempotency.Resolver { return t.store.(idempotency.Resolver) }

// resolveEntry calls Resolve, which must succeed.
func (t *trial) resolveEntry(entry idempotency.Entry, resolution idempotency.Resolution) {
	t.checkSuccess("Resolve", t.asResolver().Resolve(t.ctx, entry, resolution))
}

// inspectAbandoned returns the entry of own, which must be abandoned.
func (t *trial) inspectAbandoned(own beginResult) idempotency.Entry {
	return t.inspectState(idempotency.StateAbandoned, own).Entry
}

// inspectByOperation calls InspectOperation, which must return the entry of own in the given state.
func (t *trial) inspectByOperation(state idempotency.State, own beginResult) idempotency.Entry {
	entry, err := t.asResolver().InspectOperation(t.ctx, t.key.OperationID())
	t.checkSuccess("InspectOperation", err)
	t.checkEntry(entry, state, own)
	return entry
}

// checkResolveRefused checks that Resolve returns want for both kinds of resolution.
func (t *trial) checkResolveRefused(entry idempotency.Entry, want error) {
	t.checkError("Resolve", t.asResolver().Resolve(t.ctx, entry, asHappened(operatorResponse())), want)
	t.checkError("Resolve", t.asResolver().Resolve(t.ctx, entry, asNotHappened("bob", "no charge")), want)
}

// checkResolved checks that the entry has the resolution r, which ended the attempt of own.
func (t *trial) checkResolved(seen inspectedEntry, own beginResult, r idempotency.Resolution) {
	want := idempotency.Resolved{
		Happened: r.Response != nil, Attempt: own.Attempt, At: r.At, Operator: r.Operator, Reason: r.Reason,
	}
	switch got := seen.Resolved; {
	case got == nil:
		t.failf("the entry has no resolution, although %q has resolved the operation", r.Operator)
	case !got.At.Equal(want.At):
		t.failf("the entry says that the operation was resolved at %v, want %v", got.At, want.At)
	case got.Happened != want.Happened, got.Attempt != want.Attempt, got.Operator != want.Operator, got.Reason != want.Reason:
		t.failf("the entry has the resolution %+v, want %+v", *got, want)
	}
}

// checkUnresolved checks that the entry has no resolution.
func (t *trial) checkUnresolved(seen inspectedEntry) {
	if seen.Resolved != nil {
		t.failf("the entry has the resolution %+v, want none", *seen.Resolved)
	}
}

// claimNextUntilLapsed claims the next attempt at the operation of own, and returns when its lease has lapsed.
func (t *trial) claimNextUntilLapsed(own beginResult, req idempotency.ClaimRequest) beginResult {
	next := t.claimNextAttempt(own, withDurations(req, short, long))
	t.waitUntil("the lease lapses", func() bool { return t.inspectKey().State == idempotency.StateAbandoned })
	return next
}
