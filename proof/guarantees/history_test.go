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

// subject is a store that histories are made with.
type subject struct {
	store  idempotency.Store
	unit   time.Duration                 // of short leases and TTLs
	slop   time.Duration                 // by how much the clock of the store may round, or be off
	table  table                         // nil: there are no steps in a transaction
	calls  sync.Locker                   // held during each call, unless it is nil
	bubble func(func(idempotency.Store)) // makes a store for each history, with a time of its own; nil: there is one store
}

const (
	long     = time.Minute // outlives every history
	patience = 10 * time.Second
	steps    = 14 // of each client
)

// history is what several clients have asked of a store, and what they were told.
type history struct {
	subject
	seed   uint64
	keys   int
	start  time.Time
	claims atomic.Int64

	mu      sync.Mutex
	made    []porcupine.Operation
	unknown int
}

// record makes a history.
func record(s subject, seed uint64) (h *history) {
	if s.bubble == nil {
		return play(s, seed)
	}
	s.bubble(func(store idempotency.Store) {
		s.store = store
		h = play(s, seed)
	})
	return h
}

func play(s subject, seed uint64) *history {
	plan := rand.New(rand.NewPCG(seed, 0))
	h := &history{subject: s, seed: seed, keys: 1 + plan.IntN(3), start: time.Now()}
	var clients sync.WaitGroup
	for i := range 3 + plan.IntN(2) {
		c := &client{history: h, id: i, random: rand.New(rand.NewPCG(seed, uint64(i)+1))}
		clients.Go(c.run)
	}
	clients.Wait()
	return h
}

// violation returns the calls on a key that no order explains, or nothing. It is not decided if the checker takes too long:
// on a machine that is busy, calls take so long that any order of them is possible.
func (h *history) violation() (text string, decided bool) {
	byKey := make([][]porcupine.Operation, h.keys)
	for _, o := range h.made {
		key := o.Input.(call).key
		byKey[key] = append(byKey[key], o)
	}
	decided = true
	for _, calls := range byKey {
		switch porcupine.CheckOperationsTimeout(model.ToModel(), calls, 20*time.Second) {
		case porcupine.Illegal:
			return fmt.Sprintf("seed %d:\n%s", h.seed, describe(calls)), true
		case porcupine.Unknown:
			decided = false
		}
	}
	return "", decided
}

