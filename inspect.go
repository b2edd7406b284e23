package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/firsts"
	"github.com/idempotency-go/idempotency/internal/recordline"
)

// These are errors of an [Inspector].
var (
	ErrNoRecord     = errors.New("idempotency: no record of the key")
	ErrEntryChanged = errors.New("idempotency: the record has changed")
)

// State is the state of a record at the time of a request.
type State string

// The states of a record.
const (
	StateRunning   State = "running"   // an attempt holds the key
	StateAbandoned State = "abandoned" // the lease of the attempt has lapsed, so the effects of the attempt are unknown
	StateReleased  State = "released"  // a repetition of the request runs the next attempt
	StateCompleted State = "completed" // a repetition of the request gets the stored response
)

// Entry describes the record of one operation for operators.
type Entry struct {
	// Key has the parts of the key that the store keeps. The other parts are empty. A [RedisStore] keeps none of
	// them.
	Key Key

	// Operation is the ID of the operation, see [Key.OperationID]. Operation names the record even if the store keeps
	// no part of the key.
	Operation uuid.UUID

	// State is the present state, by the clock of the store.
	State State

	// Attempt and Created have the values in the [Record].
	Attempt int
	Created time.Time

	// Ended is the reason why the last attempt ended without a response. Ended is empty if the attempt is running, if the
	// operation is completed or resolved, or if the attempt could not say why, because its process died or could not reach
	// the store. In a [Listing], Ended may be empty.
	Ended EndReason

	// Fingerprint is the fingerprint in the [Record]. A store may keep fingerprints secret, as in a Record. In a
	// [Listing], Fingerprint may be zero.
	Fingerprint Fingerprint

	// Completed is the time at which the response was stored. Zero means that the record has no response, or that the
	// store does not know the time.
	Completed time.Time

	// LeaseLeft is the rest of the lease of a running attempt.
	LeaseLeft time.Duration

	// Remaining is how long the store still keeps the record. Zero means that the store does not know.
	Remaining time.Duration

	// Size is the size of the record in bytes as the store counts them, without the overhead of the store. For a
	// sealed answer (see package seal), the sealed bytes count.
	Size int64

	// Status is the status of the response. Status is zero if the record has no response, or if the status cannot be
	// trusted, as package seal describes.
	Status int

	// Response is the stored response with its body. Response is nil until the operation is completed, and always nil
	// in a [Listing]. The Response may be shared, so the caller must not modify the Response.
	Response *Response

	// Note is the note in the response. In a [Listing], Note may be empty, because a store does not decrypt sealed
	// notes for a Listing.
	Note string

	// Resolved is the last resolution of the operation. Resolved stays when later attempts run, and when a later
	// attempt completes the operation. Nil means that the operation was never resolved. In a [Listing], Resolved is
	// always nil.
	Resolved *Resolved

	// Steps are the checkpoints of the operation (see [Checkpointer]), sorted by name. A completed operation has no
	// Steps, and a [Listing] shows none.
	Steps []StepSize
}

// EndReason is a reason why an attempt ended without a stored response.
type EndReason string

// The reasons in an [Entry]. An attempt that ended for none of them has died, stood still, or lost the store.
const (
	EndPanicked    EndReason = "panicked"     // the handler panicked or called runtime.Goexit
	EndGaveUp      EndReason = "gave-up"      // the handler returned without an answer after its context had ended
	EndNoAnswer    EndReason = "no-answer"    // the handler returned without an answer, and its framework answered later
	EndTruncated   EndReason = "truncated"    // the answer was shorter than its Content-Length
	EndNotStorable EndReason = "not-storable" // Options.Storable refused the answer, as it does for a 503
	EndNotKept     EndReason = "not-kept"     // the handler, or the work of Runner.Do, decided Free or Unknown
	EndFailed      EndReason = "failed"       // the work of Runner.Do returned an error
	EndClaimLost   EndReason = "claim-lost"   // the lease was about to lapse, so the handler had to stop
)

