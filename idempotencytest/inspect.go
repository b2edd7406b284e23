package idempotencytest

import (
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
)

var inspectCases = []testCase{{
	name: "inspect/running",
	rule: "An attempt that runs is shown as running, with its operation, its number, and the rest of its lease.",
	check: func(t *trial) {
		own := t.claim(lasting(request, long/2, long))
		seen := t.inspectAs(idempotency.StateRunning, own)
		t.hasLease(seen, own)
		t.isKeptFor(seen, long, own.asked, own.answered)
		own = t.extend(own, long)
		t.hasLease(t.inspectAs(idempotency.StateRunning, own), own)
		t.runs(own)
	},
}, {
	name: "inspect/next attempt",
	rule: "Of an operation that is tried again, the attempt that runs is shown, with the time of the first attempt.",
	check: func(t *trial) {
		own := t.claim(request)
		for range 3 {
			t.later()
			t.release(own)
			own = t.next(own, request)
		}
		seen := t.inspectAs(idempotency.StateRunning, own)
		t.hasLease(seen, own)
	},
}, {
	name: "inspect/abandoned",
	rule: "An attempt whose lease has lapsed is shown as abandoned.",
	check: func(t *trial) {
		own := t.lapsed()
		seen := t.inspectAs(idempotency.StateAbandoned, own)
		t.isKeptFor(seen, long, own.asked, own.answered)
		t.next(own, takingOver(request))
	},
}, {
	name: "inspect/same record",
	rule: "Inspect and Begin agree on the attempt and on the creation of a record, to the last digit.",
	check: func(t *trial) {
		agree := func() {
			record, entry := t.refused(request).Record, t.inspect().Entry
			if entry.Attempt != record.Attempt || !entry.Created.Equal(record.Created) {
				t.failf("Inspect says attempt %d of %v, and Begin says attempt %d of %v",
					entry.Attempt, entry.Created, record.Attempt, record.Created)
			}
		}
		own := t.lapsed()
		agree()
		next := t.nextLapsed(own, takingOver(request))
		agree()
		t.next(next, takingOver(request))
		agree()
		t = t.at(freshKey())
		t.complete(t.claim(request), sample())
		agree()
	},
}, {
	name: "inspect/released",
	rule: "An operation that may be tried again is shown as released.",
	check: func(t *trial) {
		own := t.claim(request)
		since := time.Now()
		t.succeeds("Release", own.claim.Release(t.ctx, long/2))
		until := time.Now()
		t.isKeptFor(t.inspectAs(idempotency.StateReleased, own), long/2, since, until)
		t.next(own, request)
	},
}, {
	name: "inspect/completed",
	rule: "A completed operation is shown with its answer, and with the time of its completion unless that is not known.",
	check: func(t *trial) {
		own := t.claim(request)
		t.later()
		since := time.Now()
		t.succeeds("Complete", own.claim.Complete(t.ctx, sample(), long/2))
		until := time.Now()
		seen := t.inspectAs(idempotency.StateCompleted, own)
		t.hasAnswer(seen, sample())
		t.isKeptFor(seen, long/2, since, until)
		// As in Record, Created tells how the clock of the store differs from that of the suite.
		if at := seen.Completed; !at.IsZero() && at.Sub(own.Created) < since.Sub(own.answered)-resolution {
			t.failf("the operation that was created at %v was completed at %v", own.Created, at)
		}
		if at := seen.Completed; !at.IsZero() && at.Sub(own.Created) > until.Sub(own.asked)+resolution {
			t.failf("the operation that was created at %v was completed at %v", own.Created, at)
		}
		t.replays(own, sample())
	},
}, {
	name: "inspect/refusal",
	rule: "A completed operation is shown with its answer, whatever its status.",
	check: func(t *trial) {
		for _, status := range []int{http.StatusNoContent, http.StatusFound, http.StatusConflict, http.StatusInternalServerError} {
			t := t.at(freshKey())
			own := t.claim(request)
			t.complete(own, idempotency.Response{Status: status})
			t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), idempotency.Response{Status: status})
		}
	},
}, {
	name: "inspect/large answer",
	rule: "An answer is shown whole.",
	check: func(t *trial) {
		own, resp := t.claim(request), sample()
		resp.Body = noise(1<<20 + 4321)
		t.complete(own, resp)
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), resp)
	},
}, {
	name: "inspect/note",
	rule: "A note is shown beside the response and in it. The record of a replay keeps it.",
	check: func(t *trial) {
		own, resp := t.claim(request), noted("charge ch_1: settled")
		t.complete(own, resp)
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), resp)
		t.replays(own, resp)
	},
}, {
	name: "inspect/omitted",
	rule: "An answer that was not kept is shown as such, with its status.",
	check: func(t *trial) {
		own, resp := t.claim(request), idempotency.Response{Status: http.StatusAccepted, Omitted: true}
		t.complete(own, resp)
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), resp)
	},
}, {
	name: "inspect/no record",
	rule: "ErrNoRecord says that a key was never used.",
	check: func(t *trial) {
		t.isFree()
		t.isNew(t.claim(request), answer{}) // which Inspect has not claimed
	},
}, {
	name: "inspect/freed",
	rule: "ErrNoRecord says that a key was freed, and no listing has it.",
	check: func(t *trial) {
		own := t.claim(request)
		t.succeeds("Release", own.claim.Release(t.ctx, 0))
		t.isFree()
		if listing := t.list(idempotency.ListRequest{}); len(listing.Entries) > 0 || len(listing.Totals) > 0 || listing.Unreadable > 0 {
			t.failf("a key that was freed is listed: %+v", listing)
		}
	},
}, {
	name: "inspect/expired",
	rule: "ErrNoRecord says that a record has expired, although nobody has asked for its key since.",
	check: func(t *trial) {
		own := t.claim(request)
		since := time.Now()
		t.succeeds("Complete", own.claim.Complete(t.ctx, receipt("short-lived"), short))
		t.until("the completed record expires", func() bool {
			_, err := t.inspector().Inspect(t.ctx, t.key)
			if err == nil {
				return false
			}
			t.says("Inspect", err, idempotency.ErrNoRecord)
			t.notEarly("the completed record expired", since, short, answer{answered: time.Now()})
			return true
		})
		t = t.at(freshKey())
		t.forgotten()
		t.isFree()
	},
}, {
	name: "inspect/lease",
	rule: "Inspect does not prolong a lease.",
	check: func(t *trial) {
		own := t.claim(lasting(request, short, long))
		t.until("the lease lapses", func() bool {
			seen := t.inspect()
			if seen.State == idempotency.StateRunning {
				return false
			}
			t.isEntry(seen.Entry, idempotency.StateAbandoned, own)
			t.notEarly("the lease lapsed", own.asked, short, answer{answered: seen.answered})
			return true
		})
	},
}, {
	name: "inspect/keys",
	rule: "Each key has a record of its own, although another user has sent the same key.",
	check: func(t *trial) {
		other := t.at(idempotency.Key{User: t.key.User + "'", Endpoint: t.key.Endpoint, ID: t.key.ID})
		own := t.claim(request)
		t.complete(own, receipt("of the first user"))
		other.isFree()
		theirs := other.claim(another)
		other.complete(theirs, receipt("of the second user"))
		t.hasAnswer(t.inspectAs(idempotency.StateCompleted, own), receipt("of the first user"))
		seen := other.inspectAs(idempotency.StateCompleted, theirs)
		other.hasAnswer(seen, receipt("of the second user"))
		other.forget(seen.Entry)
		other.isFree()
		t.replays(own, receipt("of the first user"))
	},
}}

// noted returns sample with a note.
func noted(note string) idempotency.Response {
	resp := sample()
	resp.Note = note
	return resp
}
