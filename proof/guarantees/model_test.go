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

// callKind names the method of a call.
type callKind string

const (
	begin    callKind = "Begin"
	extend   callKind = "Extend"
	complete callKind = "Complete"
	release  callKind = "Release"
	resolve  callKind = "Resolve"
	write    callKind = "CheckpointTx" // a step that writes a row; the result of the step is the number of the row
	readRows callKind = "rows"         // reads the rows of a key
)

// call is one call of a client.
type call struct {
	kind          callKind
	clientID      int
	keyIndex      int
	claimNumber   int // the claim that Begin grants, or that is called; for Resolve, a number for the operator
	requestNumber int // determines the fingerprint
	takeOver      bool
	lease, ttl    time.Duration
	bodyNumber    int    // zero in a Resolve: the operation has not happened
	origin        origin // of the claim, or of the record that the operator has inspected
	pastCalls     pastCalls
	span          // the time when the store has read its clock
}

// pastCalls are the calls on a claim before this call, or at the same time.
type pastCalls struct {
	hasCompleted, hasReleased bool
	isSettled                 bool // a call with a known outcome has settled the claim
	hasWritten                bool // a write was sent, and may have taken effect
}

// origin has the fields that a claim needs to restore its record. All records of an operation have the same creation time.
type origin struct {
	createdAt     int64 // zero: not seen yet
	attemptNumber int
	requestNumber int
}

// span is an instant between earliest and latest. Both are measured from the start of the history.
type span struct{ earliest, latest time.Duration }

// forever is later than every instant of a history, and small enough that additions do not overflow.
const forever = time.Duration(math.MaxInt64 / 4)

func (s span) plus(d time.Duration) span { return span{s.earliest + d, s.latest + d} }

func (s span) intersect(other span) span {
	return span{max(s.earliest, other.earliest), min(s.latest, other.latest)}
}

// reply is the result of a call.
type reply struct {
	isUnknown  bool // the call failed, and may have taken effect
	isClaimed  bool
	err        error // an error of the contract, or ErrRecordInvalid, which the model never allows
	record     shownRecord
	stepResult int    // of a write
	rows       rowSet // of a readRows
}

// rowSet is a sorted list of row numbers. It is a string, so that states can be compared with ==.
type rowSet string

func newRowSet(numbers ...int) rowSet {
	slices.Sort(numbers)
	var all []rune
	for _, n := range numbers {
		all = append(all, rune(n))
	}
	return rowSet(all)
}

// withRow returns r with one more row.
func (r rowSet) withRow(number int) rowSet {
	all := append([]rune(r), rune(number))
	slices.Sort(all)
	return rowSet(all)
}

// shownRecord is the record that Begin returns.
type shownRecord struct {
	origin
	bodyNumber           int // zero: no response
	leaseLeft, remaining time.Duration
}

// phase is the progress of an operation.
type phase string

const (
	gone     phase = "" // the record has ended, or has never existed
	running  phase = "running"
	lapsed   phase = "lapsed"
	released phase = "released"
	done     phase = "done"
)

// state is the state of the record of one key. The state keeps the fields of a record that is gone, except its times.
type state struct {
	phase     phase
	lastClaim int // the number of the claim, or of the resolution, that last owned the key
	origin
	bodyNumber       int
	leaseEnd, expiry span

	stepResult int    // of the step; zero: no result
	rows       rowSet // the committed rows, which outlive the record
	isRestored bool   // the claim has restored the record after the record was gone
}

// contractModel lets porcupine check a history of one key against the contract.
var contractModel = porcupine.NondeterministicModel{
	Init:  func() []any { return []any{state{}} },
	Equal: func(a, b any) bool { return a.(state) == b.(state) },
	Step: func(s, c, r any) (next []any) {
		for _, after := range s.(state).applyCall(c.(call), r.(reply)) {
			next = append(next, after)
		}
		return next
	},
}

