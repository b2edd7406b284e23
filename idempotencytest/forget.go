package idempotencytest

import (
	"errors"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

var forgetCases = []testCase{{
	name: "forget/completed",
	rule: "The key of a completed operation that was forgotten is free, for every request: a new operation, attempt 1.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, sample())
		t.forget(t.inspectAs(idempotency.StateCompleted, own).Entry)
		t.isFree()
		next := t.claim(another)
		t.isNew(next, own)
		t.complete(next, receipt("new"))
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, next), receipt("new"))
	},
}, {
	name: "forget/released",
	rule: "A released operation can be forgotten. Then its key is free for every request.",
	check: func(t *trial) {
		own := t.claim(request)
		t.release(own)
		t.forget(t.inspectAs(idempotency.StateReleased, own).Entry)
		t.isFree()
		t.isNew(t.claim(another), own)
	},
}, {
	name: "forget/abandoned",
	rule: "An abandoned operation can be forgotten. A late owner changes nothing once a new operation has the key.",
	check: func(t *trial) {
		old := t.lapsed()
		t.forget(t.inspectAs(idempotency.StateAbandoned, old).Entry)
		t.isFree()
		own := t.claim(another)
		t.isNew(own, old)
		t.loses(old)
		t.complete(own, receipt("new"))
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), receipt("new"))
	},
}, {
	name: "forget/late owner",
	rule: "The owner of an abandoned operation that was forgotten completes it all the same, and is told ErrRestored.",
	check: func(t *trial) {
		old := t.lapsed()
		t.forget(t.inspectAs(idempotency.StateAbandoned, old).Entry)
		t.says("Complete", old.claim.Complete(t.ctx, receipt("restored"), long), idempotency.ErrRestored)
		t.replays(old, receipt("restored"))
	},
}, {
	name: "forget/running",
	rule: "An operation that runs is never forgotten: ErrInProgress, and its owner keeps the key.",
	check: func(t *trial) {
		own := t.claim(request)
		t.says("Forget", t.tryForget(t.inspectAs(idempotency.StateRunning, own).Entry), idempotency.ErrInProgress)
		t.runs(own)
		t.complete(own, receipt("kept"))
		t.replays(own, receipt("kept"))
	},
}, {
	name: "forget/running again",
	rule: "An operation that runs again is not forgotten either, although the entry says that it does not: ErrInProgress.",
	check: func(t *trial) {
		own := t.lapsed()
		entry := t.inspectAs(idempotency.StateAbandoned, own).Entry
		own = t.extend(own, long)
		t.says("Forget", t.tryForget(entry), idempotency.ErrInProgress)
		t.runs(own)

		t.release(own)
		entry = t.inspectAs(idempotency.StateReleased, own).Entry
		own = t.next(own, request)
		t.says("Forget", t.tryForget(entry), idempotency.ErrInProgress)
		t.runs(own)
		t.complete(own, receipt("kept"))
		t.replays(own, receipt("kept"))
	},
}, {
	name: "forget/no record",
	rule: "ErrNoRecord says that there is nothing to forget.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, sample())
		entry := t.inspect().Entry
		t.forget(entry)
		t.says("Forget", t.tryForget(entry), idempotency.ErrNoRecord)

		t = t.at(freshKey())
		own = t.claim(request)
		t.succeedsLate("Complete", own.claim.Complete(t.ctx, sample(), 4*short))
		entry, err := t.inspector().Inspect(t.ctx, t.key)
		if errors.Is(err, idempotency.ErrNoRecord) {
			return // it came too late
		}
		t.succeeds("Inspect", err)
		t.throughout(time.Now().Add(4*short+resolution), func() {})
		t.says("Forget", t.tryForget(entry), idempotency.ErrNoRecord)
		t.isFree()
	},
}, {
	name: "forget/other state",
	rule: "ErrEntryChanged says that the operation is in another state than the entry says. The record stays.",
	check: func(t *trial) {
		own := t.claim(request)
		entry := t.inspectAs(idempotency.StateRunning, own).Entry
		t.complete(own, receipt("kept"))
		t.says("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.replays(own, receipt("kept"))
	},
}, {
	name: "forget/other attempt",
	rule: "ErrEntryChanged says that the operation was tried again since. The record stays.",
	check: func(t *trial) {
		own := t.claim(request)
		t.release(own)
		entry := t.inspectAs(idempotency.StateReleased, own).Entry
		own = t.next(own, request)
		t.release(own)
		t.says("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.next(own, request)
	},
}, {
	name: "forget/other record",
	rule: "ErrEntryChanged says that the key has another record by now. The record stays.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("old"))
		entry := t.inspect().Entry
		t.forget(entry)
		t.later() // a record is told from its predecessor by the time of its creation
		own = t.claim(request)
		t.complete(own, receipt("new"))
		t.says("Forget", t.tryForget(entry), idempotency.ErrEntryChanged)
		t.replays(own, receipt("new"))
	},
}}

