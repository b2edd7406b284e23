package guarantees_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idempotency-go/idempotency"
)

// kind is what a client asks of the store.
type kind string

const (
	begin    kind = "Begin"
	extend   kind = "Extend"
	complete kind = "Complete"
	release  kind = "Release"
	resolve  kind = "Resolve"
	write    kind = "CheckpointTx" // writes a row, whose number is also the result
	readRows kind = "rows"         // reads the rows
)

// call is one call of a client.
type call struct {
	kind       kind
	client     int
	key        int
	claim      int // which Begin makes, or that the step is a step of; or which stands for the operator
	request    int // stands for a fingerprint
	takeOver   bool
	lease, ttl time.Duration
	body       int    // zero, of a Resolve: the operation has not happened
	origin     origin // of the claim, or of what the operator has seen
	past       past
	span       // in which the store has looked at its clock
}

// past is what was called on a claim before, or is called at the same time.
type past struct {
	completed, released bool
	settled             bool // with a known outcome
	wrote               bool // perhaps
}

// origin is what a claim makes its record of. All records of an operation have the time of its creation.
type origin struct {
	created int64 // zero: not seen yet
	attempt int
	request int
}

// span is an instant of which only the earliest and the latest time are known, since the start of the history.
type span struct{ from, to time.Duration }

// forever is later than everything, and can be added to.
const forever = time.Duration(math.MaxInt64 / 4)

func (s span) plus(d time.Duration) span { return span{s.from + d, s.to + d} }

func (s span) and(other span) span { return span{max(s.from, other.from), min(s.to, other.to)} }

// reply is what the store answered.
type reply struct {
	unknown bool // the call failed, and may have taken effect
	claimed bool
	err     error // what the contract allows, or ErrRecordInvalid, which it does not
	record  shown
	result  int  // of a step
	rows    rows // that are there
}

// rows are the numbers of rows, in order.
type rows string

func rowsOf(numbers ...int) rows {
	slices.Sort(numbers)
	var all []rune
	for _, n := range numbers {
		all = append(all, rune(n))
	}
	return rows(all)
}

// with returns the rows and one more.
func (r rows) with(number int) rows {
	all := append([]rune(r), rune(number))
	slices.Sort(all)
	return rows(all)
}

// shown is the record that Begin returns.
type shown struct {
	origin
	body            int // zero: none
	left, remaining time.Duration
}

// phase is how far an operation has come.
type phase string

const (
	gone     phase = "" // also: never there
	running  phase = "running"
	lapsed   phase = "lapsed"
	released phase = "released"
	done     phase = "done"
)

// state is the record of one key. What is gone is remembered, apart from its times.
type state struct {
	phase phase
	owner int // the last claim
	origin
	body          int
	lease, expiry span // their ends

	result int  // of the step; zero: none
	rows   rows // which stay, whatever becomes of the record
	lost   bool // the claim has lost the record, and has made it again
}

var model = porcupine.NondeterministicModel{
	Init:  func() []any { return []any{state{}} },
	Equal: func(a, b any) bool { return a.(state) == b.(state) },
	Step: func(s, c, r any) (next []any) {
		for _, after := range s.(state).step(c.(call), r.(reply)) {
			next = append(next, after)
		}
		return next
	},
}

// step returns the states in which a call may leave the record, if the store may reply so.
func (s state) step(c call, r reply) (next []state) {
	if c.kind == readRows {
		return s.readRows(r)
	}
	if r.unknown {
		next = append(next, s)
	}
	for _, seen := range s.during(c) {
		for _, after := range seen.after(c, r) {
			if seen.phase == gone && after == seen {
				after = s // which may still be seen by a call that has looked at the clock before
				after.expiry.to = min(after.expiry.to, c.to)
			}
			if seen.phase == lapsed && after.phase == lapsed { // likewise, or by one whose clock is behind
				after.phase, after.lease = running, span{s.lease.from, min(s.lease.to, c.to)}
			}
			next = append(next, after)
		}
	}
	return next
}

// after returns the states in which a call may leave the record, as it sees it.
func (s state) after(c call, r reply) []state {
	switch c.kind {
	case begin:
		return s.begin(c, r)
	case extend:
		return r.of(s.extend(c))
	case write:
		return r.of(s.write(c))
	case complete:
		return r.of(s.complete(c))
	case resolve:
		return r.of(s.resolve(c))
	default:
		return r.of(s.release(c))
	}
}

