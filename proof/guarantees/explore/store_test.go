package explore

import (
	"context"
	"maps"
	"time"

	"github.com/idempotency-go/idempotency"
)

// key is the record of a key in the store, and the facts that judge the record.
type key struct {
	name          string
	record        storeRecord
	grantedLeases []grantedLease // as the contract of the store promises them; the lease of token n has index n-1

	hasAnswer     bool // an answer is stored
	hasStepResult bool // the result of the step is stored
	rowCount      int
	lastOperation idempotency.Operation
	finalAnswers  []string // answers that clients have received, and that must not change
}

// grantedLease is a lease that the store has granted, and the fate of the owner.
type grantedLease struct {
	expiresAt  time.Duration
	clockAhead time.Duration // clockAhead of the world when the lease was granted or extended
	isHeld     bool          // the claim is neither completed nor released

	endedByJump    bool // a jump of the store's clock has ended the lease at least once
	wasInterrupted bool // other attempts may have run since the effect of this attempt
	effectCount    int
}

// storeRecord is a record of the store. storeBug names the bug of the store, if any.
type storeRecord struct {
	storeBug    string
	token       int // of the last claim; 0: never claimed
	leaseUntil  time.Duration
	attempt     int
	isReleased  bool
	response    *idempotency.Response
	stepResults map[string][]byte
}

func (s *storeRecord) hasLiveLease(now time.Duration) bool {
	return s.token > 0 && !s.isReleased && s.response == nil && s.leaseUntil > now
}

func (s *storeRecord) canBeClaimed(now time.Duration, takeOver bool) bool {
	switch {
	case s.token == 0:
		return true
	case s.response != nil:
		return s.storeBug == "answer lapses with its lease" && s.leaseUntil <= now
	case s.hasLiveLease(now):
		return s.storeBug == "live lease is taken over" || s.storeBug == "lease ends early" && s.leaseUntil-now < leaseDuration/2
	default:
		return s.isReleased || takeOver && s.storeBug != "lapsed lease is kept"
	}
}

func (s *storeRecord) grantClaim(now time.Duration) {
	if s.token == 0 || s.storeBug != "attempt number stays" {
		s.attempt++
	}
	s.token++
	s.leaseUntil, s.isReleased, s.response = now+leaseDuration, false, nil
}

func (s *storeRecord) extendLease(token int, now, d time.Duration) error {
	if token == 0 || token != s.token && s.storeBug != "any claim extends" || s.response != nil {
		return idempotency.ErrClaimLost
	}
	if s.isReleased && s.storeBug != "renewal undoes a release" {
		return idempotency.ErrClaimLost
	}
	s.isReleased = false
	if s.storeBug != "renewal is forgotten" {
		s.leaseUntil = now + d
	}
	return nil
}

func (s *storeRecord) storeResponse(token int, resp idempotency.Response) error {
	if token != s.token && s.storeBug != "any claim completes" || s.isReleased {
		return idempotency.ErrClaimLost
	}
	if s.response == nil || token != s.token {
		s.response = &resp
	}
	return nil
}

func (s *storeRecord) releaseClaim(token int, now time.Duration, end idempotency.Release) error {
	if token == 0 || token != s.token && s.storeBug != "any claim releases" || s.response != nil {
		return idempotency.ErrClaimLost
	}
	if end.Abandoned && !s.isReleased {
		s.leaseUntil = min(s.leaseUntil, now)
		return nil
	}
	s.isReleased = true
	return nil
}

// claim implements idempotency.Claim. Every call goes through the explorer.
type claim struct {
	request *request
	key     *key
	token   int // 0: the store has not granted the claim
}