var endDescriptions = map[EndReason]string{
	EndPanicked:    "the handler panicked or exited",
	EndGaveUp:      "the handler gave up when its context had ended",
	EndNoAnswer:    "the handler left the answer to its framework",
	EndTruncated:   "the answer was shorter than its Content-Length",
	EndNotStorable: "the service failed, so its answer is not stored",
	EndNotKept:     "the handler decided not to keep its answer",
	EndFailed:      "the work returned an error",
	EndClaimLost:   "the lease was about to lapse",
}

// Describe returns the reason in words, for example "the handler panicked or exited".
func (r EndReason) Describe() string { return cmp.Or(endDescriptions[r], string(r)) }

// IsValid reports whether a store may keep the reason: at most 32 lower-case letters and hyphens.
func (r EndReason) IsValid() bool {
	return len(r) <= 32 && !strings.ContainsFunc(string(r), func(c rune) bool { return (c < 'a' || c > 'z') && c != '-' })
}

// StepSize is the name and the size of a checkpoint. For a sealed checkpoint, the sealed bytes count.
type StepSize struct {
	Name  string
	Bytes int
}

// addSteps adds the names and sizes of the checkpoints in data to e, and returns the size of all names and data.
func (e *Entry) addSteps(data map[string][]byte) (size int64) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		size += int64(len(name) + len(data[name]))
		e.Steps = append(e.Steps, StepSize{name, len(data[name])})
	}
	return size
}

// OpenMarks returns the names of the marks of open steps. A mark is a checkpoint that a step stores when it begins
// (see AtMostOnce in package step). A step is open if Steps has its mark, but no result: the effects of the step are
// unknown.
func (e Entry) OpenMarks() (names []string) {
	for _, step := range e.Steps {
		name, isMark := strings.CutSuffix(step.Name, checkpoint.Mark)
		if isMark && !slices.ContainsFunc(e.Steps, func(other StepSize) bool { return other.Name == name }) {
			names = append(names, step.Name)
		}
	}
	return names
}

// Inspector shows and forgets records for operators. A [MemoryStore], a [RedisStore] and the stores in the other
// modules implement Inspector. A store of package cache or seal implements Inspector in front of an Inspector.
// Only [Middleware.Status] and Options.Reconcile use an Inspector for clients, and some methods are slow. An Inspector is
// safe for concurrent use.
//
// The error of a method wraps [errors.ErrUnsupported] if the store, or the store that it wraps, does not support the
// method.
type Inspector interface {
	// Inspect returns the entry for key, and changes nothing. If the parts of key come from a person, shorten them by
	// [Key.Bounded], as stores do.
	//
	//   - [ErrNoRecord]: the store has no record. The key was never used, or its record has expired or was forgotten.
	//   - [ErrRecordInvalid], wrapped: the record cannot be read. The entry has the readable part of the record.
	Inspect(ctx context.Context, key Key) (Entry, error)

	// InspectOperation is like Inspect for a caller who knows only the ID of the operation, for example from a log.
	// Like Inspect, InspectOperation makes one request to the backend, however many records there are.
	InspectOperation(ctx context.Context, operation uuid.UUID) (Entry, error)

	// Forget removes the record of an entry that an Inspector has returned. The next request with the key runs the
	// operation as a new operation. The effects of a completed operation then happen twice, and the effects of an
	// abandoned operation may happen twice.
	//
	// The store finds the record by Operation. Forget removes nothing if it returns one of these errors:
	//
	//   - [ErrInProgress]: the operation is running, whatever the entry says. Its owner would store the record again.
	//   - [ErrNoRecord]: the record is gone.
	//   - [ErrEntryChanged]: the record has another time of creation, attempt or state than the entry.
	//   - [ErrRecordInvalid]: too little of the record can be read to compare the record with the entry.
	Forget(ctx context.Context, entry Entry) error

	// List returns the records that match request. List reads the store while requests change it, so the result is no
	// consistent snapshot and may be out of date.
	List(ctx context.Context, request ListRequest) (Listing, error)
}

