package idempotencytest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

var listCases = []testCase{{
	name: "list/states",
	rule: "List returns the records in the states that are asked for, each once, as Inspect shows them but for the response.",
	check: func(t *trial) {
		all := t.oneOfEachState()
		t.lists(idempotency.ListRequest{}, all...)
		for _, listed := range all {
			t.lists(idempotency.ListRequest{States: []idempotency.State{listed.state}}, listed)
		}
		t.lists(idempotency.ListRequest{States: []idempotency.State{idempotency.StateReleased, idempotency.StateCompleted}},
			inStates(all, idempotency.StateReleased, idempotency.StateCompleted)...)
	},
}, {
	name: "list/nothing",
	rule: "A listing of nothing is empty, and complete.",
	check: func(t *trial) {
		t.lists(idempotency.ListRequest{})
		t.lists(idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}, Largest: true})
	},
}, {
	name: "list/oldest",
	rule: "By default, the records are listed by the time of their first attempt, the oldest first.",
	check: func(t *trial) {
		t.lists(idempotency.ListRequest{}, t.completedOf(100, 4000, 2000)...)
	},
}, {
	name: "list/largest",
	rule: "By request, the records are listed by their size, the largest first.",
	check: func(t *trial) {
		all := t.completedOf(100, 4000, 2000)
		t.lists(idempotency.ListRequest{Largest: true}, all[1], all[2], all[0])
	},
}, {
	name: "list/limit",
	rule: "A listing has no more than Limit entries, the first ones in its order; its totals count what is beyond, too.",
	check: func(t *trial) {
		all := t.completedOf(100, 4000, 2000)
		for limit, most := range map[int]int{1: 1, 2: 2, 3: 3, 4: 3, math.MaxInt: 3} {
			t.listsFirst(most, idempotency.ListRequest{Limit: limit}, all...)
			t.listsFirst(most, idempotency.ListRequest{Limit: limit, Largest: true}, all[1], all[2], all[0])
		}
	},
}, {
	name: "list/pages",
	rule: "A listing that begins behind an entry has what follows it in the order. The totals stay.",
	check: func(t *trial) {
		all := t.completedOf(100, 4000, 2000)
		t.pages(idempotency.ListRequest{Limit: 1}, all...)
		t.pages(idempotency.ListRequest{Limit: 1, Largest: true}, all[1], all[2], all[0])
	},
}, {
	name: "list/default limit",
	rule: "Without a Limit, a listing has up to 100 entries.",
	check: func(t *trial) {
		const n, most = 103, 100
		for range n {
			t := t.sibling()
			t.complete(t.claim(request), receipt("one of many"))
		}
		got := t.list(idempotency.ListRequest{})
		if total := got.Totals[idempotency.StateCompleted].Records; len(got.Entries) != most || total != n {
			t.failf("%d entries, %d records in total, not %d and %d", len(got.Entries), total, most, n)
		}
	},
}, {
	name: "list/scan",
	rule: "A listing looks at no more than Scan records if it has to fetch each of them. It says whether there are more.",
	check: func(t *trial) {
		all := t.completedOf(100, 200, 300, 400)
		t.lists(idempotency.ListRequest{Scan: math.MaxInt}, all...)
		t.lists(idempotency.ListRequest{Scan: 2 * len(all)}, all...)
		got := t.list(idempotency.ListRequest{Scan: 1})
		n := got.Totals[idempotency.StateCompleted].Records
		switch {
		case got.Unreadable != 0:
			t.failf("%d records could not be read", got.Unreadable)
		case !got.Partial && n != len(all), got.Partial && n > 1, len(got.Entries) != n:
			t.failf("partial: %t, and %d entries of %d records out of %d", got.Partial, len(got.Entries), n, len(all))
		}
	},
}, {
	name: "list/users",
	rule: "If a store lists by user, it lists the records of that user alone.",
	check: func(t *trial) {
		other := t.at(idempotency.Key{User: t.key.User + "'", Endpoint: t.key.Endpoint, ID: t.key.ID})
		_, err := t.inspector().List(t.ctx, idempotency.ListRequest{User: t.key.User})
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		t.succeeds("List", err)
		mine, theirs := t.completes(100), other.completes(200)
		t.lists(idempotency.ListRequest{}, mine)
		other.lists(idempotency.ListRequest{}, theirs)
		t.at(freshKey()).lists(idempotency.ListRequest{})
	},
}, {
	name: "list/expired",
	rule: "What has expired is not listed.",
	check: func(t *trial) {
		own := t.claim(request)
		t.succeeds("Complete", own.claim.Complete(t.ctx, receipt("short-lived"), short))
		t.until("the completed record expires", func() bool {
			got := t.list(idempotency.ListRequest{})
			return len(got.Entries) == 0 && len(got.Totals) == 0
		})
		t.notEarly("the completed record expired", own.answered, short, answer{answered: time.Now()})
	},
}, {
	name: "list/forget",
	rule: "What is listed can be forgotten. Then it is not listed any more.",
	check: func(t *trial) {
		all := t.completedOf(100, 200)
		for i, listed := range all {
			got := t.list(idempotency.ListRequest{})
			t.isListed(got, len(all)-i, all[i:])
			t.forget(got.Entries[0])
			listed.isFree()
		}
		t.lists(idempotency.ListRequest{})
	},
}, {
	name: "list/concurrently",
	rule: "Whatever others do meanwhile, each record that is there throughout is listed once.",
	check: func(t *trial) {
		all := t.completedOf(100, 200, 300)
		// The first attempts of the others are later, so that they come behind.
		for round := range rounds {
			other := t.sibling()
			own := other.claim(request)
			var got idempotency.Listing
			var failed error
			atOnce(round, func() { got = t.list(idempotency.ListRequest{}) }, func() {
				failed = own.claim.Complete(t.ctx, receipt("of another"), long)
			})
			t.succeeds("Complete", failed)
			if len(got.Entries) < len(all) || len(got.Entries) > len(all)+1 {
				t.failf("%d entries of %d or %d records", len(got.Entries), len(all), len(all)+1)
			}
			for i, listed := range all {
				listed.isEntry(got.Entries[i], listed.state, listed.own)
			}
			other.forget(other.inspect().Entry)
		}
	},
}}

