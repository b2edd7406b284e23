package idempotencytest

import "github.com/idempotency-go/idempotency"

var fencingCases = []testCase{{
	name: "overtaken owner",
	rule: "Whose claim was taken over is told ErrClaimLost, and changes nothing: the successor's response is replayed.",
	check: func(t *trial) {
		old, successor := t.overtaken()
		t.loses(old)
		t.runs(successor)
		t.complete(successor, receipt("of the successor"))
		t.loses(old)
		t.replays(successor, receipt("of the successor"))
	},
}, {
	name: "overtaken owner after a release",
	rule: "Whose claim was taken over is told ErrClaimLost, and changes nothing, after the successor's release too.",
	check: func(t *trial) {
		old, successor := t.overtaken()
		t.release(successor)
		t.loses(old)
		t.isAbandoned(t.refused(another), successor)
		t.next(successor, request)
	},
}, {
	name: "takeover at the last moment",
	rule: "When a late owner completes while another attempt takes over, one of them has the claim, not both.",
	check: func(t *trial) {
		for range 8 {
			t := t.at(freshKey())
			old := t.lapsed()
			var successor answer
			var failed error
			begun := make(chan struct{})
			go func() {
				defer close(begun)
				successor, failed = t.ask(t.ctx, takingOver(request))
			}()
			lost := old.claim.Complete(t.ctx, receipt("at the last moment"), long)
			<-begun
			t.succeeds("Begin", failed)
			if successor.claim == nil {
				t.succeeds("Complete", lost)
				t.replays(old, receipt("at the last moment"))
			} else {
				t.says("Complete", lost, idempotency.ErrClaimLost)
				t.runs(successor)
			}
		}
	},
}, {
	name: "released owner",
	rule: "Who has released changes nothing after the next attempt has begun.",
	check: func(t *trial) {
		old := t.claim(request)
		t.release(old)
		successor := t.next(old, request)
		t.says("Extend", old.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
		t.says("Complete", old.claim.Complete(t.ctx, receipt("of the old owner"), long), idempotency.ErrClaimLost)
		_ = old.claim.Release(t.ctx, long) // a repetition and a loss at once: either answer is true
		t.runs(successor)
	},
}, {
	name: "forgotten owner",
	rule: "Whose record expired is told ErrClaimLost, and changes nothing, once a new operation has the key.",
	check: func(t *trial) {
		old := t.forgotten()
		own := t.claim(request)
		t.isNew(own, old)
		t.loses(old)
		t.runs(own)
		t.complete(own, receipt("new"))
		t.loses(old)
		t.replays(own, receipt("new"))
	},
}}