// Resolver is an [Inspector] that can end abandoned operations, whose outcome is unknown. Package resolve uses a
// Resolver.
type Resolver interface {
	Inspector

	// Resolve ends the operation of an entry that Inspect or InspectOperation has returned, in one atomic step. The
	// record keeps its attempt, fingerprint and time of creation. If the owner of the claim is still alive, the owner
	// loses the claim. The record keeps resolution.Resolved(entry) until the record expires, in place of an earlier
	// resolution.
	//
	// The store finds the record by Operation. Resolve changes nothing if it returns one of these errors:
	//
	//   - [ErrInProgress]: the operation is running.
	//   - [ErrNoRecord]: the record is gone.
	//   - [ErrEntryChanged]: the record has another time of creation or attempt than the entry, or is not abandoned
	//     because the operation was completed, released or resolved in the meantime.
	//   - [ErrRecordInvalid]: too little of the record can be read to compare the record with the entry.
	//   - [ErrStoreFull], [ErrUserQuota]: the store has no room for the resolution.
	Resolve(ctx context.Context, entry Entry, resolution Resolution) error
}

// findAbility returns the T for store, which purpose needs: store itself, or a store behind it. The error wraps
// [errors.ErrUnsupported] if no such store is a T, or if a wrapper that implements T stands in front of a store that
// does not.
func findAbility[T Inspector](store Store, purpose string) (ability T, err error) {
	found, ok := As[T](store)
	for behind := found; ok; {
		wrapper, wraps := any(behind).(interface{ Unwrap() Store })
		if !wraps {
			return found, nil
		}
		behind, ok = As[T](wrapper.Unwrap())
	}
	return ability, fmt.Errorf("idempotency: %s with a %T, which is no %s: %w",
		purpose, store, reflect.TypeFor[T]().Name(), errors.ErrUnsupported)
}

// Resolution describes how an abandoned operation ends.
type Resolution struct {
	// A non-nil Response means that the operation has happened. Resolve completes the operation with this response,
	// which later requests get, and removes all checkpoints. If Response is Omitted, later requests get the error
	// not-replayable with its status.
	//
	// Nil means that the operation has not happened. Resolve releases the operation, so the next repetition of the
	// request runs the operation. Its checkpoints stay, except those named by [Entry.OpenMarks], because their steps
	// have not happened either. A mark that the owner has stored after the entry was read stays as well.
	Response *Response

	// Operator and Reason state who resolves the operation, and why. Both are empty if Options.Reconcile resolves the
	// operation.
	Operator, Reason string

	// At is the time of the resolution, by the clock of the caller. Zero means now.
	At time.Time

	// TTL is how long the store keeps the record from now. TTL is positive.
	TTL time.Duration
}

// MaxOperator and MaxReason are the maximum sizes of an operator and a reason, in bytes.
const (
	MaxOperator = 255
	MaxReason   = 1000
)

// Validate reports every fault of a resolution:
//
//   - a Response that no handler could have sent, or with a note that [Annotate] would refuse;
//   - an operator or a reason that is too long, or has invisible characters;
//   - a TTL out of range.
//
// Stores do not call Validate, because package seal passes encrypted values to the store that it wraps.
func (r Resolution) Validate() error {
	var faults faults
	note := ""
	if resp := r.Response; resp != nil {
		note = resp.Note
		faults = append(faults, resp.checkHTTPAnswer()) // nil is left out by Join
		faults.check(len(resp.Header)+len(resp.Trailer) <= maxFieldBytes, "the header has more than %d bytes", maxFieldBytes)
	}
	faults.check(recordline.IsNote(note), "note %.256q of %d bytes: at most 255 visible ASCII characters, and spaces between them", note, len(note))
	faults.check(isVisible(r.Operator, MaxOperator), "operator %.256q of %d bytes: at most %d of visible text", r.Operator, len(r.Operator), MaxOperator)
	faults.check(isVisible(r.Reason, MaxReason), "reason %.256q of %d bytes: at most %d of visible text", r.Reason, len(r.Reason), MaxReason)
	faults.check(r.TTL > 0 && r.TTL <= longestTTL, "TTL %v is not between 0 and %v", r.TTL, longestTTL)
	return errors.Join(faults...)
}

