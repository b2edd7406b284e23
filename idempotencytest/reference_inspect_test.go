package idempotencytest

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// As an Inspector, referenceStore keeps the contract unless the field bug names one of the bugs below.

var _ idempotency.Inspector = (*referenceStore)(nil)

// Inspect implements [idempotency.Inspector].
func (r *referenceStore) Inspect(_ context.Context, key idempotency.Key) (idempotency.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.hasBug("keys without user") {
		key = r.findNamesake(key)
	}
	e := r.findShownEntry(key, now)
	if e == nil {
		if r.hasBug("inspecting claims") {
			r.entries[key] = &entry{Record: idempotency.Record{Attempt: 1}, expiresAt: now.Add(long)}
		}
		if r.hasBug("nothing is an empty entry") {
			return idempotency.Entry{}, nil
		}
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	switch {
	case r.hasBug("inspecting prolongs the record"):
		e.expiresAt = now.Add(e.retention)
	case r.hasBug("inspecting prolongs the lease") && e.leaseEnd.After(now):
		e.leaseEnd = now.Add(short)
	case r.hasBug("inspecting ends the lease"):
		defer func() { e.leaseEnd = now }()
	case r.hasBug("inspecting forgets what was abandoned") && e.Response == nil && !e.isReleased && !e.leaseEnd.After(now):
		delete(r.entries, key)
	}
	shown := r.describeEntry(key, e, now)
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

// findNamesake returns a key with a record that equals key in all parts except the user, or key itself.
func (r *referenceStore) findNamesake(key idempotency.Key) idempotency.Key {
	for other := range r.entries {
		if other.Endpoint == key.Endpoint && other.ID == key.ID {
			return other
		}
	}
	return key
}

// findShownEntry returns the record that Inspect shows.
func (r *referenceStore) findShownEntry(key idempotency.Key, now time.Time) *entry {
	if r.hasBug("expired is shown") {
		return r.entries[key]
	}
	return r.findEntry(key, now)
}

// describeEntry returns the record e as Inspect shows the record, but without the response.
func (r *referenceStore) describeEntry(key idempotency.Key, e *entry, now time.Time) idempotency.Entry {
	shown := idempotency.Entry{
		Key: key, Operation: key.OperationID(), State: idempotency.StateAbandoned,
		Attempt: e.Attempt, Created: e.Created, Fingerprint: e.Fingerprint,
		Remaining: e.expiresAt.Sub(now), Size: int64(len(key.User) + len(key.Endpoint) + len(key.ID)), Resolved: e.resolved,
		Ended: e.endReason,
	}
	switch {
	case e.Response != nil:
		shown.State, shown.Status, shown.Completed = idempotency.StateCompleted, e.Response.Status, e.leaseEnd
		shown.Size += int64(len(e.Response.Header) + len(e.Response.Trailer) + len(e.Response.Body))
	case e.isReleased:
		shown.State = idempotency.StateReleased
	case e.leaseEnd.After(now):
		shown.State, shown.LeaseLeft = idempotency.StateRunning, e.leaseEnd.Sub(now)
	}
	r.distortEntry(&shown, e)
	return shown
}

// distortEntry changes an entry if a bug demands this.
func (r *referenceStore) distortEntry(shown *idempotency.Entry, e *entry) {
	state := shown.State
	switch r.bug {
	case "reason is not shown":
		shown.Ended = ""
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
			*shown = idempotency.Entry{Key: shown.Key, Operation: shown.Operation, State: idempotency.StateReleased}
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
	case "entry has no operation":
		shown.Operation = uuid.Nil
	case "entry has another key":
		shown.Key.ID += "'"
	case "running entry has no fingerprint":
		shown.Fingerprint = idempotency.Fingerprint{}
	case "entry is of the first attempt":
		shown.Attempt = 1
	case "creation is a microsecond late":
		shown.Created = shown.Created.Add(time.Microsecond)
	case "entry was created with its attempt":
		shown.Created = e.owner.claimed.leaseEnd.Add(-long)
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
func (r *referenceStore) Forget(_ context.Context, asked idempotency.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hasBug("forgetting by the key alone") {
		for key := range r.entries {
			if key.ID == asked.Key.ID {
				delete(r.entries, key)
			}
		}
		return nil
	}
	now := time.Now()
	e := r.findEntry(asked.Key, now)
	if e == nil {
		if r.hasBug("forgetting nothing succeeds") || r.hasBug("expired is forgotten") && !asked.Created.Add(2*short).After(now) {
			return nil
		}
		return idempotency.ErrNoRecord
	}
	have := r.describeEntry(asked.Key, e, now)
	err := r.compareEntries(have, asked)
	if err != nil || r.hasBug("forgetting does nothing") || r.hasBug("released is not forgotten") && e.isReleased ||
		r.hasBug("abandoned is not forgotten") && have.State == idempotency.StateAbandoned {
		return err
	}
	if r.hasBug("forgetting checks, then removes") {
		r.yieldLock()
	}
	switch {
	case r.hasBug("forgetting releases"):
		e.Response, e.isReleased = nil, true
		return nil
	case r.hasBug("forgetting fences the owner"):
		e.owner.isSettled, e.owner.store = true, newReferenceStore("Complete does not restore")
	case r.hasBug("forgetting removes twice"):
		delete(r.entries, asked.Key)
		r.yieldLock()
	}
	delete(r.entries, asked.Key)
	return nil
}

// compareEntries returns the error of Forget: nil if the record have may be forgotten by a caller who has the entry
// asked.
func (r *referenceStore) compareEntries(have, asked idempotency.Entry) error {
	switch {
	case have.State == idempotency.StateRunning && r.hasBug("running is forgotten"):
		return nil
	case have.State == idempotency.StateRunning && r.hasBug("running is forgotten if the entry says otherwise"):
		if asked.State != idempotency.StateRunning {
			return nil
		}
		return idempotency.ErrInProgress
	case have.State == idempotency.StateRunning && have.State != asked.State && r.hasBug("what runs again has changed"):
		return idempotency.ErrEntryChanged
	case have.State == idempotency.StateRunning:
		return idempotency.ErrInProgress
	case have.State != asked.State && !r.hasBug("state is not compared"),
		have.Attempt != asked.Attempt && !r.hasBug("attempt is not compared"),
		!have.Created.Equal(asked.Created) && !r.hasBug("time of creation is not compared"):
		return idempotency.ErrEntryChanged
	}
	return nil
}

// List implements [idempotency.Inspector].
func (r *referenceStore) List(_ context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hasOtherPart := request.Endpoint != "" || request.ID != ""
	switch {
	case r.hasBug("knows no users") && request.User != "", r.hasBug("knows users only") && hasOtherPart:
		return idempotency.Listing{}, errors.ErrUnsupported
	case r.hasBug("parts of keys are an error") && hasOtherPart:
		return idempotency.Listing{}, errors.New("which part?")
	}
	found := r.collectEntries(request)
	if r.hasBug("listing in two steps") {
		ran := slices.DeleteFunc(found, func(e idempotency.Entry) bool { return e.State != idempotency.StateRunning })
		r.yieldLock()
		found = append(ran, r.collectEntries(request)...)
	}
	return listEntries(r, found, request)
}

// collectEntries returns the entries of all records with the key and the time of request.
func (r *referenceStore) collectEntries(request idempotency.ListRequest) (found []idempotency.Entry) {
	now := time.Now()
	for key := range r.entries {
		if e := r.findListableEntry(key, now); e != nil && r.isSelected(request, key) && r.isInTime(request, e.Created) {
			found = append(found, r.describeListedEntry(key, e, now))
		}
	}
	return found
}

// findListableEntry returns the record that List returns for a key, or nil.
func (r *referenceStore) findListableEntry(key idempotency.Key, now time.Time) *entry {
	if r.hasBug("expired is listed") {
		return r.entries[key]
	}
	return r.findEntry(key, now)
}

// isSelected reports whether key has the parts of request.
func (r *referenceStore) isSelected(request idempotency.ListRequest, key idempotency.Key) bool {
	return r.isPart("users", request.User, key.User) && r.isPart("endpoints", request.Endpoint, key.Endpoint) &&
		r.isPart("keys", request.ID, key.ID)
}

// isPart reports whether a request for the given part, or for any part if asked is empty, selects a key with the part.
func (r *referenceStore) isPart(kind, asked, part string) bool {
	return asked == "" || asked == part || r.hasBug("all "+kind+" are listed") ||
		r.hasBug(kind+" by their beginning") && strings.HasPrefix(part, asked)
}

// isInTime reports whether a record that was created at this time is within the bounds of request.
func (r *referenceStore) isInTime(request idempotency.ListRequest, created time.Time) bool {
	isEarly, isLate := created.Before(request.Since), !request.Before.IsZero() && !created.Before(request.Before)
	switch r.bug {
	case "times are ignored":
		return true
	case "since is exclusive":
		isEarly = !created.After(request.Since)
	case "before is inclusive":
		isLate = !request.Before.IsZero() && created.After(request.Before)
	}
	return !isEarly && !isLate
}

func (r *referenceStore) describeListedEntry(key idempotency.Key, e *entry, now time.Time) idempotency.Entry {
	shown := r.describeEntry(key, e, now)
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

// bugChecker is the part of referenceStore that the functions below need.
type bugChecker interface{ hasBug(bug string) bool }

// listEntries returns the listing for a request. The parameter found has the entries of all records with the key and the
// time of request.
func listEntries(
	s bugChecker, found []idempotency.Entry, request idempotency.ListRequest,
) (idempotency.Listing, error) {
	scan := cmp.Or(request.Scan, 100_000)
	got := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total), Partial: s.hasBug("nothing is partial")}
	if scans := s.hasBug("has to scan") || s.hasBug("scan is silent") || s.hasBug("scan is exceeded"); scans && len(found) > scan {
		got.Partial = !s.hasBug("scan is silent")
		if !s.hasBug("scan is exceeded") {
			found = found[:scan]
		}
	}
	if s.hasBug("scan is 100") && len(found) > 100 {
		found = found[:100]
	}
	if s.hasBug("empty totals") {
		got.Totals[idempotency.StateRunning] = idempotency.Total{}
	}
	states := request.States
	switch {
	case s.hasBug("states are ignored"):
		states = nil
	case s.hasBug("first state counts") && len(states) > 1:
		states = states[:1]
	}
	found = slices.DeleteFunc(found, func(e idempotency.Entry) bool { return len(states) > 0 && !slices.Contains(states, e.State) })
	if s.hasBug("records are listed twice") && len(found) > 0 {
		found = append(found, found[0])
	}
	limit := cmp.Or(request.Limit, 100)
	switch {
	case s.hasBug("limit is ignored"), s.hasBug("no default limit") && request.Limit == 0:
		limit = math.MaxInt
	case s.hasBug("limit is one less"):
		limit--
	}
	if s.hasBug("limited, then sorted") {
		slices.SortFunc(found, func(a, b idempotency.Entry) int { return b.Created.Compare(a.Created) })
		found = found[:min(len(found), limit)]
	}
	reportProgress(s, request, len(found))
	for state, total := range sumTotals(found) {
		got.Totals[state] = total
	}
	if request.Each != nil && !s.hasBug("each is ignored") {
		if s.hasBug("totals without each") {
			clear(got.Totals)
		}
		return got, passEntries(s, found[:min(len(found), eachLimit(s, limit))], request.Each)
	}
	slices.SortFunc(found, orderOf(s, request.Order))
	if last := request.After; last != nil && !s.hasBug("pages are ignored") {
		behind := slices.IndexFunc(found, func(e idempotency.Entry) bool { return e.Operation == last.Operation }) + 1
		if s.hasBug("pages overlap") {
			behind--
		}
		found = found[behind:]
	}
	if s.hasBug("totals of what follows") {
		got.Totals = sumTotals(found)
	}
	got.Entries = found[:min(len(found), limit)]
	if s.hasBug("totals of what is listed") {
		got.Totals = sumTotals(got.Entries)
	}
	return got, nil
}

// reportProgress calls Progress after each of n records.
func reportProgress(s bugChecker, request idempotency.ListRequest, n int) {
	if request.Progress == nil {
		return
	}
	for read := range n {
		if s.hasBug("progress goes back") {
			read = n - read
		}
		request.Progress(int64(read), int64(n))
	}
	if s.hasBug("progress of an unknown total") {
		request.Progress(int64(n), -1)
	}
}

// eachLimit returns the maximum number of entries that Each gets.
func eachLimit(s bugChecker, limit int) int {
	if s.hasBug("each gets a page") {
		return limit
	}
	return math.MaxInt
}

// passEntries calls each for every entry.
func passEntries(s bugChecker, entries []idempotency.Entry, each func(idempotency.Entry) error) (err error) {
	for _, entry := range entries {
		if s.hasBug("each gets some entries twice") && entry.State == idempotency.StateReleased {
			_ = each(entry)
		}
		err = cmp.Or(err, each(entry))
		switch {
		case err != nil && s.hasBug("error of each is lost"):
			return nil
		case err != nil && !s.hasBug("each goes on after its error"):
			return err
		}
	}
	return err
}

// sumTotals returns the totals of entries by state.
func sumTotals(entries []idempotency.Entry) map[idempotency.State]idempotency.Total {
	sums := make(map[idempotency.State]idempotency.Total)
	for _, e := range entries {
		sums[e.State] = idempotency.Total{Records: sums[e.State].Records + 1, Bytes: sums[e.State].Bytes + e.Size}
	}
	return sums
}

// orderOf returns the order of a listing, as a function for slices.SortFunc.
func orderOf(s bugChecker, order idempotency.ListOrder) func(a, b idempotency.Entry) int {
	oldest := func(a, b idempotency.Entry) int { return a.Created.Compare(b.Created) }
	newest := func(a, b idempotency.Entry) int { return b.Created.Compare(a.Created) }
	largest := func(a, b idempotency.Entry) int { return cmp.Or(cmp.Compare(b.Size, a.Size), oldest(a, b)) }
	switch {
	case s.hasBug("smallest first") && order == idempotency.LargestFirst:
		return func(a, b idempotency.Entry) int { return cmp.Or(cmp.Compare(a.Size, b.Size), oldest(a, b)) }
	case s.hasBug("newest of equal size first") && order == idempotency.LargestFirst:
		return func(a, b idempotency.Entry) int { return cmp.Or(cmp.Compare(b.Size, a.Size), newest(a, b)) }
	case s.hasBug("size is no order") && order == idempotency.LargestFirst, s.hasBug("oldest first by default") && order == "":
		return oldest
	case s.hasBug("always newest first") && order == idempotency.OldestFirst:
		return newest
	}
	return map[idempotency.ListOrder]func(a, b idempotency.Entry) int{
		"": newest, idempotency.NewestFirst: newest, idempotency.OldestFirst: oldest, idempotency.LargestFirst: largest,
	}[order]
}
