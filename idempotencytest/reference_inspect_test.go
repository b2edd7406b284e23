package idempotencytest

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// The inspectors of the reference stores keep the contract unless the store has one of the faults in their code.

var (
	_ idempotency.Inspector = (*reference)(nil)
)

// Inspect implements [idempotency.Inspector].
func (r *reference) Inspect(_ context.Context, key idempotency.Key) (idempotency.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.has("keys without user") {
		key = r.namesake(key)
	}
	e := r.shown(key, now)
	if e == nil {
		if r.has("inspecting claims") {
			r.entries[key] = &entry{Record: idempotency.Record{Attempt: 1}, ttl: now.Add(long)}
		}
		if r.has("nothing is an empty entry") {
			return idempotency.Entry{}, nil
		}
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	switch {
	case r.has("inspecting prolongs the record"):
		e.ttl = now.Add(e.retention)
	case r.has("inspecting prolongs the lease") && e.lease.After(now):
		e.lease = now.Add(short)
	case r.has("inspecting ends the lease"):
		defer func() { e.lease = now }()
	case r.has("inspecting forgets what was abandoned") && e.Response == nil && !e.released && !e.lease.After(now):
		delete(r.entries, key)
	}
	shown := r.entry(key, e, now)
	if e.Response != nil {
		copied := e.Response.Clone()
		shown.Response, shown.Note = &copied, copied.Note
		switch r.bug {
		case "note is not in the response":
			copied.Note = ""
		case "note is lost":
			shown.Note = ""
		case "inspecting cuts the note for good":
			bare := e.Response.Clone()
			bare.Note, e.Response = "", &bare
		case "response is not shown":
			shown.Response = nil
		case "body is cut at 1 MiB":
			copied.Body = copied.Body[:min(1<<20, len(copied.Body))]
		case "omission is not shown":
			copied.Omitted = false
		}
	}
	return shown, nil
}

// namesake returns a key that has a record, and is equal but for its user.
func (r *reference) namesake(key idempotency.Key) idempotency.Key {
	for other := range r.entries {
		if other.Endpoint == key.Endpoint && other.ID == key.ID {
			return other
		}
	}
	return key
}

// shown returns the record of a key.
func (r *reference) shown(key idempotency.Key, now time.Time) *entry {
	if r.has("expired is shown") {
		return r.entries[key]
	}
	return r.find(key, now)
}

// entry returns what is known of a record, but for the response.
func (r *reference) entry(key idempotency.Key, e *entry, now time.Time) idempotency.Entry {
	shown := idempotency.Entry{
		Key: key, Digest: key.Digest(), State: idempotency.StateAbandoned,
		Attempt: e.Attempt, Created: e.Created, Fingerprint: e.Fingerprint,
		Remaining: e.ttl.Sub(now), Size: int64(len(key.User) + len(key.Endpoint) + len(key.ID)), Resolved: e.resolved,
	}
	switch {
	case e.Response != nil:
		shown.State, shown.Status, shown.Completed = idempotency.StateCompleted, e.Response.Status, e.lease
		shown.Size += int64(len(e.Response.Header) + len(e.Response.Trailer) + len(e.Response.Body))
	case e.released:
		shown.State = idempotency.StateReleased
	case e.lease.After(now):
		shown.State, shown.LeaseLeft = idempotency.StateRunning, e.lease.Sub(now)
	}
	r.distort(&shown, e)
	return shown
}

// distort does to an entry what is a fault.
func (r *reference) distort(shown *idempotency.Entry, e *entry) {
	state := shown.State
	switch r.bug {
	case "running seems abandoned":
		if state == idempotency.StateRunning {
			shown.State, shown.LeaseLeft = idempotency.StateAbandoned, 0
		}
	case "released seems abandoned":
		if state == idempotency.StateReleased {
			shown.State = idempotency.StateAbandoned
		}
	case "lapse is not shown":
		if state == idempotency.StateAbandoned {
			shown.State = idempotency.StateRunning
		}
	case "refusals seem released":
		if shown.Status >= 400 {
			*shown = idempotency.Entry{Key: shown.Key, Digest: shown.Digest, State: idempotency.StateReleased}
		}
	case "lease left is the whole lease":
		if shown.LeaseLeft > 0 {
			shown.LeaseLeft += time.Second
		}
	case "remaining time is that of the lease":
		if state == idempotency.StateRunning {
			shown.Remaining = shown.LeaseLeft / 2
		}
	case "remaining time is that of the claim":
		shown.Remaining = long
	case "entry has no digest":
		shown.Digest = [32]byte{}
	case "entry has another key":
		shown.Key.ID += "'"
	case "running entry has no fingerprint":
		shown.Fingerprint = idempotency.Fingerprint{}
	case "entry is of the first attempt":
		shown.Attempt = 1
	case "creation is a microsecond late":
		shown.Created = shown.Created.Add(time.Microsecond)
	case "entry was created with its attempt":
		shown.Created = e.owner.claimed.lease.Add(-long)
	case "completed when created":
		shown.Completed = shown.Created
	case "completed now":
		shown.Completed = time.Now().Add(time.Second)
	case "size is that of the key":
		shown.Size = 100
	case "status is 200":
		shown.Status = min(shown.Status, 200)
	}
}

// Forget implements [idempotency.Inspector].
func (r *reference) Forget(_ context.Context, asked idempotency.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.has("forgetting by the key alone") {
		for key := range r.entries {
			if key.ID == asked.Key.ID {
				delete(r.entries, key)
			}
		}
		return nil
	}
	now := time.Now()
	e := r.find(asked.Key, now)
	if e == nil {
		if r.has("forgetting nothing succeeds") || r.has("expired is forgotten") && !asked.Created.Add(2*short).After(now) {
			return nil
		}
		return idempotency.ErrNoRecord
	}
	have := r.entry(asked.Key, e, now)
	err := r.compare(have, asked)
	if err != nil || r.has("forgetting does nothing") || r.has("released is not forgotten") && e.released ||
		r.has("abandoned is not forgotten") && have.State == idempotency.StateAbandoned {
		return err
	}
	if r.has("forgetting checks, then removes") {
		r.pause()
	}
	switch {
	case r.has("forgetting releases"):
		e.Response, e.released = nil, true
		return nil
	case r.has("forgetting fences the owner"):
		e.owner.settled, e.owner.store = true, newReference("Complete does not restore")
	case r.has("forgetting removes twice"):
		delete(r.entries, asked.Key)
		r.pause()
	}
	delete(r.entries, asked.Key)
	return nil
}

// compare returns why an entry is not forgotten.
func (r *reference) compare(have, asked idempotency.Entry) error {
	switch {
	case have.State == idempotency.StateRunning && r.has("running is forgotten"):
		return nil
	case have.State == idempotency.StateRunning && r.has("running is forgotten if the entry says otherwise"):
		if asked.State != idempotency.StateRunning {
			return nil
		}
		return idempotency.ErrInProgress
	case have.State == idempotency.StateRunning && have.State != asked.State && r.has("what runs again has changed"):
		return idempotency.ErrEntryChanged
	case have.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	case have.State != asked.State && !r.has("state is not compared"),
		have.Attempt != asked.Attempt && !r.has("attempt is not compared"),
		!have.Created.Equal(asked.Created) && !r.has("time of creation is not compared"):
		return idempotency.ErrEntryChanged
	}
	return nil
}

// List implements [idempotency.Inspector].
func (r *reference) List(_ context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.has("knows no users") && request.User != "" {
		return idempotency.Listing{}, errors.ErrUnsupported
	}
	found := r.collect(request.User)
	if r.has("listing in two steps") {
		ran := slices.DeleteFunc(found, func(e idempotency.Entry) bool { return e.State != idempotency.StateRunning })
		r.pause()
		found = append(ran, r.collect(request.User)...)
	}
	return list(r, found, request), nil
}

// collect returns all records of a user.
func (r *reference) collect(user string) (found []idempotency.Entry) {
	now := time.Now()
	for key := range r.entries {
		if e := r.listable(key, now); e != nil && r.isOf(user, key) {
			found = append(found, r.listed(key, e, now))
		}
	}
	return found
}

// listable returns the record of a key, if it is listed.
func (r *reference) listable(key idempotency.Key, now time.Time) *entry {
	if r.has("expired is listed") {
		return r.entries[key]
	}
	return r.find(key, now)
}

func (r *reference) isOf(user string, key idempotency.Key) bool {
	return user == "" || key.User == user || r.has("all users are listed") ||
		r.has("users by their beginning") && strings.HasPrefix(key.User, user)
}

func (r *reference) listed(key idempotency.Key, e *entry, now time.Time) idempotency.Entry {
	shown := r.entry(key, e, now)
	switch r.bug {
	case "responses are listed":
		shown.Response = e.Response
	case "listed size is another":
		shown.Size++
	case "listed lease is over":
		shown.LeaseLeft = 0
	case "listed status is lost":
		shown.Status = 0
	case "listed entries cannot be forgotten":
		shown.Created = shown.Created.Add(time.Nanosecond)
	}
	return shown
}

// lister is a reference store, of which a fault may be asked.
type lister interface{ has(bug string) bool }

// list returns those of the entries that are asked for.
func list(s lister, found []idempotency.Entry, request idempotency.ListRequest) idempotency.Listing {
	scan := cmp.Or(request.Scan, 100_000)
	got := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total), Partial: s.has("nothing is partial")}
	if scans := s.has("has to scan") || s.has("scan is silent") || s.has("scan is exceeded"); scans && len(found) > scan {
		got.Partial = !s.has("scan is silent")
		if !s.has("scan is exceeded") {
			found = found[:scan]
		}
	}
	if s.has("scan is 100") && len(found) > 100 {
		found = found[:100]
	}
	if s.has("empty totals") {
		got.Totals[idempotency.StateRunning] = idempotency.Total{}
	}
	states := request.States
	switch {
	case s.has("states are ignored"):
		states = nil
	case s.has("first state counts") && len(states) > 1:
		states = states[:1]
	}
	found = slices.DeleteFunc(found, func(e idempotency.Entry) bool { return len(states) > 0 && !slices.Contains(states, e.State) })
	if s.has("records are listed twice") && len(found) > 0 {
		found = append(found, found[0])
	}
	limit := cmp.Or(request.Limit, 100)
	switch {
	case s.has("limit is ignored"), s.has("no default limit") && request.Limit == 0:
		limit = math.MaxInt
	case s.has("limit is one less"):
		limit--
	}
	if s.has("limited, then sorted") {
		slices.SortFunc(found, func(a, b idempotency.Entry) int { return b.Created.Compare(a.Created) })
		found = found[:min(len(found), limit)]
	}
	for state, total := range totals(found) {
		got.Totals[state] = total
	}
	slices.SortFunc(found, order(s, request.Largest))
	if last := request.After; last != nil && !s.has("pages are ignored") {
		behind := slices.IndexFunc(found, func(e idempotency.Entry) bool { return e.Digest == last.Digest }) + 1
		if s.has("pages overlap") {
			behind--
		}
		found = found[behind:]
	}
	if s.has("totals of what follows") {
		got.Totals = totals(found)
	}
	got.Entries = found[:min(len(found), limit)]
	if s.has("totals of what is listed") {
		got.Totals = totals(got.Entries)
	}
	return got
}

func totals(entries []idempotency.Entry) map[idempotency.State]idempotency.Total {
	sums := make(map[idempotency.State]idempotency.Total)
	for _, e := range entries {
		sums[e.State] = idempotency.Total{Records: sums[e.State].Records + 1, Bytes: sums[e.State].Bytes + e.Size}
	}
	return sums
}

func order(s lister, largest bool) func(a, b idempotency.Entry) int {
	switch {
	case largest && s.has("smallest first"):
		return func(a, b idempotency.Entry) int { return cmp.Compare(a.Size, b.Size) }
	case largest && !s.has("size is no order"):
		return func(a, b idempotency.Entry) int { return cmp.Compare(b.Size, a.Size) }
	case s.has("newest first"):
		return func(a, b idempotency.Entry) int { return b.Created.Compare(a.Created) }
	}
	return func(a, b idempotency.Entry) int { return a.Created.Compare(b.Created) }
}