// isVisible reports whether text has at most maxBytes bytes, and only characters that a person can see, with spaces
// only between them.
func isVisible(text string, maxBytes int) bool {
	return len(text) <= maxBytes && utf8.ValidString(text) && strings.TrimSpace(text) == text &&
		!strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) })
}

// Resolved returns the part of r that stays in the record after r has resolved the operation of entry.
func (r Resolution) Resolved(entry Entry) Resolved {
	at := r.At
	if at.IsZero() {
		at = time.Now()
	}
	return Resolved{
		Happened: r.Response != nil, Attempt: entry.Attempt, At: at.UTC().Truncate(time.Microsecond),
		Operator: r.Operator, Reason: r.Reason,
	}
}

// Resolved describes how an abandoned operation was ended by a [Resolution].
type Resolved struct {
	// Happened reports that the operation had happened. If Happened is false, the operation had not happened and was
	// released.
	Happened bool

	// Attempt is the number of the abandoned attempt.
	Attempt int

	// At is the time of the resolution in microseconds, by the clock of the caller of Resolve.
	At time.Time

	// Operator and Reason state who resolved the operation, and why. Operator is empty if Options.Reconcile resolved
	// the operation, because package resolve requires an operator.
	Operator, Reason string
}

// The stored form of a Resolved is text:
//
//	resolved/1 not-happened attempt=1 at=2026-11-21T10:05:29.123456Z operator=3
//	bob
//	no charge at the provider
//
// The first line has the size of the operator in bytes. Operator and reason may contain any bytes, for example
// encrypted text of package seal.
const (
	resolvedMagic       = "resolved/1"
	resolvedHappened    = "happened"
	resolvedNotHappened = "not-happened"
	resolvedTime        = "2006-01-02T15:04:05.000000Z" // of constant length, so that similar records have the same size
)

// MarshalBinary returns the stored form of r. It never fails.
func (r Resolved) MarshalBinary() ([]byte, error) {
	what := resolvedNotHappened
	if r.Happened {
		what = resolvedHappened
	}
	return fmt.Appendf(nil, "%s %s attempt=%d at=%s operator=%d\n%s\n%s", resolvedMagic, what, r.Attempt,
		r.At.UTC().Format(resolvedTime), len(r.Operator), r.Operator, r.Reason), nil
}

// UnmarshalBinary sets r to the Resolved with the stored form data. The error wraps [ErrRecordInvalid] if data is
// damaged, or was written by an unknown version of this package.
func (r *Resolved) UnmarshalBinary(data []byte) error {
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	line := recordline.Reader{Rest: first, OK: true}
	magic, what := string(line.Next("")), string(line.Next(""))
	attempt, at := line.Number("attempt="), string(line.Next("at="))
	operator := line.Number("operator=")
	when, err := time.Parse(resolvedTime, at)
	ok := line.OK && err == nil && len(line.Rest) == 0 && magic == resolvedMagic && attempt <= math.MaxInt32 &&
		(what == resolvedHappened || what == resolvedNotHappened) && operator < int64(len(rest)) && rest[operator] == '\n'
	if !ok {
		return fmt.Errorf("%w: the stored resolution is malformed", ErrRecordInvalid)
	}
	*r = Resolved{
		Happened: what == resolvedHappened, Attempt: int(attempt), At: when.UTC(),
		Operator: string(rest[:operator]), Reason: string(rest[operator+1:]),
	}
	return nil
}

