package sqlstore

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// txClaim implements [idempotency.Claim] for a transaction.
type txClaim struct {
	session *session

	settled  bool
	ended    atomic.Bool // Complete or Release has returned, or is about to
	released bool
	outcome  error // of Complete
}

// NewTxClaim returns the claim of an attempt that has the key.
func NewTxClaim(dialect *Dialect, attempt Attempt) idempotency.Claim {
	return &txClaim{session: &session{dialect: dialect, attempt: attempt}}
}

// Context implements [idempotency.Claim]: it adds what Tx of the dialect returns.
func (c *txClaim) Context(ctx context.Context) context.Context {
	c.session.handler = ctx
	return context.WithValue(ctx, c.session.dialect.Key, c.session)
}

// Extend implements [idempotency.Claim]. There is no lease to extend. It says whether the transaction is known to have
// ended.
func (c *txClaim) Extend(ctx context.Context, _ time.Duration) error {
	if c.ended.Load() || !c.session.isAlive(ctx) {
		return idempotency.ErrClaimLost
	}
	return nil
}

// Release implements [idempotency.Claim]: it rolls back.
func (c *txClaim) Release(ctx context.Context, _ time.Duration) error {
	if c.settled {
		if c.released {
			return nil
		}
		return idempotency.ErrClaimLost
	}
	c.settled, c.released = true, true
	c.ended.Store(true)
	if !c.session.end() {
		c.session.attempt.HangUp()
		return nil
	}
	return c.session.attempt.Rollback(ctx)
}

// Complete implements [idempotency.Claim]: it stores the record and commits. If the status of the response is 400 or
// more, what the handler did is rolled back first, unless it has asked to keep that.
func (c *txClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.released {
		return idempotency.ErrClaimLost
	}
	if !c.settled {
		c.settled = true
		c.outcome = c.complete(ctx, resp, ttl)
		c.ended.Store(true)
	}
	return c.outcome
}

func (c *txClaim) complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	s := c.session
	if !s.end() {
		s.attempt.HangUp()
		return RolledBack(errBusy)
	}
	undo, err := s.judge(&resp)
	if undo {
		if err = s.attempt.Undo(ctx); err != nil {
			err = RolledBack(err)
		}
	}
	if err != nil {
		_ = s.attempt.Rollback(ctx) // it gives everything back even if it fails
		return err
	}
	return s.attempt.Commit(ctx, resp, ttl)
}

// RolledBack returns the error for effects that were undone, or of which it is not known whether they were committed. It
// wraps [idempotency.ErrRolledBack].
func RolledBack(cause error) error {
	return fmt.Errorf("%w: %w", idempotency.ErrRolledBack, cause)
}

// Rejected returns the error for a transaction that the database has refused, and would refuse again: the client is told
// not to repeat the request.
func Rejected(cause error) error {
	return &idempotency.Error{
		Status: http.StatusInternalServerError, Code: "rolled-back", Retry: idempotency.RetryNever,
		Title:  "The request cannot take effect",
		Detail: "Its effects were undone, because the database refuses them. A retry would be refused, too.",
		Err:    RolledBack(cause),
	}
}
