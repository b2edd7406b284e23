package dynamodbstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases gives package sqlstore the steps of claims, and the changes of operators.
type leases struct{ *Store }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	s := &steps{Store: l.Store, ctx: ctx}
	err = retryStep(ctx, func() error {
		s.unreadRecord, s.invalidReason, s.isOpening = nil, nil, adds
		if adds {
			if err := l.compareClocks(ctx); errors.Is(err, ErrClock) {
				return fmt.Errorf("%w (%w)", err, errors.ErrUnsupported) // keeps FailOpen from running the handler
			} else if err != nil {
				return err
			}
		}
		return run(s)
	})
	return err == nil || s.mayHaveChanged, err
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	s := &steps{Store: l.Store, ctx: ctx}
	return retryStep(ctx, func() error {
		s.unreadRecord, s.invalidReason = nil, nil
		if err := l.compareClocks(ctx); err != nil {
			return err
		}
		return run(s)
	})
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return wrapError(step, err) }

// steps makes the requests of one step. A write whose condition fails returns the record, which saves the next read a
// request.
type steps struct {
	*Store
	ctx            context.Context
	isOpening      bool           // the first read of a claim assumes a free key, and saves a request
	unreadRecord   *sqlstore.Seen // known since the last write, for the next read; nil: unknown
	invalidReason  error          // why unreadRecord is no record
	mayHaveChanged bool           // a write has changed the record, or its effect is unknown
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(operation uuid.UUID) (*sqlstore.Row, error) {
	if s.isOpening {
		return &sqlstore.Row{Now: s.nowMicros()}, nil
	}
	seen, err := s.See(operation)
	if err != nil {
		return nil, err
	}
	return &seen.Row, nil
}

// See implements [sqlstore.Changes].
func (s *steps) See(operation uuid.UUID) (*sqlstore.Seen, error) {
	if err := s.ensureRead(operation); err != nil {
		return nil, err
	}
	seen, err := s.unreadRecord, s.invalidReason
	s.unreadRecord, s.invalidReason = nil, nil
	return seen, err
}

// ensureRead reads the record unless unreadRecord is set.
func (s *steps) ensureRead(operation uuid.UUID) error {
	if s.unreadRecord != nil {
		return nil
	}
	item, err := s.readItem(s.ctx, operation)
	if err == nil {
		s.noteItem(item)
	}
	return err
}

// noteItem stores the record of an item in unreadRecord. A nil item means that the record does not exist.
func (s *steps) noteItem(item map[string]value) {
	s.unreadRecord, s.invalidReason = &sqlstore.Seen{Row: sqlstore.Row{Now: s.nowMicros()}}, nil
	if item != nil {
		s.unreadRecord, s.invalidReason = decodeRecord(item, s.nowMicros())
	}
}

// sendUpdate sends an update, and reports whether the condition held.
func (s *steps) sendUpdate(u *update) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	s.unreadRecord, s.invalidReason = nil, nil
	_, err := s.client.UpdateItem(s.ctx, u.buildInput(s.opts.tableName()), s.callOptions)
	return s.noteOutcome(err)
}