// ListRequest selects the records that [Inspector.List] returns. The zero value of each field is its default.
type ListRequest struct {
	// States are the states of the records to list. An empty slice means all states.
	States []State

	// User, Endpoint and ID are the parts of the [Key] of the records to list. Empty means any. If a store does not
	// keep a part, the error wraps [errors.ErrUnsupported]. A [RedisStore] keeps a digest of the user, and neither
	// Endpoint nor ID.
	User, Endpoint, ID string

	// Since and Before bound Created: the records to list were created at Since or later, and before Before. Zero
	// means no bound.
	Since, Before time.Time

	// Order is the order of the records. Empty means [NewestFirst].
	Order ListOrder

	// Limit is the maximum number of records to return. Zero means 100.
	Limit int

	// After is the last entry of the previous page. If After is set, the listing begins after this entry.
	After *Entry

	// Each, if set, gets all matching records, one after the other and in any order. Order, Limit and After are
	// ignored then, and Listing.Entries stays empty, so that List needs memory for one record at a time. An error of
	// Each ends List, which returns the error. Each must not call the store.
	Each func(Entry) error

	// Scan is the maximum number of records to read, in stores that read each record separately, such as Redis. Zero
	// means 100,000.
	Scan int

	// Progress, if set, is called from time to time with the number of records that List has read, matching or not, and
	// with an estimate of the number of records in the store, or zero. A store that answers with one statement never
	// calls Progress.
	Progress func(read, total int64)
}

// ListOrder is an order of records. Records that are equal in this order are sorted by Created and Operation.
type ListOrder string

// The orders of a [ListRequest].
const (
	NewestFirst  ListOrder = "newest"  // by Created
	OldestFirst  ListOrder = "oldest"  // by Created
	LargestFirst ListOrder = "largest" // by Size; of equal records, the oldest first
)

// Listing is the result of [Inspector.List].
type Listing struct {
	// Entries are the records of the page, without Response.
	Entries []Entry

	// Totals counts all records that List has read and that match the request, including the records on other pages.
	Totals map[State]Total

	// Partial reports that the store has more records than Scan.
	Partial bool

	// Unreadable counts the records that could not be read. Entries and Totals do not include them.
	Unreadable int
}

// Total is the number and the size of some records.
type Total struct {
	Records int
	Bytes   int64 // the sum of Entry.Size
}

// checkUnchanged returns the reason why Forget and Resolve must leave the record of e alone: the operation is
// running, or the record has changed since the operator got the entry inspected.
func (e Entry) checkUnchanged(inspected Entry) error {
	switch {
	case e.State == StateRunning:
		return ErrInProgress
	case e.State != inspected.State || !e.Created.Equal(inspected.Created) || e.Attempt != inspected.Attempt:
		return ErrEntryChanged
	}
	return nil
}

func (r ListRequest) withDefaults() ListRequest {
	r.Limit = cmp.Or(r.Limit, 100)
	r.Scan = cmp.Or(r.Scan, 100_000)
	return r
}

// Validate returns all faults of r, joined. A store calls Validate in List.
func (r ListRequest) Validate() error {
	var faults faults
	faults.check(r.Limit >= 0, "list: Limit %d is negative", r.Limit)
	faults.check(r.Scan >= 0, "list: Scan %d is negative", r.Scan)
	isKnown := slices.Contains([]ListOrder{"", NewestFirst, OldestFirst, LargestFirst}, r.Order)
	faults.check(isKnown, "list: Order %q is unknown", r.Order)
	return errors.Join(faults...)
}

// Matches reports whether e is a record to list. If the store does not keep a part of the key, Matches reports false
// for a request with this part.
func (r ListRequest) Matches(e Entry) bool {
	return (len(r.States) == 0 || slices.Contains(r.States, e.State)) && r.matchesKey(e.Key) && r.matchesTime(e.Created)
}

func (r ListRequest) matchesKey(key Key) bool {
	return (r.User == "" || r.User == key.User) && (r.Endpoint == "" || r.Endpoint == key.Endpoint) && (r.ID == "" || r.ID == key.ID)
}

func (r ListRequest) matchesTime(created time.Time) bool {
	return !created.Before(r.Since) && (r.Before.IsZero() || created.Before(r.Before))
}

