package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/firsts"
	"github.com/idempotency-go/idempotency/internal/recordline"
)

// Errors of an [Inspector].
var (
	ErrNoRecord     = errors.New("idempotency: no record of the key")
	ErrEntryChanged = errors.New("idempotency: the record has changed")
)

// State says what a record means for a request that comes now.
type State string

// The states of a record.
const (
	StateRunning   State = "running"   // an attempt holds the key
	StateAbandoned State = "abandoned" // the lease of its attempt has lapsed: nobody knows what the attempt has done
	StateReleased  State = "released"  // the same request may try again
	StateCompleted State = "completed" // its response is replayed
)

// Entry is what a store tells people about one operation.
type Entry struct {
	// Key has the parts that the store keeps. The others are empty. A [RedisStore] keeps none of them.
	Key Key

	// Digest is that of the key, see [Key.Digest]. It identifies the record even if the store keeps no part of the key.
	Digest [sha256.Size]byte

	// State is the present one, by the clock of the store.
	State State

	// Attempt and Created are those of the [Record].
	Attempt int
	Created time.Time

	// Fingerprint is that of the [Record]. A store may keep it secret, as in a Record. In a [Listing] it may be zero.
	Fingerprint Fingerprint

	// Completed is when the response was stored. It is zero if there is no response, or if the store does not know when.
	Completed time.Time

	// LeaseLeft is how long the lease of a running attempt still lasts.
	LeaseLeft time.Duration

	// Remaining is how long the record is still kept. It is zero if the store does not know.
	Remaining time.Duration

	// Size is how many bytes the store counts for the record, without its own overhead. For a sealed answer, see
	// package seal, the sealed bytes are counted.
	Size int64

	// Status is that of the response. It is zero if there is no response yet, or if nothing vouches for the status, as
	// package seal says.
	Status int

	// Response is what is replayed, with its body. It is nil until the operation is completed, and always in a [Listing].
	// It is shared: nobody modifies it.
	Response *Response

	// Note is that of the Response. It may be empty in a [Listing], because a sealed note is not opened for it.
	Note string

	// Resolved is the last resolution of the operation. It stays when later attempts run, and when they complete the
	// operation. Nil means that nobody has resolved the operation. It is always nil in a [Listing].
	Resolved *Resolved

	// Steps are the checkpoints of the operation, see [Checkpointer], in the order of their names. There are none in a
	// [Listing], and none once the operation is completed.
	Steps []StepSize
}

// StepSize is what a store tells people about a checkpoint. For a sealed one, the sealed bytes are counted.
type StepSize struct {
	Name  string
	Bytes int
}

// addSteps adds what is told of checkpoints, and returns how many bytes they have with their names.
func (e *Entry) addSteps(data map[string][]byte) (size int64) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		size += int64(len(name) + len(data[name]))
		e.Steps = append(e.Steps, StepSize{name, len(data[name])})
	}
	return size
}

// OpenMarks returns the names of the checkpoints which mark that a step has begun (see AtMostOnce of package step), if no
// result of that step is among Steps: nobody knows what these steps have done.
func (e Entry) OpenMarks() (names []string) {
	for _, step := range e.Steps {
		name, isMark := strings.CutSuffix(step.Name, checkpoint.Mark)
		if isMark && !slices.ContainsFunc(e.Steps, func(other StepSize) bool { return other.Name == name }) {
			names = append(names, step.Name)
		}
	}
	return names
}

// OperationID returns the ID of the operation, see [Key.OperationID].
func (e Entry) OperationID() uuid.UUID { return operationID(e.Digest) }