// applyCall returns the possible states after the call c with the reply r. No state means that the contract forbids the reply.
func (s state) applyCall(c call, r reply) (next []state) {
	if c.kind == readRows {
		return s.applyReadRows(r)
	}
	if r.isUnknown {
		next = append(next, s)
	}
	for _, seen := range s.statesDuring(c) {
		for _, after := range seen.statesAfter(c, r) {
			if seen.phase == gone && after == seen {
				after = s // a call that has read the clock earlier may still see the record
				after.expiry.latest = min(after.expiry.latest, c.latest)
			}
			if seen.phase == lapsed && after.phase == lapsed {
				// A call that has read the clock earlier, or whose clock is behind, may still see the lease.
				after.phase, after.leaseEnd = running, span{s.leaseEnd.earliest, min(s.leaseEnd.latest, c.latest)}
			}
			next = append(next, after)
		}
	}
	return next
}

// statesAfter returns the possible states after the call, if the call sees exactly the state s.
func (s state) statesAfter(c call, r reply) []state {
	switch c.kind {
	case begin:
		return s.applyBegin(c, r)
	case extend:
		return r.matchOptions(s.applyExtend(c))
	case write:
		return r.matchOptions(s.applyWrite(c))
	case complete:
		return r.matchOptions(s.applyComplete(c))
	case resolve:
		return r.matchOptions(s.applyResolve(c))
	default:
		return r.matchOptions(s.applyRelease(c))
	}
}

// statesDuring returns the states that the call may see, because the lease or the record may have ended before the call reads the
// clock. Each returned state has narrower bounds for these ends, because later calls must agree with it.
func (s state) statesDuring(c call) (seen []state) {
	if s.phase == gone {
		return []state{s}
	}
	if c.latest >= s.expiry.earliest {
		expired := s
		expired.phase, expired.leaseEnd, expired.expiry, expired.stepResult = gone, span{}, span{}, 0
		seen = append(seen, expired)
	}
	if c.earliest >= s.expiry.latest {
		return seen
	}
	s.expiry.earliest = max(s.expiry.earliest, c.earliest)
	if c.kind != begin && c.kind != resolve || s.phase != running {
		return append(seen, s)
	}
	if c.latest >= s.leaseEnd.earliest {
		afterLease := s
		afterLease.phase, afterLease.leaseEnd = lapsed, span{}
		seen = append(seen, afterLease)
	}
	if c.earliest >= s.leaseEnd.latest {
		return seen
	}
	s.leaseEnd.earliest = max(s.leaseEnd.earliest, c.earliest)
	return append(seen, s)
}

func (s state) applyBegin(c call, r reply) []state {
	next, free := s.claimKey(c)
	if !free {
		next = s
	}
	if r.isUnknown && free {
		return []state{next}
	}
	next, ok := next.matchShown(c, r.record)
	if r.isUnknown || r.err != nil || r.isClaimed != free || !ok {
		return nil
	}
	return []state{next}
}

// claimKey returns the state after a claim, if the call can claim the key.
func (s state) claimKey(c call) (claimed state, free bool) {
	same := c.requestNumber == s.requestNumber
	switch {
	case s.phase == gone:
		s.origin = origin{requestNumber: c.requestNumber}
	case s.phase == released && same, s.phase == lapsed && same && c.takeOver:
	default:
		return s, false
	}
	s.attemptNumber++
	return s.replaceRecord(running, c, s.origin, 0, c.plus(c.lease), c.plus(max(c.lease, c.ttl))), true
}

// replaceRecord returns the state with a new record. The results and rows of steps stay.
func (s state) replaceRecord(phase phase, c call, origin origin, body int, lease, expiry span) state {
	return state{phase, c.claimNumber, origin, body, lease, expiry, s.stepResult, s.rows, false}
}

// matchShown reports whether the store may show the record s as r, and returns s with the bounds that r adds.
func (s state) matchShown(c call, r shownRecord) (state, bool) {
	if s.createdAt == 0 {
		s.createdAt = r.createdAt // the reply to the claim was lost
	}
	ok := s.origin == r.origin && s.createdAt != 0 && s.bodyNumber == r.bodyNumber
	if s.phase == running {
		s.leaseEnd = s.leaseEnd.intersect(c.plus(r.leaseLeft))
		return s, ok && r.leaseLeft > 0 && s.leaseEnd.earliest <= s.leaseEnd.latest
	}
	early := s.phase != done || r.remaining == 0 || c.earliest+r.remaining <= s.expiry.latest
	return s, ok && r.leaseLeft == 0 && early
}

