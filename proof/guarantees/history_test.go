package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// subject is a store under test.
type subject struct {
	store       idempotency.Store
	timeUnit    time.Duration                 // the duration of short leases and TTLs
	clockError  time.Duration                 // the largest error of the times of the store, by rounding or by a wrong clock
	rowTable    rowTable                      // nil: the clients take no steps in a transaction
	callLock    sync.Locker                   // held during each call; may be nil
	runInBubble func(func(idempotency.Store)) // runs a history on a new store with its own time; nil: all histories use store
}

const (
	long           = time.Minute // a lease or TTL that outlives every history
	callTimeout    = 10 * time.Second
	stepsPerClient = 14
)

// history is the recorded calls of several clients to a store, and their results.
type history struct {
	subject
	seed       uint64
	keyCount   int
	startTime  time.Time
	claimCount atomic.Int64

	mu           sync.Mutex
	operations   []porcupine.Operation
	unknownCount int
}

// recordHistory makes a history with s. The seed determines the choices of the clients.
func recordHistory(s subject, seed uint64) (h *history) {
	if s.runInBubble == nil {
		return runClients(s, seed)
	}
	s.runInBubble(func(store idempotency.Store) {
		s.store = store
		h = runClients(s, seed)
	})
	return h
}

// runClients runs the clients of a history at the same time, until each client has made its calls.
func runClients(s subject, seed uint64) *history {
	plan := rand.New(rand.NewPCG(seed, 0))
	h := &history{subject: s, seed: seed, keyCount: 1 + plan.IntN(3), startTime: time.Now()}
	var clients sync.WaitGroup
	for i := range 3 + plan.IntN(2) {
		c := &client{history: h, id: i, random: rand.New(rand.NewPCG(seed, uint64(i)+1))}
		clients.Go(c.makeCalls)
	}
	clients.Wait()
	return h
}

// findViolation returns the calls on a key whose results no order of the calls explains, or "". If the checker takes too long,
// decided is false. This happens on a busy machine, where calls take so long that any order of the calls is possible.
func (h *history) findViolation() (text string, decided bool) {
	byKey := make([][]porcupine.Operation, h.keyCount)
	for _, o := range h.operations {
		key := o.Input.(call).keyIndex
		byKey[key] = append(byKey[key], o)
	}
	decided = true
	for _, calls := range byKey {
		switch porcupine.CheckOperationsTimeout(contractModel.ToModel(), calls, 20*time.Second) {
		case porcupine.Illegal:
			return fmt.Sprintf("seed %d:\n%s", h.seed, describeCalls(calls)), true
		case porcupine.Unknown:
			decided = false
		}
	}
	return "", decided
}

func describeCalls(calls []porcupine.Operation) string {
	slices.SortFunc(calls, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var text strings.Builder
	for _, o := range calls {
		end := "later"
		if o.Return < int64(forever) {
			end = time.Duration(o.Return).Round(time.Microsecond).String()
		}
		fmt.Fprintf(&text, "%12v to %-12s %-70v %v\n", time.Duration(o.Call).Round(time.Microsecond), end, o.Input, o.Output)
	}
	return text.String()
}

// addOperation adds a call and its result to the history.
func (h *history) addOperation(c call, r reply, start, end time.Duration) {
	c.span = span{start - h.clockError, end + h.clockError}
	if r.isUnknown {
		end, c.latest = forever, forever
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.isUnknown {
		h.unknownCount++
	}
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: len(h.operations), Input: c, Call: int64(start), Output: r, Return: int64(end),
	})
}

func (h *history) newKey(n int) idempotency.Key {
	return idempotency.Key{User: fmt.Sprintf("history %d", h.seed), ID: strconv.Itoa(n)}
}

// client makes its calls one after the other.
type client struct {
	*history
	id          int
	random      *rand.Rand
	ownedClaims []*ownedClaim
}

// ownedClaim is a claim of a client, with the calls that the client has made on it.
type ownedClaim struct {
	idempotency.Claim
	beginCall  call
	isGranted  bool // false: the reply to Begin was lost, so the client may only release the claim
	bodyNumber int  // the number of its response; zero: none yet
	pastCalls  pastCalls
}

func (c *client) drawChance(percent int) bool { return c.random.IntN(100) < percent }

func (c *client) drawDuration(some ...time.Duration) time.Duration {
	return some[c.random.IntN(len(some))]
}

func (c *client) makeCalls() {
	for range stepsPerClient {
		if c.drawChance(25) {
			time.Sleep(time.Duration(c.random.Int64N(int64(2 * c.timeUnit))))
		}
		if resolver, ok := c.store.(idempotency.Resolver); ok && c.drawChance(10) {
			c.resolveAbandoned(resolver)
			continue
		}
		if c.rowTable != nil && c.drawChance(10) {
			c.readTable()
			continue
		}
		if len(c.ownedClaims) == 0 || c.drawChance(40) {
			c.beginAttempt()
			continue
		}
		recent := c.ownedClaims[max(0, len(c.ownedClaims)-4):]
		c.useClaim(recent[c.random.IntN(len(recent))])
	}
}