// Compare orders entries by Order: the result is negative if a comes before b. No two entries of a listing are equal,
// because Operation is compared last.
func (r ListRequest) Compare(a, b Entry) int {
	byAge := cmp.Or(a.Created.Compare(b.Created), bytes.Compare(a.Operation[:], b.Operation[:]))
	switch r.Order {
	case LargestFirst:
		return cmp.Or(cmp.Compare(b.Size, a.Size), byAge)
	case OldestFirst:
		return byAge
	default:
		return -byAge
	}
}

// collector collects entries one by one into a [Listing].
type collector struct {
	request      ListRequest
	listing      Listing
	firstEntries *firsts.List[Entry]
}

func newCollector(request ListRequest) (*collector, error) {
	if err := request.Validate(); err != nil {
		return nil, err
	}
	request = request.withDefaults()
	return &collector{request, Listing{Totals: make(map[State]Total)}, firsts.New(request.Limit, request.Compare)}, nil
}

// addEntry counts an entry that matches the request, and keeps the entry if it belongs to the page. The error is that
// of ListRequest.Each.
func (c *collector) addEntry(e Entry) error {
	if !c.request.Matches(e) {
		return nil
	}
	total := c.listing.Totals[e.State]
	c.listing.Totals[e.State] = Total{total.Records + 1, total.Bytes + e.Size}
	if c.request.Each != nil {
		return c.request.Each(e)
	}
	if after := c.request.After; after == nil || c.request.Compare(*after, e) < 0 {
		c.firstEntries.Add(e)
	}
	return nil
}

func (c *collector) makeListing() Listing {
	c.listing.Entries = c.firstEntries.Values()
	return c.listing
}

// Status returns a handler that tells clients the state of their keys, so that a client can ask what became of a request
// without sending the request again. A service mounts the handler at any path, inside authentication and outside of
// [Middleware.Handler]. In echo, gin and fiber, use Status of the adapter. A client asks by GET, with its key and its
// credentials as in the request:
//
//	GET /payments/status?method=POST&path=%2Fpayments
//	Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324
//
// The parameters method and path are those of the request. For Options.Endpoint and Options.Replay, Status makes a
// request with this method and path, without a body, and with host, header and context of the question. An Endpoint must
// not need more, such as the pattern of a router. The [UserFunc] gets the question itself. The member statusUrl of a
// refusal has the parameters (see [KeyInfo]).
//
// The answer is a JSON object with status 200 and the member state, which tells what the same request with the same key
// would get:
//
//   - never-seen: the handler's answer. The user has no record of the key: the key was never used, or the record has
//     expired or was forgotten. The keys of other users are never-seen.
//   - running: in-progress. The field Retry-After says when to ask again.
//   - unfinished: the handler's answer. The last attempt stored no answer, or its owner disappeared, see [ReExecute].
//   - done: the stored answer.
//   - not-kept: not-replayable. The operation is completed, but its answer was not kept.
//   - outcome-unknown: outcome-unknown, see [Refuse].
//
// Further members are instance, as in an [Error]; began, the time at which the first attempt began; keptUntil, the time
// until which the key is kept; and for a completed operation status, the status of its answer, and completed, the time
// of completion. Unknown members are left out. With the parameter answer=true, done has the member answer, with status,
// header without Set-Cookie, trailer, and body or, if the body is no text, bodyBase64. Options.Replay may refuse this.
// Status does not compare the content of requests, so the user must include everything that decides who may see an
// answer.
//
// A question is no attempt: Status makes one request to the store, which changes no record, and never waits, runs a
// handler or calls Reconcile. Refusals are answered as those of the Middleware:
//
//   - 400: key-missing or key-invalid; or method or path are missing, or Options.Methods lacks the method.
//   - 401: user-unknown.
//   - 403: Options.Replay refuses the answer.
//   - 405: the method of the question is neither GET nor HEAD.
//   - 501: the store is no [Inspector]. If KeyInfo.StatusURL is set, [New] reports this.
//   - 503: the store is unavailable, or the record cannot be read. Observer and Logger get [OutcomeUnavailable].
func (m *Middleware) Status() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, status, err := m.answerQuestion(r)
		var body []byte
		if err == nil {
			body, err = json.Marshal(status) // JSON has no years after 9999, but a record may have one
		}
		if err != nil {
			m.writeRefusal(w, r, key, err)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if status.retryAfter > 0 {
			h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(status.retryAfter), 10))
		}
		_, _ = w.Write(body) // a client that has left asks again
	})
}

