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

// RunInspector tests stores that implement [idempotency.Inspector]. NewStore returns the stores. Each rule has a
// subtest, which has its own store, as in [Run]. RunInspector does not repeat the rules of Run, which the stores must
// keep, too. A store needs what it needs for Run.
//
// The stores may share a database if they list by user, because every subtest has its own users. Otherwise the database
// of each store has no other records, because a subtest counts what it lists.
func RunInspector(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	store := newStore(t)
	if _, ok := store.(idempotency.Inspector); !ok {
		t.Fatalf("a %T is no idempotency.Inspector", store)
	}
	if err := probe(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	runAll(t, "inspector", inspectorCases(), func(t *testing.T) subject { return subject{store: newStore(t)} })
}

func inspectorCases() []testCase {
	return slices.Concat(inspectCases, forgetCases, forgetRaceCases, listCases)
}

// The steps of an Inspector.

func (t *trial) inspector() idempotency.Inspector { return t.store.(idempotency.Inspector) }

// inspected is what Inspect returned, and when.
type inspected struct {
	idempotency.Entry
	asked, answered time.Time
}

// inspect returns the entry of the key, which must be there.
func (t *trial) inspect() inspected {
	asked := time.Now()
	entry, err := t.inspector().Inspect(t.ctx, t.key)
	t.succeeds("Inspect", err)
	return inspected{entry, asked, time.Now()}
}

// inspectAs returns the entry of the key, which must be that of own in a state.
func (t *trial) inspectAs(state idempotency.State, own answer) inspected {
	seen := t.inspect()
	t.isEntry(seen.Entry, state, own)
	if seen.Fingerprint == (idempotency.Fingerprint{}) {
		t.failf("the entry has no fingerprint")
	}
	return seen
}

// isFree checks that there is nothing to inspect.
func (t *trial) isFree() {
	_, err := t.inspector().Inspect(t.ctx, t.key)
	t.says("Inspect", err, idempotency.ErrNoRecord)
}

func (t *trial) tryForget(entry idempotency.Entry) error { return t.inspector().Forget(t.ctx, entry) }

func (t *trial) forget(entry idempotency.Entry) { t.succeeds("Forget", t.tryForget(entry)) }

// list lists records of the user of the key, or all if the store does not know users: it has no other records then.
func (t *trial) list(request idempotency.ListRequest) idempotency.Listing {
	request.User = t.key.User
	listing, err := t.inspector().List(t.ctx, request)
	if errors.Is(err, errors.ErrUnsupported) {
		request.User = ""
		listing, err = t.inspector().List(t.ctx, request)
	}
	t.succeeds("List", err)
	return listing
}

// sibling returns a trial with another key of the same user.
func (t *trial) sibling() *trial {
	key := t.key
	key.ID = uuid.NewString()
	return t.at(key)
}

// later returns when the clock of the store, too, shows another time.
func (t *trial) later() { t.throughout(time.Now().Add(2*resolution), func() {}) }

// atOnce takes two steps at once. They change places from round to round.
func atOnce(round int, one, other func()) {
	steps := [2]func(){one, other}
	var first sync.WaitGroup
	first.Go(steps[round%2])
	steps[1-round%2]()
	first.Wait()
}

// What an Entry says.

// isEntry checks what every entry of own says in a state, be it inspected or listed.
func (t *trial) isEntry(seen idempotency.Entry, state idempotency.State, own answer) {
	if seen.State != state {
		t.failf("the state is %q, not %q", seen.State, state)
	}
	t.names(seen)
	switch {
	case seen.OperationID() != t.key.OperationID():
		t.failf("the entry is of operation %v, not of %v", seen.OperationID(), t.key.OperationID())
	case seen.Attempt != own.Attempt:
		t.failf("the entry is of attempt %d, not of attempt %d", seen.Attempt, own.Attempt)
	case seen.Created.Sub(own.Created).Abs() > resolution:
		t.failf("the operation was created at %v, not at %v", seen.Created, own.Created)
	case seen.Size < 0 || seen.Remaining < 0:
		t.failf("the entry has a size of %d, and is kept for %v", seen.Size, seen.Remaining)
	case state != idempotency.StateRunning && seen.LeaseLeft != 0:
		t.failf("an entry without a lease says that %v are left", seen.LeaseLeft)
	case state != idempotency.StateCompleted && (seen.Response != nil || seen.Status != 0 || seen.Note != ""):
		t.failf("the operation is not completed, and has a response, the status %d, or the note %q", seen.Status, seen.Note)
	case state != idempotency.StateCompleted && !seen.Completed.IsZero():
		t.failf("the operation is not completed, and was at %v", seen.Completed)
	}
}

// names checks that an entry is that of the key.
func (t *trial) names(seen idempotency.Entry) {
	differs := func(part, want string) bool { return part != "" && part != want }
	switch {
	case seen.Digest != t.key.Digest():
		t.failf("the entry does not have the digest of the key")
	case differs(seen.Key.User, t.key.User), differs(seen.Key.Endpoint, t.key.Endpoint), differs(seen.Key.ID, t.key.ID):
		t.failf("the entry has another key, %q %q %q", seen.Key.User, seen.Key.Endpoint, seen.Key.ID)
	}
}

// hasAnswer checks that an entry has a response, with its note.
func (t *trial) hasAnswer(seen inspected, resp idempotency.Response) {
	switch {
	case seen.Response == nil:
		t.failf("the entry has no response")
	case seen.Status != resp.Status:
		t.failf("the entry has status %d, not %d", seen.Status, resp.Status)
	case seen.Note != resp.Note:
		t.failf("the note is %q, not %q", seen.Note, resp.Note)
	case seen.Size < int64(len(resp.Body)):
		t.failf("the size is %d, but the body has %d bytes", seen.Size, len(resp.Body))
	}
	if diff := difference(*seen.Response, resp); diff != "" {
		t.failf("the response is not what was completed: %s", diff)
	}
}

// isKeptFor checks that an entry says how long it is kept, or that it is not known: span, counted from a time within those
// given.
func (t *trial) isKeptFor(seen inspected, span time.Duration, since, until time.Time) {
	least, most := span-seen.answered.Sub(since)-resolution, span-seen.asked.Sub(until)+resolution
	if left := seen.Remaining; left != 0 && (left < least || left > most) {
		t.failf("of %v, for which the record is kept, %v are said to be left", span, left)
	}
}

// hasLease checks that an entry says how much is left of the lease of own.
func (t *trial) hasLease(seen inspected, own answer) {
	t.leaseRuns(answer{Record: idempotency.Record{LeaseLeft: seen.LeaseLeft}, answered: seen.answered}, own)
}
