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
	rule: "List returns each record in the requested states once, with the entry of Inspect, but without the response.",
	checkRule: func(t *trial) {
		all := t.createOneOfEachState()
		t.checkListing(oldestFirst, all...)
		for _, listed := range all {
			t.checkListing(idempotency.ListRequest{States: []idempotency.State{listed.expectedState}}, listed)
		}
		states := []idempotency.State{idempotency.StateReleased, idempotency.StateCompleted}
		t.checkListing(idempotency.ListRequest{States: states, Order: idempotency.OldestFirst}, filterStates(all, states...)...)
	},
}, {
	name: "list/nothing",
	rule: "Without records, List returns an empty listing that is not Partial.",
	checkRule: func(t *trial) {
		t.checkListing(idempotency.ListRequest{})
		t.checkListing(idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}, Order: idempotency.LargestFirst})
	},
}, {
	name: "list/newest",
	rule: "By default, List orders the records by the time of their first attempt, the newest first.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 4000, 2000)
		t.checkListing(idempotency.ListRequest{}, all[2], all[1], all[0])
		t.checkListing(idempotency.ListRequest{Order: idempotency.NewestFirst}, all[2], all[1], all[0])
	},
}, {
	name: "list/oldest",
	rule: "With OldestFirst, List orders the records by the time of their first attempt, the oldest first.",
	checkRule: func(t *trial) {
		t.checkListing(oldestFirst, t.createAllCompleted(100, 4000, 2000)...)
	},
}, {
	name: "list/largest",
	rule: "With LargestFirst, List orders the records by their size, the largest first, and of equal records the oldest first.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 4000, 100, 2000)
		t.checkListing(largestFirst, all[1], all[3], all[0], all[2])
	},
}, {
	name: "list/limit",
	rule: "List returns at most Limit entries, the first ones in the order. The totals count all records.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 4000, 2000)
		for limit, most := range map[int]int{1: 1, 2: 2, 3: 3, 4: 3, math.MaxInt: 3} {
			t.checkListingStart(most, idempotency.ListRequest{Limit: limit}, all[2], all[1], all[0])
			t.checkListingStart(most, idempotency.ListRequest{Limit: limit, Order: idempotency.OldestFirst}, all...)
			t.checkListingStart(most, idempotency.ListRequest{Limit: limit, Order: idempotency.LargestFirst}, all[1], all[2], all[0])
		}
	},
}, {
	name: "list/pages",
	rule: "With After, List returns the entries that follow After in the order. The totals stay the same.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 4000, 100, 2000)
		t.checkPages(idempotency.ListRequest{Limit: 1}, all[3], all[2], all[1], all[0])
		t.checkPages(idempotency.ListRequest{Limit: 1, Order: idempotency.OldestFirst}, all...)
		t.checkPages(idempotency.ListRequest{Limit: 1, Order: idempotency.LargestFirst}, all[1], all[3], all[0], all[2])
	},
}, {
	name: "list/default limit",
	rule: "Without a Limit, List returns at most 100 entries.",
	checkRule: func(t *trial) {
		const n, most = 103, 100
		for range n {
			t := t.withSiblingKey()
			t.completeClaim(t.claimKey(request), newReceipt("one of many"))
		}
		got := t.listRecords(idempotency.ListRequest{})
		if total := got.Totals[idempotency.StateCompleted].Records; len(got.Entries) != most || total != n {
			t.failf("List returned %d entries of %d records in total, want %d of %d", len(got.Entries), total, most, n)
		}
	},
}, {
	name: "list/scan",
	rule: "If List has to fetch each record, List fetches at most Scan records. Partial says whether there are more.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 200, 300, 400)
		t.checkListing(idempotency.ListRequest{Scan: math.MaxInt, Order: idempotency.OldestFirst}, all...)
		t.checkListing(idempotency.ListRequest{Scan: 2 * len(all), Order: idempotency.OldestFirst}, all...)
		got := t.listRecords(idempotency.ListRequest{Scan: 1})
		n := got.Totals[idempotency.StateCompleted].Records
		switch {
		case got.Unreadable != 0:
			t.failf("Unreadable is %d, want 0", got.Unreadable)
		case !got.Partial && n != len(all), got.Partial && n > 1, len(got.Entries) != n:
			t.failf("with Scan 1: Partial is %t, %d entries, %d records in the totals, %d records in the store",
				got.Partial, len(got.Entries), n, len(all))
		}
	},
}, {
	name: "list/users",
	rule: "With User, List returns only the records of this user, or ErrUnsupported.",
	checkRule: func(t *trial) {
		other := t.withKey(idempotency.Key{User: t.key.User + "'", Endpoint: t.key.Endpoint, ID: t.key.ID})
		if !t.canList(idempotency.ListRequest{User: t.key.User}) {
			return
		}
		mine, theirs := t.createCompleted(100), other.createCompleted(200)
		t.checkListing(idempotency.ListRequest{}, mine)
		other.checkListing(idempotency.ListRequest{}, theirs)
		t.withKey(newKey()).checkListing(idempotency.ListRequest{})
	},
}, {
	name: "list/endpoints",
	rule: "With Endpoint, List returns only the records of this endpoint, or ErrUnsupported.",
	checkRule: func(t *trial) {
		t.checkKeyPart(func(key *idempotency.Key) *string { return &key.Endpoint })
	},
}, {
	name: "list/keys",
	rule: "With ID, List returns only the records with this key of the client, or ErrUnsupported.",
	checkRule: func(t *trial) {
		t.checkKeyPart(func(key *idempotency.Key) *string { return &key.ID })
	},
}, {
	name: "list/times",
	rule: "List returns the records that were created at Since or later, and before Before.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 4000, 2000)
		created := make([]time.Time, len(all))
		for i, listed := range all {
			created[i] = listed.inspectKey().Created
		}
		checkBounds := func(since, before time.Time, want ...listedRecord) {
			t.checkListing(idempotency.ListRequest{Since: since, Before: before, Order: idempotency.OldestFirst}, want...)
		}
		none := time.Time{}
		checkBounds(created[1], none, all[1], all[2])
		checkBounds(created[1].Add(time.Microsecond), none, all[2])
		checkBounds(none, created[1], all[0])
		checkBounds(none, created[1].Add(time.Microsecond), all[0], all[1])
		checkBounds(created[1], created[2], all[1])
		checkBounds(created[1], created[1])
		checkBounds(created[2], created[0])
	},
}, {
	name: "list/each",
	rule: "Each gets all matching records, each of them once, and Listing has only the totals.",
	checkRule: func(t *trial) {
		t.checkEach(idempotency.ListRequest{})
		all := t.createOneOfEachState()
		t.checkEach(idempotency.ListRequest{}, all...)
		t.checkEach(idempotency.ListRequest{Limit: 1, Order: idempotency.LargestFirst}, all...)
		t.checkEach(idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}}, all[0])
	},
}, {
	name: "list/error of each",
	rule: "An error of Each ends List, which returns the error.",
	checkRule: func(t *trial) {
		t.createAllCompleted(100, 200, 300)
		errEach, calls := errors.New("the error of Each"), 0
		_, err := t.tryList(idempotency.ListRequest{Each: func(idempotency.Entry) error {
			if calls++; calls == 2 {
				return errEach
			}
			return nil
		}})
		t.checkError("List", err, errEach)
		if calls != 2 {
			t.failf("List called Each %d times, although the second call has returned an error", calls)
		}
	},
}, {
	name: "list/progress",
	rule: "If List calls Progress, the number of records that List has read never decreases, and neither number is negative.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 200, 300)
		reads, isNegative := []int64{}, false
		t.checkListing(idempotency.ListRequest{Order: idempotency.OldestFirst, Progress: func(read, total int64) {
			reads, isNegative = append(reads, read), isNegative || read < 0 || total < 0
		}}, all...)
		if isNegative || !slices.IsSorted(reads) {
			t.failf("Progress was called with %v records read", reads)
		}
	},
}, {
	name: "list/expired",
	rule: "List does not return expired records.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.checkSuccess("Complete", own.claim.Complete(t.ctx, newReceipt("short-lived"), short))
		t.waitUntil("the completed record expires", func() bool {
			got := t.listRecords(idempotency.ListRequest{})
			return len(got.Entries) == 0 && len(got.Totals) == 0
		})
		t.checkNotEarly("the completed record expired", own.returnedAt, short, beginResult{returnedAt: time.Now()})
	},
}, {
	name: "list/forget",
	rule: "A listed entry can be forgotten. Afterwards, List does not return the record.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 200)
		for i, listed := range all {
			got := t.listRecords(oldestFirst)
			t.checkListed(got, len(all)-i, all[i:])
			t.forgetRecord(got.Entries[0])
			listed.checkNoRecord()
		}
		t.checkListing(idempotency.ListRequest{})
	},
}, {
	name: "list/concurrently",
	rule: "During concurrent changes of other records, List returns each unchanged record once.",
	checkRule: func(t *trial) {
		all := t.createAllCompleted(100, 200, 300)
		// The changed records are created later, so their entries follow those of the unchanged records.
		for round := range raceRounds {
			other := t.withSiblingKey()
			own := other.claimKey(request)
			var got idempotency.Listing
			var completeErr error
			runBothAtOnce(round, func() { got = t.listRecords(oldestFirst) }, func() {
				completeErr = own.claim.Complete(t.ctx, newReceipt("of another"), long)
			})
			t.checkSuccess("Complete", completeErr)
			if len(got.Entries) < len(all) || len(got.Entries) > len(all)+1 {
				t.failf("List returned %d entries, want %d or %d", len(got.Entries), len(all), len(all)+1)
			}
			for i, listed := range all {
				listed.checkEntry(got.Entries[i], listed.expectedState, listed.own)
			}
			other.forgetRecord(other.inspectKey().Entry)
		}
	},
}}

