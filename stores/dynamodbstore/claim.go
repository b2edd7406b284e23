package dynamodbstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases are what package sqlstore makes claims by, and changes records for operators.
type leases struct{ *Store }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	s := &steps{Store: l.Store, ctx: ctx}
	err = retry(ctx, func() error {
		s.seen, s.invalid, s.isOpening = nil, nil, adds
		if adds {
			if err := l.compareClocks(ctx); errors.Is(err, ErrClock) {
				return fmt.Errorf("%w (%w)", err, errors.ErrUnsupported) // which FailOpen leaves alone
			} else if err != nil {
				return err
			}
		}
		return run(s)
	})
	return err == nil || s.changed, err
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	s := &steps{Store: l.Store, ctx: ctx}
	return retry(ctx, func() error {
		s.seen, s.invalid = nil, nil
		if err := l.compareClocks(ctx); err != nil {
			return err
		}
		return run(s)
	})
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return failure(step, err) }

// steps are the requests of a step. A write whose condition does not hold tells the record, so that the next read need not
// ask for it.
type steps struct {
	*Store
	ctx       context.Context
	isOpening bool           // the first read of a claim, which supposes that there is no record
	seen      *sqlstore.Seen // what the last write has told; nil: nothing
	invalid   error          // of what it has told
	changed   bool           // a write has changed a record, or may have because it was not answered
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(digest []byte) (*sqlstore.Row, error) {
	if s.isOpening {
		return &sqlstore.Row{Now: s.now()}, nil
	}
	seen, err := s.See(digest)
	if err != nil {
		return nil, err
	}
	return &seen.Row, nil
}

// See implements [sqlstore.Changes].
func (s *steps) See(digest []byte) (*sqlstore.Seen, error) {
	if err := s.look(digest); err != nil {
		return nil, err
	}
	seen, err := s.seen, s.invalid
	s.seen, s.invalid = nil, nil
	return seen, err
}

// look makes sure that the record has been read.
func (s *steps) look(digest []byte) error {
	if s.seen != nil {
		return nil
	}
	item, err := s.get(s.ctx, digest)
	if err == nil {
		s.note(item)
	}
	return err
}

// note keeps what the service has told.
func (s *steps) note(item map[string]value) {
	s.seen, s.invalid = &sqlstore.Seen{Row: sqlstore.Row{Now: s.now()}}, nil
	if item != nil {
		s.seen, s.invalid = decode(item, s.now())
	}
}

// change sends an update, and reports whether its condition held.
func (s *steps) change(u *update) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	s.seen, s.invalid = nil, nil
	_, err := s.client.UpdateItem(s.ctx, u.input(s.opts.table()), s.calls)
	return s.outcome(err)
}

