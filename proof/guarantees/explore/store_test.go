package explore

import (
	"context"
	"maps"
	"time"

	"github.com/idempotency-go/idempotency"
)

// key is the record of a key in the store, and what must hold of it.
type key struct {
	name   string
	record record
	leases []granted // by token, as the contract of the store promises them

	stored   bool // an answer
	finished bool // the step has a result
	rows     int
	entered  idempotency.Operation
	answers  []string // that clients got, and that must stay as they are
}

// granted is a lease, and what has become of its owner. It holds until its claim is settled.
type granted struct {
	until time.Duration
	ahead time.Duration // by which the store's clock had jumped when it was granted, or extended
	holds bool

	jumped      bool // it ended by a jump once
	interrupted bool // the attempt: others may have run since it had its effect
	effects     int
}

// record is what the store keeps. It may have a bug.
type record struct {
	bug      string
	token    int // of the last claim; 0: there is none
	until    time.Duration
	attempt  int
	released bool
	response *idempotency.Response
	steps    map[string][]byte
}

func (s *record) runs(now time.Duration) bool {
	return s.token > 0 && !s.released && s.response == nil && s.until > now
}

func (s *record) free(now time.Duration, takeOver bool) bool {
	switch {
	case s.token == 0:
		return true
	case s.response != nil:
		return s.bug == "answer lapses with its lease" && s.until <= now
	case s.runs(now):
		return s.bug == "live lease is taken over" || s.bug == "lease ends early" && s.until-now < lease/2
	default:
		return s.released || takeOver && s.bug != "lapsed lease is kept"
	}
}

func (s *record) claim(now time.Duration) {
	if s.token == 0 || s.bug != "attempt number stays" {
		s.attempt++
	}
	s.token++
	s.until, s.released, s.response = now+lease, false, nil
}

func (s *record) extend(token int, now, d time.Duration) error {
	if token == 0 || token != s.token && s.bug != "any claim extends" || s.response != nil {
		return idempotency.ErrClaimLost
	}
	if s.released && s.bug != "renewal undoes a release" {
		return idempotency.ErrClaimLost
	}
	s.released = false
	if s.bug != "renewal is forgotten" {
		s.until = now + d
	}
	return nil
}

func (s *record) complete(token int, resp idempotency.Response) error {
	if token != s.token && s.bug != "any claim completes" || s.released {
		return idempotency.ErrClaimLost
	}
	if s.response == nil || token != s.token {
		s.response = &resp
	}
	return nil
}

func (s *record) release(token int) error {
	if token == 0 || token != s.token && s.bug != "any claim releases" || s.response != nil {
		return idempotency.ErrClaimLost
	}
	s.released = true
	return nil
}

// claim is a connection to the store that all share. It implements idempotency.Claim.
type claim struct {
	request *request
	key     *key
	token   int // 0: it is not granted, or not yet
}

// Begin implements idempotency.Store.
func (p *process) Begin(
	ctx context.Context, _ idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	r := requestIn(ctx)
	c, rec := &claim{request: r, key: r.key}, idempotency.Record{}
	free := func() bool { return c.key.record.free(p.world.now(), a.TakeOver) }
	if p.world.Bug == "claim is not atomic" {
		was := false
		if _, err := r.do(ctx, begin, func() error { was = free(); return nil }); err != nil {
			return idempotency.Record{}, nil, err
		}
		free = func() bool { return was }
	}
	sent, err := r.do(ctx, begin, func() error {
		if free() {
			c.grant(a.Lease)
		}
		rec = c.key.show(p.world.now(), a.Fingerprint)
		return nil
	})
	switch {
	case err != nil && !sent:
		return idempotency.Record{}, nil, err
	case err != nil:
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: c, Err: err}
	case c.token == 0:
		return rec, nil, nil
	}
	switch {
	case p.world.Steps:
		return rec, stepClaim{c}, nil
	case p.world.Rows:
		return rec, rowClaim{stepClaim{c}}, nil
	}
	return rec, c, nil
}

// stepClaim implements idempotency.Checkpointer.
type stepClaim struct{ *claim }

func (c stepClaim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	_, err = c.request.do(ctx, keep, func() error {
		stored, err = c.key.record.keep(c.token, name, data)
		c.key.finished = c.key.finished || err == nil
		return err
	})
	return stored, err
}