// The requests for all records of a user in an order other than the default.
var (
	oldestFirst  = idempotency.ListRequest{Order: idempotency.OldestFirst}
	largestFirst = idempotency.ListRequest{Order: idempotency.LargestFirst}
)

// listedRecord is a record that List must return.
type listedRecord struct {
	*trial
	expectedState idempotency.State
	own           beginResult
}

// createCompleted claims the key, and completes the operation with a body of size bytes.
func (t *trial) createCompleted(size int) listedRecord {
	own, resp := t.claimKey(request), newReceipt("")
	resp.Body = newNoise(size)
	t.completeClaim(own, resp)
	return listedRecord{t, idempotency.StateCompleted, own}
}

// createAllCompleted creates a completed record of the user for each size, and returns the records, the oldest first.
func (t *trial) createAllCompleted(sizes ...int) (all []listedRecord) {
	for _, size := range sizes {
		all = append(all, t.withSiblingKey().createCompleted(size))
		t.waitForClock()
	}
	return all
}

// createOneOfEachState creates a record of the user in each state, and returns the records, the oldest first.
func (t *trial) createOneOfEachState() (all []listedRecord) {
	all = append(all, t.withSiblingKey().createCompleted(1000))
	t.waitForClock()
	sibling := t.withSiblingKey()
	all = append(all, listedRecord{sibling, idempotency.StateAbandoned, sibling.claimUntilLapsed()})
	t.waitForClock()
	sibling = t.withSiblingKey()
	own := sibling.claimKey(request)
	sibling.releaseClaim(own)
	all = append(all, listedRecord{sibling, idempotency.StateReleased, own})
	t.waitForClock()
	sibling = t.withSiblingKey()
	return append(all, listedRecord{sibling, idempotency.StateRunning, sibling.claimKey(request)})
}