func (c *client) beginAttempt() {
	asked := call{
		kind: begin, keyIndex: c.random.IntN(c.keyCount), claimNumber: int(c.claimCount.Add(1)), requestNumber: 1,
		takeOver: c.drawChance(50),
		lease:    c.drawDuration(c.timeUnit, c.timeUnit, long), ttl: c.drawDuration(c.timeUnit, 3*c.timeUnit, long),
	}
	if c.drawChance(15) {
		asked.requestNumber = 2
	}
	request := idempotency.ClaimRequest{
		Fingerprint: idempotency.Fingerprint{0: byte(asked.requestNumber)}, Lease: asked.lease, TTL: asked.ttl,
		TakeOver: asked.takeOver,
	}
	own := &ownedClaim{beginCall: asked}
	r := c.recordCall(asked, c.drawFate(), func(ctx context.Context) reply {
		record, claim, err := c.store.Begin(ctx, c.newKey(asked.keyIndex), request)
		own.Claim = claim
		if inDoubt := testservice.InDoubt(err); inDoubt != nil {
			own.Claim = inDoubt
		}
		if err != nil {
			return reply{isUnknown: !errors.Is(err, idempotency.ErrRecordInvalid), err: err}
		}
		return reply{isClaimed: claim != nil, record: convertRecord(record)}
	})
	if own.Claim == nil {
		return
	}
	own.isGranted, own.beginCall.origin = !r.isUnknown, r.record.origin
	c.ownedClaims = append(c.ownedClaims, own)
}

func convertRecord(record idempotency.Record) shownRecord {
	s := shownRecord{
		origin:    origin{record.Created.UnixNano(), record.Attempt, int(record.Fingerprint[0])},
		leaseLeft: record.LeaseLeft, remaining: record.Remaining,
	}
	if record.Response != nil {
		s.bodyNumber, _ = strconv.Atoi(strings.TrimSpace(string(record.Response.Body)))
	}
	return s
}

// resolveAbandoned resolves an abandoned operation, as an operator does. Other clients may change the record between Inspect and
// Resolve.
func (c *client) resolveAbandoned(store idempotency.Resolver) {
	asked := call{
		kind: resolve, keyIndex: c.random.IntN(c.keyCount), claimNumber: int(c.claimCount.Add(1)),
		ttl: c.drawDuration(c.timeUnit, 3*c.timeUnit, long),
	}
	entry, err := c.inspectKey(store, c.newKey(asked.keyIndex))
	if err != nil || entry.State != idempotency.StateAbandoned {
		return
	}
	if c.drawChance(20) {
		time.Sleep(c.timeUnit)
	}
	asked.origin = origin{createdAt: entry.Created.UnixNano(), attemptNumber: entry.Attempt}
	resolution := idempotency.Resolution{Operator: "an operator", Reason: "by chance", TTL: asked.ttl}
	if c.drawChance(50) {
		asked.bodyNumber = asked.claimNumber
		resp := newResponse(asked.bodyNumber)
		resolution.Response = &resp
	}
	c.recordCall(asked, c.drawFate(), func(ctx context.Context) reply {
		err := store.Resolve(ctx, entry, resolution)
		for _, known := range []error{
			idempotency.ErrInProgress, idempotency.ErrNoRecord, idempotency.ErrEntryChanged, idempotency.ErrRecordInvalid,
		} {
			if errors.Is(err, known) {
				return reply{err: known}
			}
		}
		return reply{isUnknown: err != nil}
	})
}

func (c *client) inspectKey(store idempotency.Resolver, key idempotency.Key) (idempotency.Entry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if c.callLock != nil {
		c.callLock.Lock()
		defer c.callLock.Unlock()
	}
	return store.Inspect(ctx, key)
}

// readTable reads the rows of a key.
func (c *client) readTable() {
	asked := call{kind: readRows, keyIndex: c.random.IntN(c.keyCount)}
	c.recordCall(asked, executed, func(ctx context.Context) reply {
		rows, err := c.rowTable.readRowNumbers(ctx, c.newKey(asked.keyIndex))
		return reply{isUnknown: err != nil, rows: newRowSet(rows...)}
	})
}