// option is a possible outcome of a call on a claim.
type option struct {
	err        error
	nextState  state
	stepResult int // of a write
}

// matchOptions returns the states after the options that agree with the reply.
func (r reply) matchOptions(options []option) (next []state) {
	for _, o := range options {
		if r.isUnknown || r.err == o.err && r.stepResult == o.stepResult {
			next = append(next, o.nextState)
		}
	}
	return next
}

// ownsRecord reports whether the claim of the call owns a record that is not yet settled.
func (s state) ownsRecord(c call) bool {
	return s.lastClaim == c.claimNumber && (s.phase == running || s.phase == lapsed)
}

// optionIf returns o if it is possible, and otherwise no option.
func optionIf(possible bool, o option) []option {
	if possible {
		return []option{o}
	}
	return nil
}

func (s state) applyExtend(c call) []option {
	expiry := span{c.earliest + c.lease, c.latest + max(c.lease, c.ttl)}
	extended := s.replaceRecord(running, c, c.origin, 0, c.plus(c.lease), expiry)
	switch {
	case s.ownsRecord(c):
		extended.origin, extended.isRestored = s.origin, s.isRestored
		extended.expiry = span{max(s.expiry.earliest, extended.expiry.earliest), max(s.expiry.latest, extended.expiry.latest)}
		return []option{{nextState: extended}}
	case s.phase != gone:
		return []option{{err: idempotency.ErrClaimLost, nextState: s}}
	}
	extended.isRestored = true
	return append(optionIf(!c.pastCalls.isSettled, option{err: idempotency.ErrRestored, nextState: extended}),
		optionIf(s.mayBeLost(c), option{err: idempotency.ErrClaimLost, nextState: s})...)
}

// applyWrite commits a row, with its number as the result of the step, and renews the lease. If the step already has a result, the
// store rolls the row back, and may renew the lease.
func (s state) applyWrite(c call) []option {
	if !s.ownsRecord(c) {
		return []option{{err: idempotency.ErrClaimLost, nextState: s}}
	}
	renewed := s.applyExtend(c)[0].nextState
	if s.stepResult != 0 {
		return []option{{nextState: s, stepResult: s.stepResult}, {nextState: renewed, stepResult: s.stepResult}}
	}
	renewed.stepResult, renewed.rows = c.bodyNumber, s.rows.withRow(c.bodyNumber)
	return []option{{nextState: renewed, stepResult: c.bodyNumber}}
}

// applyReadRows allows only a reply with all committed rows.
func (s state) applyReadRows(r reply) []state {
	if r.isUnknown || r.rows == s.rows {
		return []state{s}
	}
	return nil
}

// mayBeLost reports whether the store may return ErrClaimLost to a claim whose record is gone, because another claim has owned the
// key since, or because the claim may have been settled. A store that has kept no trace of this may restore the record instead.
func (s state) mayBeLost(c call) bool {
	return s.lastClaim != c.claimNumber || c.pastCalls.hasCompleted || c.pastCalls.hasReleased
}

// applyComplete stores a response. If the record was lost after the claim had written a row, the store may refuse the response,
// because the store does not know whether the row is lost, too.
func (s state) applyComplete(c call) []option {
	completed := s.replaceRecord(done, c, c.origin, c.bodyNumber, span{}, c.plus(c.ttl))
	completed.stepResult = 0
	own := s.lastClaim == c.claimNumber
	claimLost := option{err: idempotency.ErrClaimLost, nextState: s}
	switch {
	case s.ownsRecord(c):
		completed.origin = s.origin
		return append(optionIf(s.isRestored && c.pastCalls.hasWritten, claimLost), option{nextState: completed})
	case own && s.phase == done:
		return append(optionIf(s.bodyNumber != c.bodyNumber, claimLost), option{nextState: s})
	case s.phase == gone:
		repeated := c.pastCalls.hasCompleted && (!own || s.bodyNumber != 0)
		return append(append(optionIf(repeated, option{nextState: s}), option{err: idempotency.ErrRestored, nextState: completed}),
			optionIf(s.mayBeLost(c) || c.pastCalls.hasWritten, claimLost)...)
	default:
		return append(optionIf(c.pastCalls.hasCompleted && !own, option{nextState: s}), claimLost)
	}
}

