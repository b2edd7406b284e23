package idempotencytest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// RunInspector tests stores that implement [idempotency.Inspector]. As [Run] does, RunInspector calls newStore for each
// rule, and tests the rule in a subtest. The stores must also pass Run, whose rules RunInspector does not repeat, and
// need the same room.
//
// The stores may share a database if they can list the records of one user, because every subtest has its own users.
// Otherwise each store needs an empty database, because some subtests count the listed records.
func RunInspector(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	if _, ok := store.(idempotency.Inspector); !ok {
		t.Fatalf("a %T does not implement idempotency.Inspector", store)
	}
	if err := checkTwoClaims(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runCases(t, "inspector", inspectorCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

func inspectorCases() []testCase {
	return slices.Concat(inspectCases, forgetCases, forgetRaceCases, listCases)
}

// asInspector returns the store as an Inspector.
func (t *trial) asInspector() idempotency.Inspector { return t.store.(idempotency.Inspector) }

// inspectedEntry is the result of a call to Inspect.
type inspectedEntry struct {
	idempotency.Entry
	calledAt, returnedAt time.Time
}

// inspectKey calls Inspect, which must find an entry.
func (t *trial) inspectKey() inspectedEntry {
	calledAt := time.Now()
	entry, err := t.asInspector().Inspect(t.ctx, t.key)
	t.checkSuccess("Inspect", err)
	return inspectedEntry{entry, calledAt, time.Now()}
}

// inspectState calls Inspect, which must return the entry of own in the given state.
func (t *trial) inspectState(state idempotency.State, own beginResult) inspectedEntry {
	seen := t.inspectKey()
	t.checkEntry(seen.Entry, state, own)
	if seen.Fingerprint == (idempotency.Fingerprint{}) {
		t.failf("the entry has no fingerprint")
	}
	return seen
}

// checkNoRecord checks that Inspect finds no record.
func (t *trial) checkNoRecord() {
	_, err := t.asInspector().Inspect(t.ctx, t.key)
	t.checkError("Inspect", err, idempotency.ErrNoRecord)
}

// tryForget calls Forget, and returns its error to the caller.
func (t *trial) tryForget(entry idempotency.Entry) error { return t.asInspector().Forget(t.ctx, entry) }

// forgetRecord calls Forget, which must succeed.
func (t *trial) forgetRecord(entry idempotency.Entry) { t.checkSuccess("Forget", t.tryForget(entry)) }

// listRecords lists the records of the user of the key, by tryList, which must succeed.
func (t *trial) listRecords(listRequest idempotency.ListRequest) idempotency.Listing {
	listing, err := t.tryList(listRequest)
	t.checkSuccess("List", err)
	return listing
}

// tryList lists the records of the user of the key, and returns the error of List to the caller. If the store cannot
// list by user, tryList lists all records, because the database is empty apart from the records of the case.
func (t *trial) tryList(listRequest idempotency.ListRequest) (idempotency.Listing, error) {
	listRequest.User = t.key.User
	listing, err := t.asInspector().List(t.ctx, listRequest)
	if errors.Is(err, errors.ErrUnsupported) {
		listRequest.User = ""
		listing, err = t.asInspector().List(t.ctx, listRequest)
	}
	return listing, err
}

// withSiblingKey returns a trial with a new key of the same user.
func (t *trial) withSiblingKey() *trial {
	key := t.key
	key.ID = uuid.NewString()
	return t.withKey(key)
}

// waitForClock returns when the clock of the store shows another time than before, also if the store rounds times.
func (t *trial) waitForClock() { t.checkUntil(time.Now().Add(2*clockResolution), func() {}) }

// runBothAtOnce calls both functions at the same time. One of them runs in this goroutine, and mostly begins first. The
// two functions change places in every round.
func runBothAtOnce(round int, one, other func()) {
	both := [2]func(){one, other}
	var background sync.WaitGroup
	background.Go(both[round%2])
	both[1-round%2]()
	background.Wait()
}

// checkEntry checks the fields that inspected and listed entries have in common: seen must be the entry of own in
// state.
func (t *trial) checkEntry(seen idempotency.Entry, state idempotency.State, own beginResult) {
	if seen.State != state {
		t.failf("the state of the entry is %q, want %q", seen.State, state)
	}
	t.checkEntryKey(seen)
	switch {
	case seen.Attempt != own.Attempt:
		t.failf("the entry has attempt number %d, want %d", seen.Attempt, own.Attempt)
	case seen.Created.Sub(own.Created).Abs() > clockResolution:
		t.failf("the entry says that the operation was created at %v, want %v", seen.Created, own.Created)
	case seen.Size < 0 || seen.Remaining < 0:
		t.failf("Size is %d and Remaining is %v, but neither may be negative", seen.Size, seen.Remaining)
	case state != idempotency.StateRunning && seen.LeaseLeft != 0:
		t.failf("LeaseLeft is %v, although no attempt is running", seen.LeaseLeft)
	case state != idempotency.StateCompleted && (seen.Response != nil || seen.Status != 0 || seen.Note != ""):
		t.failf("the operation is not completed, but the entry has a response, the status %d, or the note %q",
			seen.Status, seen.Note)
	case state != idempotency.StateCompleted && !seen.Completed.IsZero():
		t.failf("the operation is not completed, but Completed is %v", seen.Completed)
	}
}

// checkEntryKey checks that the entry has the ID of the operation, and that the parts of its key are empty or correct.
func (t *trial) checkEntryKey(seen idempotency.Entry) {
	differs := func(part, want string) bool { return part != "" && part != want }
	switch {
	case seen.Operation != t.key.OperationID():
		t.failf("the entry belongs to operation %v, want %v", seen.Operation, t.key.OperationID())
	case differs(seen.Key.User, t.key.User), differs(seen.Key.Endpoint, t.key.Endpoint), differs(seen.Key.ID, t.key.ID):
		t.failf("the entry has the key of another operation: %q %q %q", seen.Key.User, seen.Key.Endpoint, seen.Key.ID)
	}
}

// checkEntryResponse checks that the entry has the response resp, with its status and note.
func (t *trial) checkEntryResponse(seen inspectedEntry, resp idempotency.Response) {
	switch {
	case seen.Response == nil:
		t.failf("the entry has no response")
	case seen.Status != resp.Status:
		t.failf("the entry has status %d, want %d", seen.Status, resp.Status)
	case seen.Note != resp.Note:
		t.failf("the entry has the note %q, want %q", seen.Note, resp.Note)
	case seen.Size < int64(len(resp.Body)):
		t.failf("the entry has size %d, but the body alone has %d bytes", seen.Size, len(resp.Body))
	}
	if diff := describeDifference(*seen.Response, resp); diff != "" {
		t.failf("the response differs from the completed response: %s", diff)
	}
}

// checkRemaining checks Remaining of an entry that is kept for ttl from a time between since and until. Zero means that
// the store does not know the remaining time.
func (t *trial) checkRemaining(seen inspectedEntry, ttl time.Duration, since, until time.Time) {
	least, most := ttl-seen.returnedAt.Sub(since)-clockResolution, ttl-seen.calledAt.Sub(until)+clockResolution
	if left := seen.Remaining; left != 0 && (left < least || left > most) {
		t.failf("Remaining is %v, but the record was to be kept for %v, so Remaining must be from %v to %v",
			left, ttl, least, most)
	}
}

// checkEntryLease checks LeaseLeft of the entry against the lease of own.
func (t *trial) checkEntryLease(seen inspectedEntry, own beginResult) {
	t.checkLease(beginResult{Record: idempotency.Record{LeaseLeft: seen.LeaseLeft}, returnedAt: seen.returnedAt}, own)
}