func (c stepClaim) Checkpoints(ctx context.Context) (found map[string][]byte, err error) {
	_, err = c.request.do(ctx, read, func() error {
		if !c.key.record.isOf(c.token) {
			return idempotency.ErrClaimLost
		}
		found = maps.Clone(c.key.record.steps)
		return nil
	})
	return found, err
}

// transaction is what a step writes its row in.
type transaction struct{ isOpen bool }

// rowClaim implements idempotency.TxCheckpointer. It does not find out what has become of a commit without a reply: the next
// call of Checkpoints does.
type rowClaim struct{ stepClaim }

func (c rowClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error) {
	r := c.request
	begun, cancel := context.WithTimeout(ctx, step.Timeout)
	defer cancel()
	if _, err := r.do(begun, open, func() error { return nil }); err != nil {
		return nil, err
	}
	tx := &transaction{isOpen: true}
	defer func() { tx.isOpen = false }()
	*step.Var.(**transaction) = tx
	data, err := step.Run()
	if err != nil {
		return nil, err
	}
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), step.Timeout)
	defer cancel()
	_, err = r.do(ended, commit, func() error {
		var isFirst bool
		stored, isFirst, err = c.key.record.commit(c.token, step.Name, data)
		if isFirst {
			c.key.rows++
			r.effects++
			r.lease().effects++
		}
		return err
	})
	return stored, err
}

// commit keeps the result of a step, and reports whether the rows are permanent.
func (s *record) commit(token int, name string, data []byte) (stored []byte, isFirst bool, err error) {
	if !s.isOf(token) && s.bug == "transaction is not fenced" {
		return data, true, nil
	}
	_, known := s.steps[name]
	stored, err = s.keep(token, name, data)
	return stored, err == nil && (!known || s.bug == "second rows are committed"), err
}

// isOf reports whether an attempt that has not ended has the claim with that token.
func (s *record) isOf(token int) bool { return token == s.token && !s.released && s.response == nil }

func (s *record) keep(token int, name string, data []byte) (stored []byte, err error) {
	if !s.isOf(token) && s.bug != "any claim stores a step" {
		return nil, idempotency.ErrClaimLost
	}
	if first, ok := s.steps[name]; ok {
		return first, nil
	}
	if s.steps == nil {
		s.steps = make(map[string][]byte)
	}
	if s.bug != "step is forgotten" {
		s.steps[name] = data
	}
	return data, nil
}

func (c *claim) grant(d time.Duration) {
	now, s := c.request.world.now(), &c.key.record
	s.bug = c.request.world.Bug
	s.claim(now)
	c.token = s.token
	c.key.leases = append(c.key.leases, granted{until: now + d, ahead: c.request.world.ahead, holds: true})
	c.request.token, c.request.attempt = s.token, s.attempt
}

// lease returns the lease that the contract promises, if the claim was granted.
func (c *claim) lease() *granted { return &c.key.leases[c.token-1] }

func (k *key) show(now time.Duration, fp idempotency.Fingerprint) idempotency.Record {
	s := &k.record
	rec := idempotency.Record{Attempt: s.attempt, Fingerprint: fp, Response: s.response}
	if s.runs(now) {
		rec.LeaseLeft = s.until - now
	}
	return rec
}

func (c *claim) Extend(ctx context.Context, d time.Duration) error {
	_, err := c.request.do(ctx, extend, func() error {
		now := c.request.world.now()
		err := c.key.record.extend(c.token, now, d)
		if err == nil {
			c.lease().until, c.lease().ahead = now+d, c.request.world.ahead
			c.request.world.promise(c.obstacles() == 0, "%s extends its lease beside another one", c.request.name)
		}
		return err
	})
	return err
}

func (c *claim) Complete(ctx context.Context, resp idempotency.Response, _ time.Duration) error {
	resp = resp.Clone() // the caller uses its body again
	_, err := c.request.do(ctx, complete, func() error {
		err := c.key.record.complete(c.token, resp)
		if err == nil {
			c.key.stored, c.lease().holds = true, false
		}
		return err
	})
	return err
}

func (c *claim) Release(ctx context.Context, _ time.Duration) error {
	_, err := c.request.do(ctx, release, func() error {
		err := c.key.record.release(c.token)
		if err == nil {
			c.lease().holds = false
		}
		return err
	})
	return err
}

// obstacles returns how many other claims forbid the owner of this one to act.
func (c *claim) obstacles() int { return c.request.obstacles(c.token) }