var forgetRaceCases = []testCase{{
	name: "forget/concurrently",
	rule: "Of any number of concurrent callers, one forgets the record. The others are told ErrNoRecord.",
	check: func(t *trial) {
		for range 8 {
			t := t.at(freshKey())
			t.complete(t.claim(request), sample())
			entry := t.inspect().Entry
			errs := make([]error, callers)
			var crowd sync.WaitGroup
			for i := range errs {
				crowd.Go(func() { errs[i] = t.tryForget(entry) })
			}
			crowd.Wait()
			forgotten := 0
			for _, err := range errs {
				if err == nil {
					forgotten++
				} else {
					t.says("Forget", err, idempotency.ErrNoRecord)
				}
			}
			if forgotten != 1 {
				t.failf("%d of %d concurrent calls have forgotten the record", forgotten, callers)
			}
		}
	},
}, {
	name: "forget/completed during Begin",
	rule: "When a completed operation is forgotten during a Begin, this gets the old answer, or a claim that it keeps.",
	check: func(t *trial) {
		for round := range rounds {
			t := t.at(freshKey())
			own := t.claim(request)
			t.complete(own, receipt("old"))
			got, forgotten := t.whileForgetting(round, request)
			if forgotten != nil { // the store may take the Begin for an attempt that runs
				t.says("Forget", forgotten, idempotency.ErrInProgress)
				t.replays(own, receipt("old"))
				continue
			}
			if got.claim == nil {
				t.isResponse(got, own, receipt("old"))
				got = t.claim(request)
			}
			t.isNew(got, own)
			t.runs(got)
			t.complete(got, receipt("new"))
			t.replays(got, receipt("new"))
		}
	},
}, {
	name: "forget/released during Begin",
	rule: "When a released operation is forgotten while it is claimed, it is either forgotten or claimed, not both.",
	check: func(t *trial) {
		for round := range rounds {
			t := t.at(freshKey())
			own := t.claim(request)
			t.release(own)
			got, forgotten := t.whileForgetting(round, request)
			t.isForgottenOrClaimed(own, got, forgotten)
		}
	},
}, {
	name: "forget/abandoned during takeover",
	rule: "When an abandoned operation is forgotten while it is taken over, it is either forgotten or claimed, not both.",
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			got, forgotten := t.whileForgetting(round, takingOver(request))
			t.isForgottenOrClaimed(own, got, forgotten)
		}
	},
}, {
	name: "forget/abandoned during Extend",
	rule: "When an abandoned operation is forgotten while its owner revives it, the owner has the key, and knows if its " +
		"record was made again.",
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.inspectAs(idempotency.StateAbandoned, own).Entry
			var forgotten, extended error
			own.lease, own.asked = long, time.Now()
			atOnce(round, func() { forgotten = t.tryForget(entry) }, func() { extended = own.claim.Extend(t.ctx, long) })
			own.answered = time.Now()
			if forgotten == nil {
				t.says("Extend", extended, idempotency.ErrRestored)
			} else {
				t.isRefusedFor(forgotten)
				t.succeeds("Extend", extended)
			}
			t.runs(own)
			t.complete(own, receipt("of a late owner"))
			t.replays(own, receipt("of a late owner"))
		}
	},
}, {
	name: "forget/abandoned during Complete",
	rule: "When an abandoned operation is forgotten while its owner completes it, the answer is kept, and the owner knows " +
		"if its record was made again.",
	check: func(t *trial) {
		for round := range 8 {
			t := t.at(freshKey())
			own := t.lapsed()
			entry := t.inspectAs(idempotency.StateAbandoned, own).Entry
			var forgotten, completed error
			atOnce(round, func() { forgotten = t.tryForget(entry) }, func() {
				completed = own.claim.Complete(t.ctx, receipt("of a late owner"), long)
			})
			if forgotten == nil {
				t.says("Complete", completed, idempotency.ErrRestored)
			} else {
				t.says("Forget", forgotten, idempotency.ErrEntryChanged)
				t.succeeds("Complete", completed)
			}
			t.replays(own, receipt("of a late owner"))
		}
	},
}}

// whileForgetting begins an attempt while the record of the key is forgotten.
func (t *trial) whileForgetting(round int, a idempotency.ClaimRequest) (got answer, forgotten error) {
	entry := t.inspect().Entry
	var failed error
	atOnce(round, func() { forgotten = t.tryForget(entry) }, func() { got, failed = t.ask(t.ctx, a) })
	t.keep(got)
	t.succeeds("Begin", failed)
	return got, forgotten
}

// isForgottenOrClaimed checks that the operation of own was either forgotten or claimed, and that the claim holds.
func (t *trial) isForgottenOrClaimed(own, got answer, forgotten error) {
	if got.claim == nil {
		t.failf("the key was not claimed: %s", show(got))
	}
	if forgotten == nil {
		t.isNew(got, own)
	} else {
		t.isRefusedFor(forgotten)
		own.Attempt++
		t.describes(got, own)
	}
	t.runs(got)
	t.complete(got, receipt("of the claim"))
	t.replays(got, receipt("of the claim"))
}

// isRefusedFor checks the error of a Forget that came after somebody had begun to run the operation.
func (t *trial) isRefusedFor(err error) {
	if !errors.Is(err, idempotency.ErrEntryChanged) {
		t.says("Forget", err, idempotency.ErrInProgress)
	}
}