func (s state) applyRelease(c call) []option {
	own := s.lastClaim == c.claimNumber
	switch {
	case s.ownsRecord(c) && c.ttl == 0: // frees the key
		s.phase, s.leaseEnd, s.expiry, s.stepResult = gone, span{}, span{}, 0
		return []option{{nextState: s}}
	case s.ownsRecord(c):
		s.phase, s.leaseEnd, s.expiry = released, span{}, c.plus(c.ttl)
		return []option{{nextState: s}}
	case own && s.phase == released:
		return []option{{nextState: s}}
	default:
		repeated := c.pastCalls.hasReleased && !(own && s.bodyNumber != 0)
		return append(optionIf(repeated, option{nextState: s}), option{err: idempotency.ErrClaimLost, nextState: s})
	}
}

// applyResolve ends an abandoned operation, and takes the record away from its claim.
func (s state) applyResolve(c call) []option {
	switch s.phase {
	case gone:
		return []option{{err: idempotency.ErrNoRecord, nextState: s}}
	case running:
		return []option{{err: idempotency.ErrInProgress, nextState: s}}
	case lapsed:
	default:
		return []option{{err: idempotency.ErrEntryChanged, nextState: s}}
	}
	seen := s
	if s.createdAt == 0 { // the reply to the claim was lost
		seen.createdAt = c.origin.createdAt
	}
	if seen.createdAt != c.origin.createdAt || seen.attemptNumber != c.origin.attemptNumber {
		return []option{{err: idempotency.ErrEntryChanged, nextState: s}}
	}
	seen.phase, seen.lastClaim, seen.bodyNumber = released, c.claimNumber, c.bodyNumber
	seen.leaseEnd, seen.expiry = span{}, c.plus(c.ttl)
	if c.bodyNumber != 0 {
		seen.phase = done
	}
	return append(optionIf(s.createdAt == 0, option{err: idempotency.ErrEntryChanged, nextState: s}), option{nextState: seen})
}

func (c call) String() string {
	who := fmt.Sprintf("client %d  claim %-3d %-8s", c.clientID, c.claimNumber, c.kind)
	switch {
	case c.kind == resolve:
		return fmt.Sprintf("%s attempt %d created %d, response %d, TTL %v",
			who, c.origin.attemptNumber, c.origin.createdAt, c.bodyNumber, c.ttl)
	case c.kind == begin && c.takeOver:
		return fmt.Sprintf("%s request %d, lease %v, TTL %v, TakeOver", who, c.requestNumber, c.lease, c.ttl)
	case c.kind == begin:
		return fmt.Sprintf("%s request %d, lease %v, TTL %v", who, c.requestNumber, c.lease, c.ttl)
	case c.kind == extend:
		return fmt.Sprintf("%s lease %v", who, c.lease)
	case c.kind == write:
		return fmt.Sprintf("%s row %d, lease %v", who, c.bodyNumber, c.lease)
	case c.kind == readRows:
		return who
	case c.kind == complete:
		return fmt.Sprintf("%s response %d, TTL %v", who, c.bodyNumber, c.ttl)
	default:
		return fmt.Sprintf("%s TTL %v", who, c.ttl)
	}
}

func (r reply) String() string {
	switch {
	case r.isUnknown:
		return "unknown"
	case errors.Is(r.err, idempotency.ErrClaimLost):
		return "ErrClaimLost"
	case errors.Is(r.err, idempotency.ErrRestored):
		return "ErrRestored"
	case r.err != nil:
		return r.err.Error()
	case r.stepResult != 0:
		return fmt.Sprintf("result %d", r.stepResult)
	case r.rows != "":
		return fmt.Sprintf("rows %d", []rune(r.rows))
	case r.record == shownRecord{}:
		return "ok"
	}
	text := fmt.Sprintf("created %d attempt %d, request %d", r.record.createdAt, r.record.attemptNumber, r.record.requestNumber)
	switch {
	case r.isClaimed:
		return fmt.Sprintf("claimed: %s, lease %v", text, r.record.leaseLeft)
	case r.record.bodyNumber != 0:
		return fmt.Sprintf("completed: %s, response %d, %v remain", text, r.record.bodyNumber, r.record.remaining)
	default:
		return fmt.Sprintf("held: %s, lease %v", text, r.record.leaseLeft)
	}
}
