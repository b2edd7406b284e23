package idempotencytest

var leaseCases = []testCase{{
	name: "lapsed lease",
	rule: "A lapsed lease alone grants no claim: the record says that nobody runs the operation, and waits.",
	check: func(t *trial) {
		own := t.lapsed()
		t.isAbandoned(t.refused(request), own)
	},
}, {
	name: "takeover",
	rule: "Who may take over gets the next attempt at the same operation once the lease has lapsed, with a new lease.",
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
}}