// noteOutcome reports whether a write with the error err has changed the record.
func (s *steps) noteOutcome(err error) (bool, error) {
	if item, ok := asFailedCondition(err); ok {
		if len(item) > 0 { // otherwise the record does not exist, or the service does not return items
			s.noteItem(item)
		}
		return false, nil
	}
	s.mayHaveChanged = s.mayHaveChanged || !hasNoEffect(err)
	return err == nil, err
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(operation uuid.UUID, seen, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	u := newUpdate(operation)
	s.requireReplaceable(u, seen, own)
	began := time.Now()
	u.setText(attrUser, own.Names[0]).setText(attrEndpoint, own.Names[1]).setText(attrKey, own.Names[2])
	u.set(attrAttempt, numberValue(own.Attempt)).set(attrFingerprint, binaryValue(own.Fingerprint))
	u.set(attrToken, binaryValue(own.Token)).set(attrCreated, numberValue(own.Created)).setExpiry(s.endOf(ttl))
	if lease > 0 {
		u.set(attrLease, numberValue(s.endOf(lease)))
	} else {
		u.remove(attrLease)
	}
	if err := s.setResponse(u, own.Response); err != nil {
		return false, err
	}
	switch keeps := seen.Counts() && !own.Response.Valid; {
	case keeps:
	case len(entries) > 0:
		u.setSteps(entries)
	default:
		u.removeSteps()
	}
	u.remove(attrEnded)
	if !seen.Counts() {
		u.remove(attrResolved, attrResolvedSize)
	}
	put, err := s.sendUpdate(u)
	if put && lease > 0 && time.Since(began) > lease/10 {
		// The request was slow, and the lease has begun before the request. Extend returns false if another attempt has
		// claimed the key meanwhile.
		return s.Extend(operation, own.Token, lease)
	}
	return put, err
}

// requireReplaceable requires that the stored record is still the record that Read has returned. The first write of a claim, for
// which Read has assumed a free key, also replaces an expired record.
func (s *steps) requireReplaceable(u *update, seen, own *sqlstore.Row) {
	switch {
	case s.isOpening:
		u.values[":now"] = numberValue(own.Created)
		u.require("(attribute_not_exists(" + attrOperation + ") OR " + attrExpires + " <= :now)")
	case seen.Found:
		u.requireUnchanged(seen)
	default:
		u.requireMissing(attrOperation)
	}
	s.isOpening = false
}

// setResponse stores a response, or removes the stored response if response is null. setResponse returns
// idempotency.ErrStoreFull if the item lacks room.
func (s *steps) setResponse(u *update, response sql.Null[[]byte]) error {
	if !response.Valid {
		u.remove(attrAnswer, attrAnswerSize, attrAnswerStatus, attrAnswerNote)
		return nil
	}
	stored := compressResponse(response.V)
	if len(stored) > s.maxContentSize {
		return idempotency.ErrStoreFull
	}
	line, _ := recordline.ParseResponse(response.V)
	u.set(attrAnswer, binaryValue(stored)).set(attrAnswerSize, numberValue(int64(len(response.V))))
	u.set(attrAnswerStatus, numberValue(line.Status)).setText(attrAnswerNote, line.Note)
	return nil
}

// Extend implements [sqlstore.Steps]. Extend never shortens a lease, so an older request that arrives late changes nothing.
// If the record would expire before the lease, a second request extends both.
func (s *steps) Extend(operation uuid.UUID, token []byte, lease time.Duration) (bool, error) {
	end := s.endOf(lease)
	own := func() *update {
		return newUpdate(operation).requireOwner(token, s.nowMicros()).set(attrLease, numberValue(end))
	}
	u := own().require(attrLease + " <= :" + attrLease).require(attrExpires + " >= :" + attrLease)
	if extended, err := s.sendUpdate(u); extended || err != nil {
		return extended, err
	}
	if err := s.ensureRead(operation); err != nil {
		return false, err
	}
	seen := s.unreadRecord
	if s.invalidReason != nil || !seen.IsHeldBy(token) {
		return false, nil
	}
	if seen.Lease.Int64 >= end {
		return true, nil
	}
	return s.sendUpdate(own().requireUnchanged(&seen.Row).setExpiry(end))
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(operation uuid.UUID, token, response []byte, ttl time.Duration, _ int) (bool, error) {
	u := newUpdate(operation).requireOwner(token, s.nowMicros()).setExpiry(s.endOf(ttl)).remove(attrLease).removeSteps()
	if err := s.setResponse(u, sql.Null[[]byte]{V: response, Valid: true}); err != nil {
		return false, err
	}
	return s.sendUpdate(u)
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(operation uuid.UUID, token []byte, reason idempotency.EndReason, ttl time.Duration) (bool, error) {
	u := newUpdate(operation).requireOwner(token, s.nowMicros()).setExpiry(s.endOf(ttl)).remove(attrLease)
	return s.sendUpdate(u.setText(attrEnded, string(reason)))
}

// Abandon implements [sqlstore.Steps].
func (s *steps) Abandon(operation uuid.UUID, token []byte, reason idempotency.EndReason) (bool, error) {
	now := s.nowMicros()
	u := newUpdate(operation).requireOwner(token, now).require(attrLease+" > :"+attrLease).set(attrLease, numberValue(now))
	return s.sendUpdate(u.setText(attrEnded, string(reason)))
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(operation uuid.UUID, token []byte, ttl time.Duration) (bool, error) {
	u := newUpdate(operation).requireOwner(token, s.nowMicros()).setExpiry(s.endOf(ttl)).remove(attrLease).removeSteps()
	return s.sendUpdate(u.set(attrAttempt, numberValue(0)))
}

// Checkpoint implements [sqlstore.Steps].
func (s *steps) Checkpoint(operation uuid.UUID, token, entries []byte, before int) (bool, error) {
	if len(entries) > s.maxContentSize {
		return false, idempotency.ErrStoreFull
	}
	return s.sendUpdate(newUpdate(operation).requireOwner(token, s.nowMicros()).requireStepsSize(before).setSteps(entries))
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(operation uuid.UUID, token []byte) (entries []byte, held bool, err error) {
	if err := s.ensureRead(operation); err != nil {
		return nil, false, err
	}
	if s.invalidReason != nil || !s.unreadRecord.IsHeldBy(token) {
		return nil, false, nil
	}
	return s.unreadRecord.Steps, true, nil
}

// IsFull implements [sqlstore.Steps]. A table has no size limit.
func (s *steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps]. Whether n bytes fit into the item is known only after compression, in setResponse.
func (s *steps) HasRoom(n int) bool { return n <= maxUncompressed }

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.mayHaveChanged }

// Forget implements [sqlstore.Changes].
func (s *steps) Forget(operation uuid.UUID, seen *sqlstore.Seen) (bool, error) {
	u := newUpdate(operation).requireUnchanged(&seen.Row)
	s.unreadRecord, s.invalidReason = nil, nil
	_, err := s.client.DeleteItem(s.ctx, &dynamodb.DeleteItemInput{
		TableName: aws.String(s.opts.tableName()), Key: itemKey(operation),
		ConditionExpression: aws.String(u.joinConditions()), ExpressionAttributeValues: u.values,
	}, s.callOptions)
	return s.noteOutcome(err)
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(operation uuid.UUID, seen, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	if len(own.Steps) > s.maxContentSize {
		return false, idempotency.ErrStoreFull
	}
	u := newUpdate(operation).requireUnchanged(&seen.Row).requireStepsSize(len(seen.Steps))
	u.set(attrToken, binaryValue(own.Token)).setExpiry(s.endOf(ttl)).remove(attrLease, attrEnded).setSteps(own.Steps)
	u.set(attrResolved, binaryValue(own.Resolved)).set(attrResolvedSize, numberValue(int64(len(own.Resolved))))
	if err := s.setResponse(u, own.Response); err != nil {
		return false, err
	}
	if len(own.Steps) == 0 {
		u.removeSteps()
	}
	return s.sendUpdate(u)
}
