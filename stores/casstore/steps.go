package casstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases gives package sqlstore the steps of one claim. leases remembers the record that the claim has written last, so that the
// next step of the claim can replace the record without a read.
type leases struct {
	*Store
	lastWritten atomic.Pointer[stored] // nil: unknown
}

// stored is a record with the version of its value. The version is empty without a value.
type stored struct {
	sqlstore.Seen
	version string
	invalid error // why the value is no record
}

// isHeldBy reports whether the claim with that token holds the record.
func (r *stored) isHeldBy(token []byte) bool {
	return r.invalid == nil && r.IsHeldBy(token)
}

// Do implements [sqlstore.Leases].
func (l *leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	s := &steps{leases: l, ctx: ctx}
	err = s.retryStep(func() error {
		s.isOpening = adds
		return run(s)
	})
	return err == nil || s.mayHaveChanged, err
}

// Change implements [sqlstore.Operated].
func (l *leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	s := &steps{leases: l, ctx: ctx}
	return s.retryStep(func() error { return run(s) })
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (*leases) Failure(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("casstore: %s: %w", step, err)
}

// steps makes the calls of one step.
type steps struct {
	*leases
	ctx            context.Context
	isOpening      bool    // the first read of a claim assumes a free key, and saves a call
	unreadRecord   *stored // read since the last write, for the next read
	returnedRecord *stored // the last result of Read or See
	mayHaveChanged bool    // a call has changed the value, or its reply was lost
	conflictCount  int
}

// maxTries bounds how often a step is begun while calls of the table fail.
const maxTries = 4

// retryStep repeats a step after a temporary error.
func (s *steps) retryStep(run func() error) error {
	for n := 1; ; n++ {
		s.unreadRecord = nil
		err := run()
		isFinal := err == nil || errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrStoreFull) ||
			errors.Is(err, errors.ErrUnsupported)
		if isFinal || n == maxTries || !sqlstore.Pause(s.ctx, sqlstore.Growing(n, 5*time.Millisecond)) {
			return err
		}
	}
}

// callTable makes one call of the table, within callTimeout.
func (s *steps) callTable(do func(ctx context.Context) error) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.callTimeout)
	defer cancel()
	return do(ctx)
}

// readRecord returns the record of operation, as read since the last write of this step.
func (s *steps) readRecord(operation uuid.UUID) (*stored, error) {
	if s.unreadRecord != nil {
		return s.unreadRecord, nil
	}
	var value Value
	err := s.callTable(func(ctx context.Context) (err error) {
		value, err = s.table.Get(ctx, operation.String())
		return err
	})
	found := &stored{version: value.Version}
	switch {
	case errors.Is(err, ErrNotFound):
		found.version = ""
	case err != nil:
		return nil, err
	default:
		found.Seen, found.invalid = decodeRecord(value.Data)
	}
	found.Now = s.now().UnixMicro()
	s.unreadRecord = found
	return found, nil
}

// writeRecord replaces the value of that version by a record. An empty version means that there is no value. writeRecord returns
// false if another writer was faster.
func (s *steps) writeRecord(operation uuid.UUID, version string, next *sqlstore.Seen) (bool, error) {
	key, data := operation.String(), encodeRecord(next)
	ttl := time.Duration(next.Expires-s.now().UnixMicro())*time.Microsecond + s.skew // then the record has expired by every clock
	var written string
	changed, err := s.callWrite(func(ctx context.Context) (err error) {
		if version == "" {
			written, err = s.table.Create(ctx, key, data, ttl)
		} else {
			written, err = s.table.Replace(ctx, key, version, data, ttl)
		}
		return err
	})
	if changed && written != "" {
		s.lastWritten.Store(&stored{Seen: *next, version: written})
	}
	return changed, err
}

// callWrite makes a call that changes the value, and reports whether the call has changed the value.
func (s *steps) callWrite(do func(ctx context.Context) error) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	s.unreadRecord = nil
	s.lastWritten.Store(nil)
	switch err := s.callTable(do); {
	case err == nil:
		s.mayHaveChanged = true
		return true, nil
	case errors.Is(err, ErrConflict):
		sqlstore.Pause(s.ctx, sqlstore.Growing(s.conflictCount-1, time.Millisecond)) // no pause after the first conflict
		s.conflictCount++
		return false, nil
	default:
		s.mayHaveChanged = s.mayHaveChanged || !hasNoEffect(err)
		return false, err
	}
}

// hasNoEffect reports whether err means that the call has left the value unchanged.
func hasNoEffect(err error) bool {
	return errors.Is(err, idempotency.ErrStoreFull) || errors.Is(err, idempotency.ErrStoreBusy) || errors.Is(err, errors.ErrUnsupported)
}