// Inspector is what a [Store] offers to people who ask what has happened. A [MemoryStore], a [RedisStore] and the stores of
// the other modules are Inspectors, and so is a store of package cache or seal in front of one of them. No request needs it,
// and some of its methods are slow. It is safe for concurrent use.
//
// The error of a method wraps [errors.ErrUnsupported] if the store, or the one behind it, cannot do this.
type Inspector interface {
	// Inspect returns what the store holds of a key, and changes nothing. The error is [ErrNoRecord] if there is nothing:
	// the key was never used, has expired, or was forgotten. The error wraps [ErrRecordInvalid] if the record cannot be
	// read. The entry then has what is known of the record. If the parts of the key come from a person, [Key.Bounded]
	// shortens them as stores do.
	Inspect(ctx context.Context, key Key) (Entry, error)

	// Forget removes the record of an entry that Inspect or List has returned. The next request with its key is executed
	// as if it were the first. If the operation was completed, its effects then happen twice. If it was abandoned, they
	// may happen twice.
	//
	// The store finds the record by Key or by Digest, whichever it keeps. With each of these errors nothing is removed:
	//
	//   - [ErrInProgress]: the operation is running, whatever the entry says. Its owner would store the record again.
	//   - [ErrNoRecord]: there is no record any more.
	//   - [ErrEntryChanged]: the record was created at another time than the entry says, or has another attempt or state.
	//   - [ErrRecordInvalid]: too little of the record can be read to compare it with the entry.
	Forget(ctx context.Context, entry Entry) error

	// List returns the records that request asks for. It looks at the store while others change it. So the result is no
	// snapshot, and may be out of date.
	List(ctx context.Context, request ListRequest) (Listing, error)
}

// Resolver is an [Inspector] that can end abandoned operations: those whose outcome is unknown. Package resolve uses it.
type Resolver interface {
	Inspector

	// InspectDigest is Inspect for a key of which only the digest is known, as in a [Listing]. It may be unable to tell whether
	// the record was made for that key.
	InspectDigest(ctx context.Context, digest [sha256.Size]byte) (Entry, error)

	// Resolve ends the operation of an entry that Inspect or InspectDigest has returned, in one atomic step. Attempt,
	// fingerprint and creation of the record stay. If its owner still lives, it has lost the claim. The record keeps
	// resolution.Resolved(entry), in the place of an earlier one, for as long as the record lives.
	//
	// The store finds the record by Key or by Digest, whichever it keeps. With each of these errors nothing is changed:
	//
	//   - [ErrInProgress]: the operation is running by now.
	//   - [ErrNoRecord]: there is no record any more.
	//   - [ErrEntryChanged]: the record was created at another time than the entry says, has another attempt, or is not
	//     abandoned: it was completed, released or resolved in the meantime.
	//   - [ErrRecordInvalid]: too little of the record can be read to compare it with the entry.
	//   - [ErrStoreFull], [ErrUserQuota]: there is no room for the resolution.
	Resolve(ctx context.Context, entry Entry, resolution Resolution) error
}

// resolverOf returns the Resolver of a store. The error wraps [errors.ErrUnsupported] if there is none: neither the store
// nor any behind it is one, or one stands in front of a store that has none.
func findResolver(store Store) (Resolver, error) {
	resolver, ok := As[Resolver](store)
	for behind := resolver; ok; {
		wrapper, wraps := behind.(interface{ Unwrap() Store })
		if !wraps {
			return resolver, nil
		}
		behind, ok = As[Resolver](wrapper.Unwrap())
	}
	return nil, fmt.Errorf("idempotency: Reconcile with a %T, which is no Resolver: %w", store, errors.ErrUnsupported)
}

// Resolution says how an abandoned operation ends.
type Resolution struct {
	// Response says that the operation has happened. It is completed with this response, which its retries get. Its
	// checkpoints are removed. If the response is Omitted, retries get not-replayable with its status.
	//
	// Nil says that the operation has not happened. It is released: the next request with the key runs it, if it is the
	// same request. Its checkpoints are kept, except those that [Entry.OpenMarks] names: what these steps have begun has not
	// happened. A mark that the owner has stored since the entry was made is kept.
	Response *Response

	// Operator and Reason say who resolves the operation, and why. Both are empty if Options.Reconcile does.
	Operator, Reason string

	// At is when the operation is resolved, by the clock of the caller. The zero time means now.
	At time.Time

	// TTL is how long the record is kept from now. It is positive.
	TTL time.Duration
}

// The most bytes that the parts of a [Resolution] may have.
const (
	MaxOperator = 255
	MaxReason   = 1000
)

// Validate reports every fault of a resolution: a Response that no handler could have given, or with a note that
// [Annotate] would refuse; an operator or a reason that is too long, or is not visible text; or a TTL out of range. A store
// does not call it, because package seal gives it what is encrypted.
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

// isVisible reports whether text has at most so many bytes, all of which a person sees.
func isVisible(text string, most int) bool {
	return len(text) <= most && utf8.ValidString(text) && strings.TrimSpace(text) == text &&
		!strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) })
}

// Resolved returns what stays in the record of the operation of entry when r has resolved it.
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