// during returns what time may have made of the record when the call looks at it. What one call has seen bounds what
// later ones may see.
func (s state) during(c call) (seen []state) {
	if s.phase == gone {
		return []state{s}
	}
	if c.to >= s.expiry.from {
		expired := s
		expired.phase, expired.lease, expired.expiry, expired.result = gone, span{}, span{}, 0
		seen = append(seen, expired)
	}
	if c.from >= s.expiry.to {
		return seen
	}
	s.expiry.from = max(s.expiry.from, c.from)
	if c.kind != begin && c.kind != resolve || s.phase != running {
		return append(seen, s)
	}
	if c.to >= s.lease.from {
		over := s
		over.phase, over.lease = lapsed, span{}
		seen = append(seen, over)
	}
	if c.from >= s.lease.to {
		return seen
	}
	s.lease.from = max(s.lease.from, c.from)
	return append(seen, s)
}

func (s state) begin(c call, r reply) []state {
	next, free := s.claim(c)
	if !free {
		next = s
	}
	if r.unknown && free {
		return []state{next}
	}
	next, ok := next.shows(c, r.record)
	if r.unknown || r.err != nil || r.claimed != free || !ok {
		return nil
	}
	return []state{next}
}

// claim returns the record of a claim, if the key can be claimed.
func (s state) claim(c call) (claimed state, free bool) {
	same := c.request == s.request
	switch {
	case s.phase == gone:
		s.origin = origin{request: c.request}
	case s.phase == released && same, s.phase == lapsed && same && c.takeOver:
	default:
		return s, false
	}
	s.attempt++
	return s.replaced(running, c, s.origin, 0, c.plus(c.lease), c.plus(max(c.lease, c.ttl))), true
}

// replaced returns the record with all its parts replaced but for what steps have left.
func (s state) replaced(phase phase, c call, origin origin, body int, lease, expiry span) state {
	return state{phase, c.claim, origin, body, lease, expiry, s.result, s.rows, false}
}

// shows reports whether the store may show the record so, and returns it with what that tells.
func (s state) shows(c call, r shown) (state, bool) {
	if s.created == 0 {
		s.created = r.created // of a claim whose reply was lost
	}
	ok := s.origin == r.origin && s.created != 0 && s.body == r.body
	if s.phase == running {
		s.lease = s.lease.and(c.plus(r.left))
		return s, ok && r.left > 0 && s.lease.from <= s.lease.to
	}
	early := s.phase != done || r.remaining == 0 || c.from+r.remaining <= s.expiry.to
	return s, ok && r.left == 0 && early
}

// option is one way in which a step of a claim may go.
type option struct {
	err    error
	then   state
	result int // of a step
}

// of returns the states after the options that the reply may stand for.
func (r reply) of(options []option) (next []state) {
	for _, o := range options {
		if r.unknown || r.err == o.err && r.result == o.result {
			next = append(next, o.then)
		}
	}
	return next
}

// holds reports whether the claim of the call has the record and may go on.
func (s state) holds(c call) bool {
	return s.owner == c.claim && (s.phase == running || s.phase == lapsed)
}

// may returns the options without those that are not possible.
func may(possible bool, o option) []option {
	if possible {
		return []option{o}
	}
	return nil
}

func (s state) extend(c call) []option {
	again := s.replaced(running, c, c.origin, 0, c.plus(c.lease), span{c.from + c.lease, c.to + max(c.lease, c.ttl)})
	switch {
	case s.holds(c):
		again.origin, again.lost = s.origin, s.lost
		again.expiry = span{max(s.expiry.from, again.expiry.from), max(s.expiry.to, again.expiry.to)}
		return []option{{then: again}}
	case s.phase != gone:
		return []option{{err: idempotency.ErrClaimLost, then: s}}
	}
	again.lost = true
	return append(may(!c.past.settled, option{err: idempotency.ErrRestored, then: again}),
		may(s.mayBeLost(c), option{err: idempotency.ErrClaimLost, then: s})...)
}

// write commits a row with its number as the result of the step, and renews the lease. If there is a result, the row is rolled
// back, and the lease may be renewed.
func (s state) write(c call) []option {
	if !s.holds(c) {
		return []option{{err: idempotency.ErrClaimLost, then: s}}
	}
	renewed := s.extend(c)[0].then
	if s.result != 0 {
		return []option{{then: s, result: s.result}, {then: renewed, result: s.result}}
	}
	renewed.result, renewed.rows = c.body, s.rows.with(c.body)
	return []option{{then: renewed, result: c.body}}
}

// readRows sees all rows that are committed.
func (s state) readRows(r reply) []state {
	if r.unknown || r.rows == s.rows {
		return []state{s}
	}
	return nil
}

// mayBeLost reports whether a claim whose record is gone may count as lost: somebody else has had the key since, or the
// claim may have been settled. Stores that have kept no trace of that may restore the record.
func (s state) mayBeLost(c call) bool {
	return s.owner != c.claim || c.past.completed || c.past.released
}