// updateOwnRecord changes the record of the claim by set, and writes the record. updateOwnRecord returns false if the claim does not
// hold the record, or if set returns false. The first try starts from the record that the claim has written last.
func (s *steps) updateOwnRecord(operation uuid.UUID, token []byte, set func(own *sqlstore.Seen) bool) (bool, error) {
	if last := s.lastWritten.Load(); last != nil {
		own := *last
		own.Now = s.now().UnixMicro()
		if own.isHeldBy(token) && set(&own.Seen) {
			if changed, err := s.writeRecord(operation, own.version, &own.Seen); changed || err != nil {
				return changed, err
			}
		}
	}
	for {
		own, err := s.readRecord(operation)
		if err != nil {
			return false, err
		}
		next := own.Seen // a copy, because the next read returns own
		if !own.isHeldBy(token) || !set(&next) {
			return false, nil
		}
		if changed, err := s.writeRecord(operation, own.version, &next); changed || err != nil {
			return changed, err
		}
	}
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(operation uuid.UUID) (*sqlstore.Row, error) {
	if s.isOpening {
		s.isOpening = false
		s.returnedRecord = &stored{}
		s.returnedRecord.Now = s.now().UnixMicro()
		return &s.returnedRecord.Row, nil
	}
	seen, err := s.See(operation)
	if err != nil {
		return nil, err
	}
	return &seen.Row, nil
}

// See implements [sqlstore.Changes].
func (s *steps) See(operation uuid.UUID) (*sqlstore.Seen, error) {
	seen, err := s.readRecord(operation)
	if err != nil {
		return nil, err
	}
	s.returnedRecord, s.unreadRecord = seen, nil
	return &seen.Seen, seen.invalid
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(operation uuid.UUID, _, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	began := s.now()
	next := sqlstore.Seen{Row: *own, Steps: entries}
	if s.returnedRecord.Counts() {
		next.Resolved = s.returnedRecord.Resolved
		if !own.Response.Valid {
			next.Steps = s.returnedRecord.Steps
		}
	}
	next.Found, next.Expires = true, s.endOf(ttl)
	if lease > 0 {
		next.Lease = sql.NullInt64{Int64: s.endOf(lease), Valid: true}
	}
	put, err := s.writeRecord(operation, s.returnedRecord.version, &next)
	if put && lease > 0 && s.now().Sub(began) > lease/10 { // the call was slow, and the lease has begun before the call
		return s.Extend(operation, own.Token, lease)
	}
	return put, err
}

// Extend implements [sqlstore.Steps].
func (s *steps) Extend(operation uuid.UUID, token []byte, lease time.Duration) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		own.Lease.Int64 = s.endOf(lease)
		own.Expires = max(own.Expires, own.Lease.Int64)
		return true
	})
}

// endLease ends the lease, and keeps the record for ttl from now.
func (s *steps) endLease(own *sqlstore.Seen, ttl time.Duration) bool {
	own.Lease, own.Expires = sql.NullInt64{}, s.endOf(ttl)
	return true
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(operation uuid.UUID, token, response []byte, ttl time.Duration, _ int) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		own.Response, own.Steps = sql.Null[[]byte]{V: response, Valid: true}, nil
		return s.endLease(own, ttl)
	})
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(operation uuid.UUID, token []byte, reason idempotency.EndReason, ttl time.Duration) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		own.Ended = []byte(reason)
		return s.endLease(own, ttl)
	})
}

// Abandon implements [sqlstore.Steps].
func (s *steps) Abandon(operation uuid.UUID, token []byte, reason idempotency.EndReason) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		own.Lease.Int64, own.Ended = min(own.Lease.Int64, s.now().UnixMicro()), []byte(reason)
		return true
	})
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(operation uuid.UUID, token []byte, ttl time.Duration) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		own.Attempt, own.Steps = 0, nil
		return s.endLease(own, ttl)
	})
}

// Checkpoint implements [sqlstore.Steps].
func (s *steps) Checkpoint(operation uuid.UUID, token, entries []byte, before int) (bool, error) {
	return s.updateOwnRecord(operation, token, func(own *sqlstore.Seen) bool {
		isLast := len(own.Steps) == before
		own.Steps = entries
		return isLast
	})
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(operation uuid.UUID, token []byte) (entries []byte, held bool, err error) {
	own, err := s.readRecord(operation)
	if err != nil || !own.isHeldBy(token) {
		return nil, false, err
	}
	return own.Steps, true, nil
}

// IsFull implements [sqlstore.Steps]. The table refuses writes without room.
func (*steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps].
func (*steps) HasRoom(int) bool { return true }