// Begin implements idempotency.Store.
func (p *process) Begin(
	ctx context.Context, _ idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	r := requestIn(ctx)
	c, rec := &claim{request: r, key: r.key}, idempotency.Record{}
	free := func() bool { return c.key.record.canBeClaimed(p.world.storeTime(), a.TakeOver) }
	if p.world.StoreBug == "claim is not atomic" {
		was := false
		if _, err := r.makeCall(ctx, beginCall, func() error { was = free(); return nil }); err != nil {
			return idempotency.Record{}, nil, err
		}
		free = func() bool { return was }
	}
	sent, err := r.makeCall(ctx, beginCall, func() error {
		if free() {
			c.grantClaim(a.Lease)
		}
		rec = c.key.describeRecord(p.world.storeTime(), a.Fingerprint)
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
	case p.world.EffectIsStep:
		return rec, stepClaim{c}, nil
	case p.world.EffectIsRow:
		return rec, rowClaim{stepClaim{c}}, nil
	}
	return rec, c, nil
}

// stepClaim implements idempotency.Checkpointer.
type stepClaim struct{ *claim }

func (c stepClaim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	_, err = c.request.makeCall(ctx, storeStepCall, func() error {
		stored, err = c.key.record.storeStep(c.token, name, data)
		c.key.hasStepResult = c.key.hasStepResult || err == nil
		return err
	})
	return stored, err
}

func (c stepClaim) Checkpoints(ctx context.Context) (found map[string][]byte, err error) {
	_, err = c.request.makeCall(ctx, readStepsCall, func() error {
		if !c.key.record.isHeldBy(c.token) {
			return idempotency.ErrClaimLost
		}
		found = maps.Clone(c.key.record.stepResults)
		return nil
	})
	return found, err
}

// transaction is the transaction in which a step writes its row.
type transaction struct{ isOpen bool }

// rowClaim implements idempotency.TxCheckpointer. CheckpointTx leaves a commit without a reply in doubt: the next call of
// Checkpoints tells whether the commit took effect.
type rowClaim struct{ stepClaim }

func (c rowClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error) {
	r := c.request
	begun, cancel := context.WithTimeout(ctx, step.Timeout)
	defer cancel()
	if _, err := r.makeCall(begun, openTxCall, func() error { return nil }); err != nil {
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
	_, err = r.makeCall(ended, commitTxCall, func() error {
		var isFirst bool
		stored, isFirst, err = c.key.record.commitStep(c.token, step.Name, data)
		if isFirst {
			c.key.rowCount++
			r.effectCount++
			r.ownLease().effectCount++
		}
		return err
	})
	return stored, err
}

// commitStep stores the result of a step. isFirst reports whether the commit makes the rows permanent.
func (s *storeRecord) commitStep(token int, name string, data []byte) (stored []byte, isFirst bool, err error) {
	if !s.isHeldBy(token) && s.storeBug == "transaction is not fenced" {
		return data, true, nil
	}
	_, known := s.stepResults[name]
	stored, err = s.storeStep(token, name, data)
	return stored, err == nil && (!known || s.storeBug == "second rows are committed"), err
}

// isHeldBy reports whether the claim with the token token is the last claim, and is neither completed nor released.
func (s *storeRecord) isHeldBy(token int) bool {
	return token == s.token && !s.isReleased && s.response == nil
}

func (s *storeRecord) storeStep(token int, name string, data []byte) (stored []byte, err error) {
	if !s.isHeldBy(token) && s.storeBug != "any claim stores a step" {
		return nil, idempotency.ErrClaimLost
	}
	if first, ok := s.stepResults[name]; ok {
		return first, nil
	}
	if s.stepResults == nil {
		s.stepResults = make(map[string][]byte)
	}
	if s.storeBug != "step is forgotten" {
		s.stepResults[name] = data
	}
	return data, nil
}

func (c *claim) grantClaim(d time.Duration) {
	now, s := c.request.world.storeTime(), &c.key.record
	s.storeBug = c.request.world.StoreBug
	s.grantClaim(now)
	c.token = s.token
	lease := grantedLease{expiresAt: now + d, clockAhead: c.request.world.clockAhead, isHeld: true}
	c.key.grantedLeases = append(c.key.grantedLeases, lease)
	c.request.claimToken, c.request.attemptNumber = s.token, s.attempt
}

// ownLease returns the lease that the contract promises. The claim must be granted.
func (c *claim) ownLease() *grantedLease { return &c.key.grantedLeases[c.token-1] }

func (k *key) describeRecord(now time.Duration, fp idempotency.Fingerprint) idempotency.Record {
	s := &k.record
	rec := idempotency.Record{Attempt: s.attempt, Fingerprint: fp, Response: s.response}
	if s.hasLiveLease(now) {
		rec.LeaseLeft = s.leaseUntil - now
	}
	return rec
}

func (c *claim) Extend(ctx context.Context, d time.Duration) error {
	_, err := c.request.makeCall(ctx, extendCall, func() error {
		now := c.request.world.storeTime()
		err := c.key.record.extendLease(c.token, now, d)
		if err == nil {
			c.ownLease().expiresAt, c.ownLease().clockAhead = now+d, c.request.world.clockAhead
			c.request.world.checkPromise(c.countObstacles() == 0, "%s extends its lease beside another one", c.request.name)
		}
		return err
	})
	return err
}

func (c *claim) Complete(ctx context.Context, resp idempotency.Response, _ time.Duration) error {
	resp = resp.Clone() // because the caller reuses the body
	_, err := c.request.makeCall(ctx, completeCall, func() error {
		err := c.key.record.storeResponse(c.token, resp)
		if err == nil {
			c.key.hasAnswer, c.ownLease().isHeld = true, false
		}
		return err
	})
	return err
}

func (c *claim) Release(ctx context.Context, end idempotency.Release) error {
	_, err := c.request.makeCall(ctx, releaseCall, func() error {
		err := c.key.record.releaseClaim(c.token, c.request.world.storeTime(), end)
		if err == nil {
			c.ownLease().isHeld = end.Abandoned
		}
		return err
	})
	return err
}

// countObstacles returns how many other claims forbid the owner of this claim to act.
func (c *claim) countObstacles() int { return c.request.countObstacles(c.token) }
