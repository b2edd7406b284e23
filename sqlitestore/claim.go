package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// claim implements [idempotency.Claim]. It remembers what the record is made of, to make it again should it be lost.
type claim struct {
	store  *Store
	digest []byte
	names  names
	token  []byte
	record idempotency.Record // as it was granted

	mu    sync.Mutex // held while the record is settled or made again
	ended ending
}

// ending says how a claim has ended.
type ending int

const (
	open ending = iota
	completed
	lost // or released
)

// row returns what is stored of an attempt, without its lease and its end.
func (c *claim) row(of idempotency.Record) *row {
	return &row{
		names: c.names, operation: of.Operation[:], attempt: int64(of.Attempt), fingerprint: of.Fingerprint[:], token: c.token,
		created: of.Created.UnixMicro(),
	}
}

// Context implements [idempotency.Claim]. It returns ctx: a lease has nothing to offer.
func (c *claim) Context(ctx context.Context) context.Context { return ctx }

// Extend implements [idempotency.Claim].
func (c *claim) Extend(ctx context.Context, lease time.Duration) error {
	renew := func(tx *transaction) (bool, error) {
		now := tx.micros()
		return change(tx.sql.extend, c.digest, c.token, now, after(now, lease))
	}
	var renewed bool
	_, err := c.store.writer.do(ctx, false, func(tx *transaction) (err error) {
		renewed, err = renew(tx)
		return err
	})
	if renewed || err != nil {
		return failure("extend", err)
	}
	c.mu.Lock() // Complete or Release may be under way
	defer c.mu.Unlock()
	if c.ended != open { // nobody would renew or settle the record if it were made again
		return idempotency.ErrClaimLost
	}
	return c.settle(ctx, "extend", holds, func(tx *transaction) (standing, error) {
		if renewed, err := renew(tx); renewed || err != nil {
			return holds, err
		}
		return c.restore(tx, func(own *row, now int64) {
			own.expires = after(now, lease)
			own.lease = sql.NullInt64{Int64: own.expires, Valid: true}
		})
	})
}

// Complete implements [idempotency.Claim]. An answer that there is no room for is stored with Omitted set.
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.ended {
	case completed:
		return nil // this is a repetition, even if the record has expired since
	case lost:
		return idempotency.ErrClaimLost
	}
	err := c.complete(ctx, resp, ttl)
	if errors.Is(err, idempotency.ErrStoreFull) && !resp.Omitted {
		err = c.complete(ctx, idempotency.Response{Status: resp.Status, Omitted: true}, ttl)
	}
	return c.end(completed, err)
}

func (c *claim) complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	whole, err := resp.MarshalBinary()
	if err != nil {
		return err
	}
	tombstone, err := idempotency.Response{Status: resp.Status, Omitted: true}.MarshalBinary()
	if err != nil {
		return err
	}
	return c.settle(ctx, "complete", isComplete, func(tx *transaction) (standing, error) {
		stored := whole
		if !tx.hasRoom(len(whole)) {
			stored = tombstone
		}
		now := tx.micros()
		changed, err := change(tx.sql.complete, c.digest, c.token, now, after(now, ttl), stored)
		if changed || err != nil {
			return holds, err
		}
		return c.restore(tx, func(own *row, now int64) {
			own.expires, own.response = after(now, ttl), sql.Null[[]byte]{V: stored, Valid: true}
		})
	})
}

// Release implements [idempotency.Claim].
func (c *claim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end(lost, c.settle(ctx, "release", isReleased, func(tx *transaction) (standing, error) {
		now := tx.micros()
		changed, err := change(tx.sql.release, c.digest, c.token, now, after(now, ttl))
		if changed || err != nil {
			return holds, err
		}
		return c.find(tx)
	}))
}

// end notes that the claim has ended, if err says so.
func (c *claim) end(how ending, err error) error {
	switch {
	case c.ended == completed:
	case err == nil || errors.Is(err, idempotency.ErrRestored):
		c.ended = how
	case errors.Is(err, idempotency.ErrClaimLost):
		c.ended = lost
	}
	return err
}

// standing says how a record stands to a claim.
type standing int

const (
	foreign    standing = iota // another attempt has the key, or had it since
	holds                      // it is as the step wants it
	isReleased                 // by this claim
	isComplete                 // by this claim
	gone                       // nobody has the key
	restored                   // it was gone, and has been made again
)

// settle runs a step, and returns what the contract says for the standing that it finds, which is repeated if the step
// has taken effect before.
func (c *claim) settle(
	ctx context.Context, name string, repeated standing, run func(tx *transaction) (standing, error),
) error {
	var found standing
	_, err := c.store.writer.do(ctx, false, func(tx *transaction) (err error) {
		found, err = run(tx)
		return err
	})
	if err != nil {
		return failure(name, err)
	}
	switch found {
	case holds, repeated:
		return nil
	case restored:
		return idempotency.ErrRestored
	default:
		return idempotency.ErrClaimLost
	}
}

// find returns how the record stands to a claim that could not change it.
func (c *claim) find(tx *transaction) (standing, error) {
	found, err := tx.read(c.digest)
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		return foreign, nil
	}
	if err != nil {
		return foreign, err
	}
	switch {
	case found == nil:
		return gone, nil
	case found.expired(tx.micros()):
		return c.findExpired(found), nil
	case string(found.token) != string(c.token):
		return foreign, nil
	case found.response.Valid:
		return isComplete, nil
	default:
		return isReleased, nil
	}
}

// findExpired returns how a record that has expired stands to a claim. One of a later attempt at the same operation is
// left alone: no two attempts may have the same number.
func (c *claim) findExpired(found *row) standing {
	later := string(found.operation) == string(c.record.Operation[:]) && found.attempt > int64(c.record.Attempt)
	if later {
		return foreign
	}
	return gone
}

// restore makes the record again if it is gone, as fill has it.
func (c *claim) restore(tx *transaction, fill func(own *row, now int64)) (standing, error) {
	found, err := c.find(tx)
	if found != gone || err != nil {
		return found, err
	}
	own := c.row(c.record)
	fill(own, tx.micros())
	return restored, tx.put(c.digest, own)
}