// keyState is the state of a key as Status names it.
type keyState string

const (
	keyNeverSeen      keyState = "never-seen"
	keyRunning        keyState = "running"
	keyUnfinished     keyState = "unfinished"
	keyDone           keyState = "done"
	keyNotKept        keyState = "not-kept"
	keyOutcomeUnknown keyState = "outcome-unknown"
)

// keyStatus is the answer of [Middleware.Status].
type keyStatus struct {
	State      keyState      `json:"state"`
	Instance   string        `json:"instance"`
	Status     int           `json:"status,omitempty"`
	Began      time.Time     `json:"began,omitzero"`
	Completed  time.Time     `json:"completed,omitzero"`
	KeptUntil  time.Time     `json:"keptUntil,omitzero"`
	Answer     *shownAnswer  `json:"answer,omitempty"`
	retryAfter time.Duration // zero unless the state is running
}

// shownAnswer is a stored answer as JSON. Body is the body if it is text, and BodyBase64 otherwise.
type shownAnswer struct {
	Status     int         `json:"status"`
	Header     http.Header `json:"header"`
	Trailer    http.Header `json:"trailer,omitempty"`
	Body       string      `json:"body,omitempty"`
	BodyBase64 []byte      `json:"bodyBase64,omitempty"`
}

// answerQuestion returns the status of the key in question r, or the key, if it is known, and a refusal.
func (m *Middleware) answerQuestion(r *http.Request) (key Key, status keyStatus, refusal error) {
	target, wantsAnswer, err := parseQuestion(r, m.opts.Methods)
	if err == nil {
		key, err = m.readKey(r, target)
	}
	if err != nil {
		return key, status, refuseQuestion(err)
	}
	if m.inspector == nil {
		return key, status, refuseUnsupported(fmt.Errorf("idempotency: the store is no Inspector: %w", errors.ErrUnsupported))
	}
	a := admission{request: request{runner: m.runner, key: key, ctx: r.Context()}}
	a.event.Began = m.eventReporter.currentTime()
	entry, err := a.inspectEntry(m.inspector)
	if err == nil {
		status, err = m.describeStatus(&entry, target.Method)
	}
	status.Instance = key.OperationID().URN()
	switch {
	case errors.Is(err, ErrNoRecord):
		status.State = keyNeverSeen
	case errors.Is(err, errors.ErrUnsupported):
		return key, status, refuseUnsupported(err)
	case err != nil:
		return key, status, a.refuseRequest(OutcomeUnavailable, err)
	case wantsAnswer && status.State == keyDone:
		answer := m.unstoredFields.filterResponse(entry.Response)
		status.Answer, refusal = answer.show(), m.askReplay(target, answer)
	}
	return key, status, refusal
}

// parseQuestion returns the request that question r is about, and whether r asks for the answer to that request.
func parseQuestion(r *http.Request, methods []string) (target *http.Request, wantsAnswer bool, err error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil, false, &Error{Status: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {"GET, HEAD"}}}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	method, path := query["method"], query["path"]
	if err != nil || len(method) != 1 || len(path) != 1 || !strings.HasPrefix(path[0], "/") {
		return nil, false, newQuestionError("The query must have the parameters method and path of the request in question.")
	}
	address, err := url.ParseRequestURI(path[0])
	switch {
	case err != nil:
		return nil, false, newQuestionError("The parameter path must be the path of a URL, with its percent-encoding.")
	case !slices.Contains(methods, method[0]):
		return nil, false, newQuestionError("Requests with this method have no keys.")
	}
	target = r.WithContext(r.Context())
	target.Method, target.RequestURI, target.URL, target.Pattern = method[0], path[0], address, ""
	target.Body, target.ContentLength, target.TransferEncoding = http.NoBody, 0, nil
	target.Form, target.PostForm, target.MultipartForm = nil, nil, nil
	return target, query.Get("answer") == "true", nil
}