func describe(calls []porcupine.Operation) string {
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

// add writes a call down.
func (h *history) add(c call, r reply, start, end time.Duration) {
	c.span = span{start - h.slop, end + h.slop}
	if r.unknown {
		end, c.to = forever, forever
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.unknown {
		h.unknown++
	}
	h.made = append(h.made, porcupine.Operation{
		ClientId: len(h.made), Input: c, Call: int64(start), Output: r, Return: int64(end),
	})
}

func (h *history) key(n int) idempotency.Key {
	return idempotency.Key{User: fmt.Sprintf("history %d", h.seed), ID: strconv.Itoa(n)}
}

// client makes one call after another.
type client struct {
	*history
	id     int
	random *rand.Rand
	owned  []*owned
}

// owned is a claim of a client.
type owned struct {
	idempotency.Claim
	began   call
	granted bool // else it may be released, and nothing more
	body    int  // of its response
	past    past
}

func (c *client) chance(percent int) bool { return c.random.IntN(100) < percent }

func (c *client) oneOf(some ...time.Duration) time.Duration { return some[c.random.IntN(len(some))] }

func (c *client) run() {
	for range steps {
		if c.chance(25) {
			time.Sleep(time.Duration(c.random.Int64N(int64(2 * c.unit))))
		}
		if resolver, ok := c.store.(idempotency.Resolver); ok && c.chance(10) {
			c.resolve(resolver)
			continue
		}
		if c.table != nil && c.chance(10) {
			c.read()
			continue
		}
		if len(c.owned) == 0 || c.chance(40) {
			c.begin()
			continue
		}
		recent := c.owned[max(0, len(c.owned)-4):]
		c.step(recent[c.random.IntN(len(recent))])
	}
}

func (c *client) begin() {
	asked := call{
		kind: begin, key: c.random.IntN(c.keys), claim: int(c.claims.Add(1)), request: 1, takeOver: c.chance(50),
		lease: c.oneOf(c.unit, c.unit, long), ttl: c.oneOf(c.unit, 3*c.unit, long),
	}
	if c.chance(15) {
		asked.request = 2
	}
	request := idempotency.ClaimRequest{
		Fingerprint: idempotency.Fingerprint{0: byte(asked.request)}, Lease: asked.lease, TTL: asked.ttl,
		TakeOver: asked.takeOver,
	}
	own := &owned{began: asked}
	r := c.do(asked, c.fate(), func(ctx context.Context) reply {
		record, claim, err := c.store.Begin(ctx, c.key(asked.key), request)
		own.Claim = claim
		if inDoubt := testservice.InDoubt(err); inDoubt != nil {
			own.Claim = inDoubt
		}
		if err != nil {
			return reply{unknown: !errors.Is(err, idempotency.ErrRecordInvalid), err: err}
		}
		return reply{claimed: claim != nil, record: show(record)}
	})
	if own.Claim == nil {
		return
	}
	own.granted, own.began.origin = !r.unknown, r.record.origin
	c.owned = append(c.owned, own)
}

func show(record idempotency.Record) shown {
	s := shown{
		origin: origin{record.Created.UnixNano(), record.Attempt, int(record.Fingerprint[0])},
		left:   record.LeaseLeft, remaining: record.Remaining,
	}
	if record.Response != nil {
		s.body, _ = strconv.Atoi(strings.TrimSpace(string(record.Response.Body)))
	}
	return s
}

// resolve ends what is abandoned, as an operator does. In between, anything may happen.
func (c *client) resolve(store idempotency.Resolver) {
	asked := call{
		kind: resolve, key: c.random.IntN(c.keys), claim: int(c.claims.Add(1)), ttl: c.oneOf(c.unit, 3*c.unit, long),
	}
	entry, err := c.inspect(store, c.key(asked.key))
	if err != nil || entry.State != idempotency.StateAbandoned {
		return
	}
	if c.chance(20) {
		time.Sleep(c.unit)
	}
	asked.origin = origin{created: entry.Created.UnixNano(), attempt: entry.Attempt}
	resolution := idempotency.Resolution{Operator: "an operator", Reason: "by chance", TTL: asked.ttl}
	if c.chance(50) {
		asked.body = asked.claim
		resp := response(asked.body)
		resolution.Response = &resp
	}
	c.do(asked, c.fate(), func(ctx context.Context) reply {
		err := store.Resolve(ctx, entry, resolution)
		for _, known := range []error{idempotency.ErrInProgress, idempotency.ErrNoRecord, idempotency.ErrEntryChanged, idempotency.ErrRecordInvalid} {
			if errors.Is(err, known) {
				return reply{err: known}
			}
		}
		return reply{unknown: err != nil}
	})
}

func (c *client) inspect(store idempotency.Resolver, key idempotency.Key) (idempotency.Entry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.calls != nil {
		c.calls.Lock()
		defer c.calls.Unlock()
	}
	return store.Inspect(ctx, key)
}

// read reads the rows of a key.
func (c *client) read() {
	asked := call{kind: readRows, key: c.random.IntN(c.keys)}
	c.do(asked, executed, func(ctx context.Context) reply {
		rows, err := c.table.read(ctx, c.key(asked.key))
		return reply{unknown: err != nil, rows: rowsOf(rows...)}
	})
}

// step does something with a claim.
func (c *client) step(own *owned) {
	if c.table != nil && own.granted && c.chance(30) {
		c.ask(own, c.plan(own, write, own.began.lease))
		return
	}
	what := c.random.IntN(12)
	if !own.granted {
		what = 9
	}
	extension := c.plan(own, extend, own.began.lease)
	switch {
	case what < 3:
		c.ask(own, extension)
		return
	case what < 6: // one that is under way while the claim ends
		extension.call.past = past{completed: true, released: true, settled: own.past.settled, wrote: own.past.wrote}
		var extending sync.WaitGroup
		defer extending.Wait()
		extending.Go(func() { c.ask(own, extension) })
	}
	end := c.plan(own, release, 0)
	if what%3 < 2 && own.granted {
		end = c.plan(own, complete, 0)
	}
	r := c.ask(own, end)
	if r.unknown && c.chance(70) {
		end.fate, end.call.past = executed, own.past
		r = c.ask(own, end)
	}
	own.past.settled = own.past.settled || !r.unknown && (r.err != idempotency.ErrClaimLost || end.call.kind == release)
}

// planned is a step that is about to be asked for.
type planned struct {
	call call
	fate fate
}

// plan decides on a step, and notes that it is taken.
func (c *client) plan(own *owned, kind kind, lease time.Duration) planned {
	p := planned{own.began, c.fate()}
	p.call.kind, p.call.client, p.call.past, p.call.lease = kind, c.id, own.past, lease
	switch kind {
	case release:
		p.call.ttl = c.oneOf(0, c.unit, 3*c.unit, long)
		own.past.released = true
	case write:
		p.call.body = int(c.claims.Add(1))
		own.past.wrote = true
	case complete:
		if own.body == 0 || c.chance(30) {
			own.body = int(c.claims.Add(1))
		}
		p.call.ttl, p.call.body = c.oneOf(c.unit, 3*c.unit, long), own.body
		own.past.completed = true
	}
	return p
}

// ask takes a step of a claim.
func (c *client) ask(own *owned, p planned) reply {
	return c.do(p.call, p.fate, func(ctx context.Context) reply {
		var err error
		var result int
		switch p.call.kind {
		case write:
			result, err = c.table.write(ctx, own.Claim, c.key(p.call.key), p.call.body)
		case extend:
			err = own.Extend(ctx, p.call.lease)
		case complete:
			err = own.Complete(ctx, response(p.call.body), p.call.ttl)
		case release:
			err = own.Release(ctx, p.call.ttl)
		}
		for _, known := range []error{idempotency.ErrClaimLost, idempotency.ErrRestored, idempotency.ErrRecordInvalid} {
			if errors.Is(err, known) {
				return reply{err: known}
			}
		}
		return reply{unknown: err != nil, result: result}
	})
}

// response returns a response by number. Some are too large for a script of Redis.
func response(n int) idempotency.Response {
	text := strconv.Itoa(n)
	if n%8 == 0 {
		text += strings.Repeat(" ", 3<<10)
	}
	return idempotency.Response{Status: 201, Body: []byte(text)}
}

// fate is what becomes of a call.
type fate int

const (
	executed fate = iota
	requestLost
	replyLost
)

func (c *client) fate() fate {
	switch n := c.random.IntN(100); {
	case n < 2:
		return requestLost
	case n < 5:
		return replyLost
	default:
		return executed
	}
}

// do makes a call, unless its request is lost, and writes it down.
func (c *client) do(asked call, fate fate, ask func(context.Context) reply) reply {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var failed failedTries
	asked.client = c.id
	if c.calls != nil {
		c.calls.Lock()
		defer c.calls.Unlock()
	}
	r, start := reply{unknown: true}, time.Since(c.start)
	if fate != requestLost {
		r = ask(context.WithValue(ctx, failedTriesKey{}, &failed))
	}
	end := time.Since(c.start)
	known := !r.unknown
	r.unknown = r.unknown || fate == replyLost
	c.add(asked, r, start, end)
	tries := int(failed.Load())
	if !known {
		tries-- // which is the call itself
	}
	for range tries {
		c.add(asked, reply{unknown: true}, start, end)
	}
	return r
}

// failedTries counts the tries of one call that were not answered, where the store tries again by itself. Each may
// have taken effect, as a call of its own.
type failedTries = atomic.Int64

type failedTriesKey struct{}