// useClaim takes a step in a transaction, renews the claim, or ends the claim.
func (c *client) useClaim(own *ownedClaim) {
	if c.rowTable != nil && own.isGranted && c.drawChance(30) {
		c.callClaim(own, c.planCall(own, write, own.beginCall.lease))
		return
	}
	what := c.random.IntN(12)
	if !own.isGranted {
		what = 9
	}
	extension := c.planCall(own, extend, own.beginCall.lease)
	switch {
	case what < 3:
		c.callClaim(own, extension)
		return
	case what < 6: // the renewal is under way while the claim ends
		extension.call.pastCalls = own.pastCalls
		extension.call.pastCalls.hasCompleted, extension.call.pastCalls.hasReleased = true, true
		var extending sync.WaitGroup
		defer extending.Wait()
		extending.Go(func() { c.callClaim(own, extension) })
	}
	end := c.planCall(own, release, 0)
	if what%3 < 2 && own.isGranted {
		end = c.planCall(own, complete, 0)
	}
	r := c.callClaim(own, end)
	if r.isUnknown && c.drawChance(70) {
		end.fate, end.call.pastCalls = executed, own.pastCalls
		r = c.callClaim(own, end)
	}
	hasSettled := !r.isUnknown && (r.err != idempotency.ErrClaimLost || end.call.kind == release)
	own.pastCalls.isSettled = own.pastCalls.isSettled || hasSettled
}

// plannedCall is a call on a claim, and its fate.
type plannedCall struct {
	call call
	fate fate
}

// planCall chooses the arguments of a call on a claim, and adds the call to own.pastCalls.
func (c *client) planCall(own *ownedClaim, kind callKind, lease time.Duration) plannedCall {
	p := plannedCall{own.beginCall, c.drawFate()}
	p.call.kind, p.call.clientID, p.call.pastCalls, p.call.lease = kind, c.id, own.pastCalls, lease
	switch kind {
	case release:
		p.call.ttl = c.drawDuration(0, c.timeUnit, 3*c.timeUnit, long)
		own.pastCalls.hasReleased = true
	case write:
		p.call.bodyNumber = int(c.claimCount.Add(1))
		own.pastCalls.hasWritten = true
	case complete:
		if own.bodyNumber == 0 || c.drawChance(30) {
			own.bodyNumber = int(c.claimCount.Add(1))
		}
		p.call.ttl, p.call.bodyNumber = c.drawDuration(c.timeUnit, 3*c.timeUnit, long), own.bodyNumber
		own.pastCalls.hasCompleted = true
	}
	return p
}

// callClaim makes a planned call on a claim.
func (c *client) callClaim(own *ownedClaim, p plannedCall) reply {
	return c.recordCall(p.call, p.fate, func(ctx context.Context) reply {
		var err error
		var result int
		switch p.call.kind {
		case write:
			result, err = c.rowTable.writeRow(ctx, own.Claim, c.newKey(p.call.keyIndex), p.call.bodyNumber)
		case extend:
			err = own.Extend(ctx, p.call.lease)
		case complete:
			err = own.Complete(ctx, newResponse(p.call.bodyNumber), p.call.ttl)
		case release:
			err = own.Release(ctx, idempotency.Release{TTL: p.call.ttl})
		}
		for _, known := range []error{idempotency.ErrClaimLost, idempotency.ErrRestored, idempotency.ErrRecordInvalid} {
			if errors.Is(err, known) {
				return reply{err: known}
			}
		}
		return reply{isUnknown: err != nil, stepResult: result}
	})
}

// newResponse returns the response with the number n. Every eighth response is too large for a script of Redis.
func newResponse(n int) idempotency.Response {
	text := strconv.Itoa(n)
	if n%8 == 0 {
		text += strings.Repeat(" ", 3<<10)
	}
	return idempotency.Response{Status: 201, Body: []byte(text)}
}

// fate says whether the request or the reply of a call is lost.
type fate int

const (
	executed fate = iota
	requestLost
	replyLost
)

func (c *client) drawFate() fate {
	switch n := c.random.IntN(100); {
	case n < 2:
		return requestLost
	case n < 5:
		return replyLost
	default:
		return executed
	}
}

// recordCall makes a call, unless its request is lost, and adds the call to the history.
func (c *client) recordCall(asked call, fate fate, ask func(context.Context) reply) reply {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var failed failedTries
	asked.clientID = c.id
	if c.callLock != nil {
		c.callLock.Lock()
		defer c.callLock.Unlock()
	}
	r, start := reply{isUnknown: true}, time.Since(c.startTime)
	if fate != requestLost {
		r = ask(context.WithValue(ctx, failedTriesKey{}, &failed))
	}
	end := time.Since(c.startTime)
	known := !r.isUnknown
	r.isUnknown = r.isUnknown || fate == replyLost
	c.addOperation(asked, r, start, end)
	tries := int(failed.Load())
	if !known {
		tries-- // the call itself is one of the tries
	}
	for range tries {
		c.addOperation(asked, reply{isUnknown: true}, start, end)
	}
	return r
}

// failedTries counts the tries of one call without an answer, in stores that repeat calls by themselves. Each of these tries may
// have taken effect, like a separate call.
type failedTries = atomic.Int64

type failedTriesKey struct{}
