package sqlstore

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Attempt is the transaction of a claim, as a database has it. One goroutine at a time calls it, except that HangUp may
// be called while a statement of the handler begins.
type Attempt interface {
	// Undo rolls back what the handler did. The key stays claimed, and Commit or Rollback follows.
	Undo(ctx context.Context) error

	// Commit stores the record with its response, commits, and gives back what the attempt holds, whatever comes of it. If
	// undo is true, it rolls back first what the handler did and has not been rolled back yet. Its errors are those of
	// Complete of [idempotency.Claim].
	Commit(ctx context.Context, resp idempotency.Response, ttl time.Duration, undo bool) error

	// Rollback undoes everything, and gives back what the attempt holds.
	Rollback(ctx context.Context) error

	// HangUp takes the place of Rollback if somebody still uses the connection. It closes the connection, because nothing
	// else stops that user. The contexts of all statements have ended before.
	HangUp()

	// Alive reports whether the transaction can still be committed, as far as is known.
	Alive(ctx context.Context) bool
}

// Outcome is what the result of a statement means for its transaction.
type Outcome int

const (
	// Stands means that the transaction goes on, and that a statement that has failed would fail again.
	Stands Outcome = iota

	// MayPass means that the statement has failed for a reason that is neither in it nor in the data: a lock, a lack of
	// resources, an intervention.
	MayPass

	// Ended means that the database has rolled the transaction back.
	Ended

	// Recovered means that the transaction goes on as if no statement had failed: a savepoint has undone those that have.
	Recovered
)

// TxClaim implements [idempotency.Claim] for a transaction. It must be made by Init.
type TxClaim struct {
	Session
	key, value any // in the context of the handler

	settled  bool
	ended    atomic.Bool // Complete or Release has returned, or is about to
	released bool
	outcome  error // of Complete
}

// Init makes the claim that of an attempt that has the key. The handler finds value under key in its context.
func (c *TxClaim) Init(attempt Attempt, key, value any) {
	c.attempt, c.key, c.value = attempt, key, value
}

// Context implements [idempotency.Claim].
func (c *TxClaim) Context(ctx context.Context) context.Context {
	c.Handler = ctx
	return context.WithValue(ctx, c.key, c.value)
}

// Extend implements [idempotency.Claim]. There is no lease to extend. It says whether the transaction is known to have
// ended.
func (c *TxClaim) Extend(ctx context.Context, _ time.Duration) error {
	if c.ended.Load() || !c.isAlive(ctx) {
		return idempotency.ErrClaimLost
	}
	return nil
}

// Release implements [idempotency.Claim]: it rolls back.
func (c *TxClaim) Release(ctx context.Context, _ time.Duration) error {
	if c.settled {
		if c.released {
			return nil
		}
		return idempotency.ErrClaimLost
	}
	c.settled, c.released = true, true
	c.ended.Store(true)
	if !c.end() {
		c.attempt.HangUp()
		return nil
	}
	return c.attempt.Rollback(ctx)
}

// Complete implements [idempotency.Claim]: it stores the record and commits. If the status of the response is 400 or
// more, what the handler did is rolled back first, unless it has asked to keep that.
func (c *TxClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
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

func (c *TxClaim) complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if !c.end() {
		c.attempt.HangUp()
		return RolledBack(ErrBusy)
	}
	undo, err := c.judge(&resp)
	if err != nil {
		_ = c.attempt.Rollback(ctx) // it gives everything back even if it fails
		return err
	}
	return c.attempt.Commit(ctx, resp, ttl, undo)
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
