package step

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// Beside returns the transactional store tx with a place for the results of steps: a leased store, in which they outlive a
// rollback. A transactional store forgets whatever an attempt has written if its transaction does not commit, and so it
// would forget the results of steps too.
//
//	store, err := step.Beside(pgxstore.NewTx(pool, opts), pgxstore.New(steps, opts))
//
// Here the two stores share a table. The first step of an attempt takes a connection of the pool named steps, while the
// transaction holds one of the other pool. So give the steps a pool of their own: where both have the same one, handlers
// that hold all of its connections wait for each other until Options.StoreTimeout has passed. In SQLite a transaction
// blocks all other writers of its file: give the steps a file of their own.
//
// To encrypt the results, put package seal around each of the two stores. Around the store that Beside returns, steps
// would be refused with [idempotency.ErrKeyReused] after a change of the sealing key.
//
// The leased store has a record for each operation with steps that is not completed. The Endpoint of its key is
// "steps of " and then that of the operation, as in "steps of POST /payments". A request whose content differs from that of
// an earlier attempt with steps gets [idempotency.ErrKeyReused] from its first step. When the operation is completed, the
// record stays for a minute: where two processes may run one operation, as with one file of SQLite, the slower one finds
// that its steps are done. If a process dies in between, the record stays until it expires.
//
// The error says that tx is not transactional, or that leased is.
func Beside(tx, leased idempotency.Store) (idempotency.Store, error) {
	var faults []error
	if tx == nil || !idempotency.IsTransactional(tx) {
		faults = append(faults, fmt.Errorf("idempotency: step.Beside: a %T is not transactional: it keeps steps itself", tx))
	}
	if leased == nil || idempotency.IsTransactional(leased) {
		faults = append(faults, fmt.Errorf("idempotency: step.Beside: a %T is no leased store", leased))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &store{tx, leased}, nil
}

// store implements [idempotency.Store] and [idempotency.Inspector].
type store struct{ tx, leased idempotency.Store }

// Unwrap returns the transactional store.
func (s *store) Unwrap() idempotency.Store { return s.tx }

// keyOfSteps is that of the record that has the steps of an operation.
func keyOfSteps(key idempotency.Key) idempotency.Key {
	key.Endpoint = "steps of " + key.Endpoint
	return key.Bounded()
}

// Begin implements [idempotency.Store].
func (s *store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, own, err := s.tx.Begin(ctx, key, request)
	if err != nil || own == nil {
		return record, own, err
	}
	return record, &claim{Claim: own, leased: s.leased, key: keyOfSteps(key), request: request}, nil
}

// claim implements [idempotency.Checkpointer]: a transaction, and as soon as a step asks for it, a claim in the leased store.
type claim struct {
	idempotency.Claim
	leased  idempotency.Store
	key     idempotency.Key
	request idempotency.ClaimRequest

	mu    sync.Mutex
	steps idempotency.Checkpointer // nil: no step has asked yet
	empty bool                     // neither this attempt has had steps, nor one before it
	ended bool
}

// besideLease is the lease of the record with the steps. It is short, so that the next attempt takes the record over soon. The
// token of the next claim fences this one off. It is long enough to be granted: a store may renew a lease of which most has
// passed when its transaction begins.
const besideLease = 20 * time.Millisecond

// besideKept is how long the steps of a completed operation are kept for an attempt that does not know of that yet.
const besideKept = time.Minute

// keeper returns the claim in the leased store.
func (c *claim) keeper(ctx context.Context) (idempotency.Checkpointer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.steps == nil && !c.ended {
		left, err := c.begin(ctx)
		if err != nil {
			return nil, err
		}
		if left > 0 && !polling.Sleep(ctx, left, nil) {
			return nil, context.Cause(ctx)
		}
	}
	if c.ended {
		return nil, idempotency.ErrClaimLost
	}
	return c.steps, nil
}

// begin claims the record with the steps, unless the lease of an earlier attempt has not lapsed yet. An attempt that has lost
// its transaction must not take over from the next one.
func (c *claim) begin(ctx context.Context) (left time.Duration, err error) {
	if err := c.stillHolds(ctx); err != nil {
		return 0, err
	}
	request := c.request
	request.Lease, request.TakeOver = besideLease, true
	record, own, err := c.leased.Begin(ctx, c.key, request)
	switch {
	case err != nil:
		return 0, err // a claim that was granted lapses at once
	case own == nil && record.Fingerprint != request.Fingerprint:
		return 0, fmt.Errorf("%w: its steps belong to a request with other content", idempotency.ErrKeyReused)
	case own == nil && record.Response != nil:
		return 0, fmt.Errorf("%w: the record of its steps was completed by somebody else", idempotency.ErrRecordInvalid)
	case own == nil:
		return max(record.LeaseLeft, besideLease), nil
	}
	steps, ok := own.(idempotency.Checkpointer)
	if !ok {
		return 0, fmt.Errorf("step: the claims of a %T keep no checkpoints: %w", c.leased, errors.ErrUnsupported)
	}
	c.steps, c.empty = steps, record.Attempt == 1
	return 0, nil
}

// stillHolds asks whether the transaction is still there. A client that hangs up does not end the question: some drivers
// would close the connection.
func (c *claim) stillHolds(ctx context.Context) error {
	asked := context.WithoutCancel(ctx)
	if until, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		asked, cancel = context.WithDeadline(asked, until)
		defer cancel()
	}
	return c.Claim.Extend(asked, besideLease)
}

// Checkpoint implements [idempotency.Checkpointer].
func (c *claim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	steps, err := c.keeper(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.empty = false
	c.mu.Unlock()
	stored, err = steps.Checkpoint(ctx, name, data)
	if errors.Is(err, idempotency.ErrRestored) {
		return stored, nil // the transaction is still there
	}
	return stored, err
}

// Checkpoints implements [idempotency.Checkpointer].
func (c *claim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	steps, err := c.keeper(ctx)
	if err != nil || c.isEmpty() {
		return nil, err
	}
	return steps.Checkpoints(ctx)
}

func (c *claim) isEmpty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.empty
}

// Complete implements [idempotency.Claim].
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	err := c.Claim.Complete(ctx, resp, ttl)
	steps := c.end()
	if err == nil && steps != nil {
		_ = steps.Release(ctx, min(ttl/2, besideKept)) // if it fails, the record expires later; but before that of the answer
	}
	return err
}

// Release implements [idempotency.Claim]. The record with the steps stays.
func (c *claim) Release(ctx context.Context, ttl time.Duration) error {
	c.end()
	return c.Claim.Release(ctx, ttl)
}

// end lets no step be stored any more, and returns the claim in the leased store.
func (c *claim) end() idempotency.Checkpointer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.steps
}