// listed is a record that is to be listed.
type listed struct {
	*trial
	state idempotency.State
	own   answer
}

// completes claims the key and completes it with a body of so many bytes.
func (t *trial) completes(size int) listed {
	own, resp := t.claim(request), receipt("")
	resp.Body = noise(size)
	t.complete(own, resp)
	return listed{t, idempotency.StateCompleted, own}
}

// completedOf returns a completed record of the user for each of the sizes, the oldest first.
func (t *trial) completedOf(sizes ...int) (all []listed) {
	for _, size := range sizes {
		all = append(all, t.sibling().completes(size))
		t.later()
	}
	return all
}

// oneOfEachState returns a record of the user in each of the states that the store lists, the oldest first.
func (t *trial) oneOfEachState() (all []listed) {
	all = append(all, t.sibling().completes(1000))
	t.later()
	at := t.sibling()
	all = append(all, listed{at, idempotency.StateAbandoned, at.lapsed()})
	t.later()
	at = t.sibling()
	own := at.claim(request)
	at.release(own)
	all = append(all, listed{at, idempotency.StateReleased, own})
	t.later()
	at = t.sibling()
	return append(all, listed{at, idempotency.StateRunning, at.claim(request)})
}

func inStates(all []listed, states ...idempotency.State) []listed {
	return slices.DeleteFunc(slices.Clone(all), func(l listed) bool { return !slices.Contains(states, l.state) })
}

// lists checks that List returns these records.
func (t *trial) lists(request idempotency.ListRequest, want ...listed) {
	t.listsFirst(len(want), request, want...)
}

// listsFirst checks that List returns the first ones of these records, and counts all.
func (t *trial) listsFirst(most int, request idempotency.ListRequest, want ...listed) {
	t.isListed(t.list(request), most, want)
}

// pages checks that the listings behind each other, of one entry each, have these records.
func (t *trial) pages(request idempotency.ListRequest, want ...listed) {
	for _, next := range want {
		got := t.list(request)
		if len(got.Entries) != 1 || got.Totals[idempotency.StateCompleted].Records != len(want) {
			t.failf("a page has %d entries of %v in total", len(got.Entries), got.Totals)
		}
		next.isEntry(got.Entries[0], next.state, next.own)
		request.After = &got.Entries[0]
	}
	if got := t.list(request); len(got.Entries) != 0 {
		t.failf("there are %d entries behind the last one", len(got.Entries))
	}
}

// isListed checks that a listing has the first ones of these records, and counts all.
func (t *trial) isListed(got idempotency.Listing, most int, want []listed) {
	switch {
	case got.Partial || got.Unreadable != 0:
		t.failf("the listing is partial: %t, and lacks %d records that could not be read", got.Partial, got.Unreadable)
	case len(got.Entries) != most:
		t.failf("%d entries, not %d", len(got.Entries), most)
	}
	totals := make(map[idempotency.State]idempotency.Total)
	for i, listed := range want {
		seen := listed.inspectAs(listed.state, listed.own)
		total := totals[listed.state]
		totals[listed.state] = idempotency.Total{Records: total.Records + 1, Bytes: total.Bytes + seen.Size}
		if i < most {
			listed.isAs(got.Entries[i], seen)
		}
	}
	if fmt.Sprint(got.Totals) != fmt.Sprint(totals) { // whose keys are sorted
		t.failf("the totals are %v, not %v", got.Totals, totals)
	}
}

// isAs checks an entry of a listing by what Inspect shows.
func (l listed) isAs(got idempotency.Entry, seen inspected) {
	l.isEntry(got, l.state, l.own)
	switch {
	case got.Response != nil:
		l.failf("an entry of a listing has a response")
	case got.Size != seen.Size:
		l.failf("a record of %d bytes is listed with %d", seen.Size, got.Size)
	case got.Status != seen.Status:
		l.failf("a record with status %d is listed with %d", seen.Status, got.Status)
	case got.Key != seen.Key:
		l.failf("a record is not listed with the key that Inspect shows")
	case got.State == idempotency.StateRunning && (got.LeaseLeft <= 0 || got.LeaseLeft > long+resolution):
		l.failf("of a lease of %v, %v are listed as left", long, got.LeaseLeft)
	case got.Note != "" && got.Note != seen.Note:
		l.failf("a record with the note %q is listed with %q", seen.Note, got.Note)
	}
}
