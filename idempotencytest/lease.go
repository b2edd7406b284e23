package idempotencytest

import "github.com/idempotency-go/idempotency"

var leaseCases = []testCase{{
	name: "lapsed lease",
	rule: "A lapsed lease alone grants no claim: the record says that nobody runs the operation, and waits.",
	only: leased,
	check: func(t *trial) {
		own := t.lapsed()
		t.isAbandoned(t.refused(request), own)
	},
}, {
	name: "takeover",
	rule: "Who may take over gets the next attempt at the same operation once the lease has lapsed, with a new lease.",
	only: leased,
	check: func(t *trial) {
		old := t.claim(lasting(request, short, long))
		var successor answer
		t.until("the lease lapses", func() bool {
			successor = t.begin(takingOver(request))
			return successor.claim != nil
		})
		t.notEarly("the claim was taken over", old.asked, short, successor)
		old.Attempt++
		t.describes(successor, old)
		t.runs(successor)
	},
}, {
	name: "concurrent takeovers",
	rule: "Of any number of concurrent callers, one takes a lapsed claim over.",
	only: leased,
	check: func(t *trial) {
		for range 4 {
			key := freshKey()
			old := t.at(key).lapsed()
			successor := t.race(takingOver(request), key)[0]
			old.Attempt++
			t.describes(successor, old)
		}
	},
}, {
	name: "extended lease",
	rule: "Extend lets the lease run from now, for as long as it says, beyond its first end.",
	only: leased,
	check: func(t *trial) {
		own := t.claim(lasting(request, short, long))
		firstEnd := own.answered.Add(short)
		own = t.extend(own, long/2)
		t.throughout(firstEnd, func() { t.runs(own) })
		own = t.extend(own, long)
		t.runs(own)
		t.complete(own, receipt("of a long attempt"))
		t.replays(own, receipt("of a long attempt"))
	},
}, {
	name: "late owner",
	rule: "The owner of a lapsed claim that nobody has taken over can still extend, complete and release it.",
	only: leased,
	check: func(t *trial) {
		own := t.extend(t.lapsed(), long)
		t.runs(own)

		t = t.at(freshKey())
		own = t.lapsed()
		t.complete(own, receipt("of a late owner"))
		t.replays(own, receipt("of a late owner"))

		t = t.at(freshKey())
		own = t.lapsed()
		t.release(own)
		t.next(own, request)
	},
}, {
	name: "claim without a lease",
	rule: "A claim without a lease holds until it is settled; Extend succeeds and changes nothing.",
	only: transactional,
	check: func(t *trial) {
		own := t.claim(lasting(request, short, short))
		t.throughout(own.answered.Add(short), func() { t.runs(own) })
		t.extend(own, short)
		t.runs(own)
		t.complete(own, receipt("of a long attempt"))
		t.replays(own, receipt("of a long attempt"))
	},
}, {
	name: "announced transactions",
	rule: "A store says that it is Transactional, or has Unwrap to a store that does, if its claims have no lease, and only then.",
	check: func(t *trial) {
		if announced(t.store) != (t.kind == transactional) {
			t.failf("NewRunner takes the %v store for one of the other kind", t.kind)
		}
	},
}}

// announced reports whether a store says that its claims are transactions: no handler may then run without a claim, and
// none has an unknown outcome.
func announced(store idempotency.Store) bool {
	_, open := idempotency.NewRunner(store, idempotency.RunnerOptions{FailOpen: true})
	_, refusing := idempotency.NewRunner(store, idempotency.RunnerOptions{Abandoned: idempotency.Refuse})
	return open != nil && refusing != nil
}