// Resolved says how an abandoned operation was ended, by a [Resolution].
type Resolved struct {
	// Happened says that the operation had happened. Otherwise it had not, and was released.
	Happened bool

	// Attempt is the one that was abandoned.
	Attempt int

	// At is when the operation was resolved, by the clock of who resolved it, in microseconds.
	At time.Time

	// Operator and Reason say who resolved the operation, and why. No Operator means Options.Reconcile: package resolve
	// takes no resolution without one.
	Operator, Reason string
}

// The stored form of a Resolved is text:
//
//	resolved/1 not-happened attempt=1 at=2026-11-21T10:05:29.123456Z operator=3
//	bob
//	no charge at the provider
//
// The first line says how many bytes the operator has. Operator and reason may have any bytes, as those of package seal do.
const (
	resolvedMagic       = "resolved/1"
	resolvedHappened    = "happened"
	resolvedNotHappened = "not-happened"
	resolvedTime        = "2006-01-02T15:04:05.000000Z" // of one length, so that records of one kind have one size
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

// UnmarshalBinary sets r to what has the stored form data. The error wraps [ErrRecordInvalid] if data is damaged, or was
// written by a version of this package that this one does not know.
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
		return fmt.Errorf("%w: resolution of the operation", ErrRecordInvalid)
	}
	*r = Resolved{
		Happened: what == resolvedHappened, Attempt: int(attempt), At: when.UTC(),
		Operator: string(rest[:operator]), Reason: string(rest[operator+1:]),
	}
	return nil
}

// ListRequest says which records [Inspector.List] returns. The zero value of each field is its default.
type ListRequest struct {
	// States are the states of the records to list. None means all.
	States []State

	// User is the user of the records to list, see [Key]. Empty means all users. A store that does not keep users returns
	// [errors.ErrUnsupported].
	User string

	// Largest orders the records by Size, the largest first. The default is by Created, the oldest first.
	Largest bool

	// Limit is the maximum number of records to return. Zero means 100.
	Limit int

	// After is the last entry of the page before. If it is set, the listing begins behind it.
	After *Entry

	// Scan is the maximum number of records to look at. It applies to stores that must fetch each of them, as Redis must.
	// Zero means 100,000.
	Scan int
}

// Listing is what [Inspector.List] returns.
type Listing struct {
	// Entries have no Response.
	Entries []Entry

	// Totals counts all records that were looked at and that match States and User, also those on other pages.
	Totals map[State]Total

	// Partial says that the store has more records than Scan.
	Partial bool

	// Unreadable counts the records that could not be read. They are neither in Entries nor in Totals.
	Unreadable int
}

// Total is the sum over some records.
type Total struct {
	Records int
	Bytes   int64 // of Entry.Size
}

// mayChange returns why the record that e describes is left alone when somebody asks to forget or resolve an entry.
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

// order returns the order in which entries are listed. The last words make it the same each time.
func (r ListRequest) entryOrder() func(a, b Entry) int {
	return func(a, b Entry) int {
		bySize := 0
		if r.Largest {
			bySize = cmp.Compare(b.Size, a.Size)
		}
		return cmp.Or(bySize, a.Created.Compare(b.Created), bytes.Compare(a.Digest[:], b.Digest[:]))
	}
}

// collector makes a [Listing] of entries that come one by one.
type collector struct {
	request      ListRequest
	listing      Listing
	firstEntries *firsts.List[Entry]
}

func newCollector(request ListRequest) (*collector, error) {
	var faults faults
	faults.check(request.Limit >= 0, "list: Limit %d is negative", request.Limit)
	faults.check(request.Scan >= 0, "list: Scan %d is negative", request.Scan)
	if faults != nil {
		return nil, errors.Join(faults...)
	}
	request = request.withDefaults()
	return &collector{request, Listing{Totals: make(map[State]Total)}, firsts.New(request.Limit, request.entryOrder())}, nil
}

// add counts an entry if it is asked for, and keeps it if it is among the first ones.
func (c *collector) addEntry(e Entry) {
	if states := c.request.States; len(states) > 0 && !slices.Contains(states, e.State) {
		return
	}
	total := c.listing.Totals[e.State]
	c.listing.Totals[e.State] = Total{total.Records + 1, total.Bytes + e.Size}
	if after := c.request.After; after == nil || c.request.entryOrder()(*after, e) < 0 {
		c.firstEntries.Add(e)
	}
}

func (c *collector) makeListing() Listing {
	c.listing.Entries = c.firstEntries.Values()
	return c.listing
}