// complete stores a response. If the claim has lost its record after it wrote a row, the store does not know whether the row is lost,
// too, and may refuse the response.
func (s state) complete(c call) []option {
	completed := s.replaced(done, c, c.origin, c.body, span{}, c.plus(c.ttl))
	completed.result = 0
	own := s.owner == c.claim
	switch {
	case s.holds(c):
		completed.origin = s.origin
		return append(may(s.lost && c.past.wrote, option{err: idempotency.ErrClaimLost, then: s}), option{then: completed})
	case own && s.phase == done:
		return append(may(s.body != c.body, option{err: idempotency.ErrClaimLost, then: s}), option{then: s})
	case s.phase == gone:
		repeated := c.past.completed && (!own || s.body != 0)
		return append(append(may(repeated, option{then: s}), option{err: idempotency.ErrRestored, then: completed}),
			may(s.mayBeLost(c) || c.past.wrote, option{err: idempotency.ErrClaimLost, then: s})...)
	default:
		return append(may(c.past.completed && !own, option{then: s}), option{err: idempotency.ErrClaimLost, then: s})
	}
}

func (s state) release(c call) []option {
	own := s.owner == c.claim
	switch {
	case s.holds(c) && c.ttl == 0: // which frees the key
		s.phase, s.lease, s.expiry, s.result = gone, span{}, span{}, 0
		return []option{{then: s}}
	case s.holds(c):
		s.phase, s.lease, s.expiry = released, span{}, c.plus(c.ttl)
		return []option{{then: s}}
	case own && s.phase == released:
		return []option{{then: s}}
	default:
		repeated := c.past.released && !(own && s.body != 0)
		return append(may(repeated, option{then: s}), option{err: idempotency.ErrClaimLost, then: s})
	}
}

// resolve ends what is abandoned, and nobody owns it any more.
func (s state) resolve(c call) []option {
	switch s.phase {
	case gone:
		return []option{{err: idempotency.ErrNoRecord, then: s}}
	case running:
		return []option{{err: idempotency.ErrInProgress, then: s}}
	case lapsed:
	default:
		return []option{{err: idempotency.ErrEntryChanged, then: s}}
	}
	seen := s
	if s.created == 0 { // of a claim whose reply was lost
		seen.created = c.origin.created
	}
	if seen.created != c.origin.created || seen.attempt != c.origin.attempt {
		return []option{{err: idempotency.ErrEntryChanged, then: s}}
	}
	seen.phase, seen.owner, seen.body, seen.lease, seen.expiry = released, c.claim, c.body, span{}, c.plus(c.ttl)
	if c.body != 0 {
		seen.phase = done
	}
	return append(may(s.created == 0, option{err: idempotency.ErrEntryChanged, then: s}), option{then: seen})
}

func (c call) String() string {
	who := fmt.Sprintf("client %d  claim %-3d %-8s", c.client, c.claim, c.kind)
	switch {
	case c.kind == resolve:
		return fmt.Sprintf("%s attempt %d created %d, response %d, TTL %v", who, c.origin.attempt, c.origin.created, c.body, c.ttl)
	case c.kind == begin && c.takeOver:
		return fmt.Sprintf("%s request %d, lease %v, TTL %v, TakeOver", who, c.request, c.lease, c.ttl)
	case c.kind == begin:
		return fmt.Sprintf("%s request %d, lease %v, TTL %v", who, c.request, c.lease, c.ttl)
	case c.kind == extend:
		return fmt.Sprintf("%s lease %v", who, c.lease)
	case c.kind == write:
		return fmt.Sprintf("%s row %d, lease %v", who, c.body, c.lease)
	case c.kind == readRows:
		return who
	case c.kind == complete:
		return fmt.Sprintf("%s response %d, TTL %v", who, c.body, c.ttl)
	default:
		return fmt.Sprintf("%s TTL %v", who, c.ttl)
	}
}

func (r reply) String() string {
	switch {
	case r.unknown:
		return "unknown"
	case errors.Is(r.err, idempotency.ErrClaimLost):
		return "ErrClaimLost"
	case errors.Is(r.err, idempotency.ErrRestored):
		return "ErrRestored"
	case r.err != nil:
		return r.err.Error()
	case r.result != 0:
		return fmt.Sprintf("result %d", r.result)
	case r.rows != "":
		return fmt.Sprintf("rows %d", []rune(r.rows))
	case r.record == shown{}:
		return "ok"
	}
	text := fmt.Sprintf("created %d attempt %d, request %d", r.record.created, r.record.attempt, r.record.request)
	switch {
	case r.claimed:
		return fmt.Sprintf("claimed: %s, lease %v", text, r.record.left)
	case r.record.body != 0:
		return fmt.Sprintf("completed: %s, response %d, %v remain", text, r.record.body, r.record.remaining)
	default:
		return fmt.Sprintf("held: %s, lease %v", text, r.record.left)
	}
}