// filterStates returns the records in the given states.
func filterStates(all []listedRecord, states ...idempotency.State) []listedRecord {
	return slices.DeleteFunc(slices.Clone(all), func(l listedRecord) bool {
		return !slices.Contains(states, l.expectedState)
	})
}

// checkListing checks that List returns exactly the records in want.
func (t *trial) checkListing(listRequest idempotency.ListRequest, want ...listedRecord) {
	t.checkListingStart(len(want), listRequest, want...)
}

// checkListingStart checks that List returns the first most records in want, and that the totals count all of want.
func (t *trial) checkListingStart(most int, listRequest idempotency.ListRequest, want ...listedRecord) {
	t.checkListed(t.listRecords(listRequest), most, want)
}

// canList reports whether the store can list by the parts of the key in listRequest. A store that cannot must say so.
func (t *trial) canList(listRequest idempotency.ListRequest) bool {
	_, err := t.asInspector().List(t.ctx, listRequest)
	if errors.Is(err, errors.ErrUnsupported) {
		return false
	}
	t.checkSuccess("List", err)
	return true
}

// checkKeyPart checks lists by one part of the key, to which the result of part points.
func (t *trial) checkKeyPart(part func(*idempotency.Key) *string) {
	key := newKey()
	key.Endpoint += "/" + key.ID // so that no other case has the endpoint
	selectPart := func(value string) idempotency.ListRequest {
		var selected idempotency.Key
		*part(&selected) = value
		return idempotency.ListRequest{
			User: selected.User, Endpoint: selected.Endpoint, ID: selected.ID, Order: idempotency.OldestFirst,
		}
	}
	if !t.canList(selectPart(*part(&key))) {
		return
	}
	similar, ofOtherUser := key, key
	*part(&similar) += "'"
	ofOtherUser.User += "'"
	mine := t.withKey(key).createCompleted(100)
	t.waitForClock()
	theirs := t.withKey(similar).createCompleted(200)
	t.waitForClock()
	shared := t.withKey(ofOtherUser).createCompleted(300)
	check := func(listRequest idempotency.ListRequest, want ...listedRecord) {
		got, err := t.asInspector().List(t.ctx, listRequest)
		t.checkSuccess("List", err)
		t.checkListed(got, len(want), want)
	}
	check(selectPart(*part(&key)), mine, shared)
	check(selectPart(*part(&similar)), theirs)
	check(selectPart(newKey().ID))
	wholeKey := idempotency.ListRequest{User: key.User, Endpoint: key.Endpoint, ID: key.ID}
	if t.canList(wholeKey) {
		check(wholeKey, mine)
	}
}