// newQuestionError returns the refusal of a malformed question.
func newQuestionError(detail string) *Error {
	return &Error{Status: http.StatusBadRequest, Detail: detail}
}

// refuseQuestion returns the refusal for err. A question about an invalid key must not lead a client to a new key, which
// would be a second operation.
func refuseQuestion(err error) *Error {
	refusal := *refusalFor(err)
	if errors.Is(err, ErrKeyMissing) || errors.Is(err, ErrKeyInvalid) {
		refusal.Retry = ""
	}
	if errors.Is(err, ErrKeyMissing) {
		refusal.Detail = "Ask with the idempotency key of the request in question."
	}
	return &refusal
}

// refuseUnsupported returns the refusal for a store that cannot show records.
func refuseUnsupported(err error) *Error {
	return &Error{Status: http.StatusNotImplemented, Detail: "This service cannot look keys up.", Err: err}
}

// questionURL returns the address at which a client can ask about request r.
func (i KeyInfo) questionURL(r *http.Request) string {
	address, _ := url.Parse(i.StatusURL) // validate has parsed StatusURL
	query := address.Query()
	query.Set("method", r.Method)
	query.Set("path", requestPath(r))
	address.RawQuery = query.Encode()
	return address.String()
}

// describeStatus returns the status of an operation with the given entry, without the answer. The method is that of the
// operation's request. The error wraps [ErrRecordInvalid].
func (m *Middleware) describeStatus(entry *Entry, method string) (keyStatus, error) {
	status := keyStatus{Began: entry.Created.UTC().Truncate(time.Second)}
	if entry.Remaining > 0 && entry.State != StateRunning { // renewals and the completion keep a running operation longer
		status.KeptUntil = time.Now().Add(entry.Remaining).UTC().Truncate(time.Second)
	}
	switch resp := entry.Response; {
	case entry.State == StateRunning:
		status.State, status.retryAfter = keyRunning, m.runner.retryDelay(entry.LeaseLeft)
	case entry.State == StateReleased, entry.State == StateAbandoned && m.opts.Abandoned == ReExecute:
		status.State = keyUnfinished
	case entry.State == StateAbandoned:
		status.State = keyOutcomeUnknown
	case entry.State != StateCompleted || resp == nil:
		return status, fmt.Errorf("%w: the entry has the state %q", ErrRecordInvalid, entry.State)
	case resp.Omitted:
		status.State, status.Status = keyNotKept, resp.Status
	default:
		status.State, status.Status = keyDone, resp.Status
		if err := resp.checkSendable(method); err != nil {
			return status, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
		}
	}
	if entry.State == StateCompleted && !entry.Completed.IsZero() {
		status.Completed = entry.Completed.UTC().Truncate(time.Second)
	}
	return status, nil
}

// show returns the answer with the fields that a client has seen, except Set-Cookie: browsers keep cookies from scripts.
func (resp *Response) show() *shownAnswer {
	shown := &shownAnswer{Status: resp.Status, Header: make(http.Header), Trailer: make(http.Header)}
	for name, values := range resp.Header.Header() {
		if len(values) > 0 && !strings.EqualFold(name, "Set-Cookie") && !strings.HasPrefix(name, http.TrailerPrefix) {
			shown.Header[name] = values
		}
	}
	for name, values := range resp.Trailer.Header() {
		shown.Trailer[strings.TrimPrefix(name, http.TrailerPrefix)] = values
	}
	if utf8.Valid(resp.Body) {
		shown.Body = string(resp.Body)
	} else {
		shown.BodyBase64 = resp.Body
	}
	return shown
}