// outcome tells by the error of a write whether it has changed the record.
func (s *steps) outcome(err error) (bool, error) {
	if item, ok := isConditional(err); ok {
		if len(item) > 0 { // otherwise there is none, or the service does not tell it
			s.note(item)
		}
		return false, nil
	}
	s.changed = s.changed || !isAnswer(err)
	return err == nil, err
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(digest []byte, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	u := newUpdate(digest)
	s.replaces(u, seen, own)
	began := time.Now()
	u.setText(userName, own.Names[0]).setText(endpointName, own.Names[1]).setText(keyName, own.Names[2])
	u.set(attemptName, number(own.Attempt)).set(fingerprintName, binary(own.Fingerprint)).set(tokenName, binary(own.Token))
	u.set(createdName, number(own.Created)).expiry(s.after(ttl))
	if lease > 0 {
		u.set(leaseName, number(s.after(lease)))
	} else {
		u.remove(leaseName)
	}
	if err := s.setAnswer(u, own.Response); err != nil {
		return false, err
	}
	switch keeps := seen.Counts() && !own.Response.Valid; {
	case keeps:
	case len(entries) > 0:
		u.setSteps(entries)
	default:
		u.removeSteps()
	}
	if !seen.Counts() {
		u.remove(resolvedName, resolvedSize)
	}
	put, err := s.change(u)
	if put && lease > 0 && time.Since(began) > lease/10 {
		// The lease counts from before the request. If another attempt has taken the key over since, it was not put.
		return s.Extend(digest, own.Token, lease)
	}
	return put, err
}

// replaces has u fail if the record is not what Read has seen.
func (s *steps) replaces(u *update, seen, own *sqlstore.Row) {
	switch {
	case s.isOpening:
		u.values[":now"] = number(own.Created)
		u.when("(attribute_not_exists(" + digestName + ") OR " + expiresName + " <= :now)")
	case seen.Found:
		u.isStill(seen)
	default:
		u.has(digestName, false)
	}
	s.isOpening = false
}

// setAnswer has a response stored, or removed if there is none.
func (s *steps) setAnswer(u *update, response sql.Null[[]byte]) error {
	if !response.Valid {
		u.remove(answerName, sizeName, statusName, noteName)
		return nil
	}
	stored := zip(response.V)
	if len(stored) > s.largest {
		return idempotency.ErrStoreFull
	}
	line, _ := recordline.ParseResponse(response.V)
	u.set(answerName, binary(stored)).set(sizeName, number(int64(len(response.V))))
	u.set(statusName, number(line.Status)).setText(noteName, line.Note)
	return nil
}

// Extend implements [sqlstore.Steps]. It never shortens a lease: an older request that arrives late changes nothing.
func (s *steps) Extend(digest, token []byte, lease time.Duration) (bool, error) {
	end := s.after(lease)
	own := func() *update { return newUpdate(digest).isOwn(token, s.now()).set(leaseName, number(end)) }
	u := own().when(leaseName + " <= :" + leaseName).when(expiresName + " >= :" + leaseName)
	if extended, err := s.change(u); extended || err != nil {
		return extended, err
	}
	if err := s.look(digest); err != nil {
		return false, err
	}
	seen := s.seen
	if s.invalid != nil || !seen.IsHeldBy(token) {
		return false, nil
	}
	if seen.Lease.Int64 >= end {
		return true, nil
	}
	return s.change(own().isStill(&seen.Row).expiry(end))
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(digest, token, response []byte, ttl time.Duration, _ int) (bool, error) {
	u := newUpdate(digest).isOwn(token, s.now()).expiry(s.after(ttl)).remove(leaseName).removeSteps()
	if err := s.setAnswer(u, sql.Null[[]byte]{V: response, Valid: true}); err != nil {
		return false, err
	}
	return s.change(u)
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(digest, token []byte, ttl time.Duration) (bool, error) {
	return s.change(newUpdate(digest).isOwn(token, s.now()).expiry(s.after(ttl)).remove(leaseName))
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(digest, token []byte, ttl time.Duration) (bool, error) {
	u := newUpdate(digest).isOwn(token, s.now()).expiry(s.after(ttl)).remove(leaseName).removeSteps()
	return s.change(u.set(attemptName, number(0)))
}

// Checkpoint implements [sqlstore.Steps].
func (s *steps) Checkpoint(digest, token, entries []byte, before int) (bool, error) {
	if len(entries) > s.largest {
		return false, idempotency.ErrStoreFull
	}
	return s.change(newUpdate(digest).isOwn(token, s.now()).hasSteps(before).setSteps(entries))
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(digest, token []byte) (entries []byte, held bool, err error) {
	if err := s.look(digest); err != nil {
		return nil, false, err
	}
	if s.invalid != nil || !s.seen.IsHeldBy(token) {
		return nil, false, nil
	}
	return s.seen.Steps, true, nil
}

// IsFull implements [sqlstore.Steps]. A table has no limit.
func (s *steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps]. What fits after it was compressed is known when it is.
func (s *steps) HasRoom(n int) bool { return n <= mostWhole }

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.changed }

// Forget implements [sqlstore.Changes].
func (s *steps) Forget(digest []byte, seen *sqlstore.Seen) (bool, error) {
	u := newUpdate(digest).isStill(&seen.Row)
	s.seen, s.invalid = nil, nil
	_, err := s.client.DeleteItem(s.ctx, &dynamodb.DeleteItemInput{
		TableName: aws.String(s.opts.table()), Key: keyOf(digest),
		ConditionExpression: aws.String(u.condition()), ExpressionAttributeValues: u.values,
	}, s.calls)
	return s.outcome(err)
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(digest []byte, seen, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	if len(own.Steps) > s.largest {
		return false, idempotency.ErrStoreFull
	}
	u := newUpdate(digest).isStill(&seen.Row).hasSteps(len(seen.Steps))
	u.set(tokenName, binary(own.Token)).expiry(s.after(ttl)).remove(leaseName).setSteps(own.Steps)
	u.set(resolvedName, binary(own.Resolved)).set(resolvedSize, number(int64(len(own.Resolved))))
	if err := s.setAnswer(u, own.Response); err != nil {
		return false, err
	}
	if len(own.Steps) == 0 {
		u.removeSteps()
	}
	return s.change(u)
}