// checkEach checks that List passes exactly the records in want to Each, in any order.
func (t *trial) checkEach(listRequest idempotency.ListRequest, want ...listedRecord) {
	var entries []idempotency.Entry
	listRequest.Each = func(entry idempotency.Entry) error {
		entries = append(entries, entry)
		return nil
	}
	got, err := t.tryList(listRequest)
	t.checkSuccess("List", err)
	if len(got.Entries) != 0 {
		t.failf("with Each, List returned %d entries, want 0", len(got.Entries))
	}
	slices.SortFunc(entries, oldestFirst.Compare)
	got.Entries = entries
	t.checkListed(got, len(want), want)
}

// checkPages checks that the records in want are the entries of successive listings, each with a Limit of 1.
func (t *trial) checkPages(listRequest idempotency.ListRequest, want ...listedRecord) {
	for _, next := range want {
		got := t.listRecords(listRequest)
		if len(got.Entries) != 1 || got.Totals[idempotency.StateCompleted].Records != len(want) {
			t.failf("a page with Limit 1 has %d entries, and the totals %v", len(got.Entries), got.Totals)
		}
		next.checkEntry(got.Entries[0], next.expectedState, next.own)
		listRequest.After = &got.Entries[0]
	}
	if got := t.listRecords(listRequest); len(got.Entries) != 0 {
		t.failf("List returned %d entries after the last record, want 0", len(got.Entries))
	}
}

// checkListed checks that the entries of got are the first most records in want, and that the totals count all of want.
func (t *trial) checkListed(got idempotency.Listing, most int, want []listedRecord) {
	switch {
	case got.Partial || got.Unreadable != 0:
		t.failf("Partial is %t and Unreadable is %d, want false and 0", got.Partial, got.Unreadable)
	case len(got.Entries) != most:
		t.failf("List returned %d entries, want %d", len(got.Entries), most)
	}
	totals := make(map[idempotency.State]idempotency.Total)
	for i, listed := range want {
		seen := listed.inspectState(listed.expectedState, listed.own)
		total := totals[listed.expectedState]
		totals[listed.expectedState] = idempotency.Total{Records: total.Records + 1, Bytes: total.Bytes + seen.Size}
		if i < most {
			listed.checkListedEntry(got.Entries[i], seen)
		}
	}
	if fmt.Sprint(got.Totals) != fmt.Sprint(totals) { // Sprint sorts the keys of a map
		t.failf("the totals are %v, want %v", got.Totals, totals)
	}
}

// checkListedEntry compares an entry of a listing with the entry that Inspect has returned.
func (l listedRecord) checkListedEntry(got idempotency.Entry, seen inspectedEntry) {
	l.checkEntry(got, l.expectedState, l.own)
	switch {
	case got.Response != nil:
		l.failf("a listed entry has a response")
	case got.Size != seen.Size:
		l.failf("Inspect returned the size %d, but List returned %d", seen.Size, got.Size)
	case got.Status != seen.Status:
		l.failf("Inspect returned the status %d, but List returned %d", seen.Status, got.Status)
	case got.Key != seen.Key:
		l.failf("Inspect and List returned different keys of a record")
	case got.State == idempotency.StateRunning && (got.LeaseLeft <= 0 || got.LeaseLeft > long+clockResolution):
		l.failf("LeaseLeft of a lease of %v is listed as %v", long, got.LeaseLeft)
	case got.Note != "" && got.Note != seen.Note:
		l.failf("Inspect returned the note %q, but List returned %q", seen.Note, got.Note)
	}
}
