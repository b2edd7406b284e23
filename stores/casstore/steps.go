package casstore

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// leases are what package sqlstore makes one claim by. They remember what the claim has written last, so that its next step
// need not read the value.
type leases struct {
	*Store
	last atomic.Pointer[stored] // nil: unknown
}

// stored is a record, and the version of its value. The version is empty if there is no value.
type stored struct {
	sqlstore.Seen
	version string
	invalid error // the value is no record
}

// isHeldBy reports whether the claim with that token holds the record.
func (r *stored) isHeldBy(token []byte) bool {
	return r.invalid == nil && r.Counts() && bytes.Equal(r.Token, token) && r.Lease.Valid && !r.Response.Valid
}

// Do implements [sqlstore.Leases].
func (l *leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (begun bool, err error) {
	s := &steps{leases: l, ctx: ctx}
	err = s.retry(func() error {
		s.isOpening = adds
		return run(s)
	})
	return err == nil || s.isInDoubt, err
}

// Change implements [sqlstore.Operated].
func (l *leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	s := &steps{leases: l, ctx: ctx}
	return s.retry(func() error { return run(s) })
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (*leases) Failure(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("casstore: %s: %w", step, err)
}

// steps are the calls of a step.
type steps struct {
	*leases
	ctx       context.Context
	isOpening bool    // the first read of a claim supposes that there is no value
	fresh     *stored // read since the last write, for the next read
	seen      *stored // what Read or See has returned
	isInDoubt bool    // a write may have had an effect, because its reply was lost
	conflicts int
}

// tries is how often a step is begun while calls of the table fail.
const tries = 4

// retry runs a step again after an error that may pass.
func (s *steps) retry(run func() error) error {
	for n := 1; ; n++ {
		s.fresh = nil
		err := run()
		isFinal := err == nil || errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrStoreFull) ||
			errors.Is(err, errors.ErrUnsupported)
		if isFinal || n == tries || !sqlstore.Pause(s.ctx, sqlstore.Growing(n, 5*time.Millisecond)) {
			return err
		}
	}
}

// call makes one call of the table.
func (s *steps) call(do func(ctx context.Context) error) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.callTimeout)
	defer cancel()
	return do(ctx)
}

// look returns the record of a digest, as it is since the last write of this step.
func (s *steps) look(digest []byte) (*stored, error) {
	if s.fresh != nil {
		return s.fresh, nil
	}
	var value Value
	err := s.call(func(ctx context.Context) (err error) {
		value, err = s.table.Get(ctx, keyOf(digest))
		return err
	})
	found := &stored{version: value.Version}
	switch {
	case errors.Is(err, ErrNotFound):
		found.version = ""
	case err != nil:
		return nil, err
	default:
		found.Seen, found.invalid = decode(value.Data)
	}
	found.Now = s.now().UnixMicro()
	s.fresh = found
	return found, nil
}

// write stores a record in the place of the version that was seen. It returns false if there is another one by now.
func (s *steps) write(digest []byte, version string, next *sqlstore.Seen) (bool, error) {
	key, data := keyOf(digest), encode(next)
	ttl := time.Duration(next.Expires-s.now().UnixMicro())*time.Microsecond + s.skew // no clock takes it for live any more
	var written string
	changed, err := s.change(func(ctx context.Context) (err error) {
		if version == "" {
			written, err = s.table.Create(ctx, key, data, ttl)
		} else {
			written, err = s.table.Replace(ctx, key, version, data, ttl)
		}
		return err
	})
	if changed && written != "" {
		s.last.Store(&stored{Seen: *next, version: written})
	}
	return changed, err
}

// change makes a call that changes the value, and reports whether it has.
func (s *steps) change(do func(ctx context.Context) error) (bool, error) {
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	s.fresh = nil
	s.last.Store(nil)
	switch err := s.call(do); {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrConflict):
		sqlstore.Pause(s.ctx, sqlstore.Growing(s.conflicts-1, time.Millisecond)) // none after the first
		s.conflicts++
		return false, nil
	default:
		s.isInDoubt = s.isInDoubt || !hasNoEffect(err)
		return false, err
	}
}

// hasNoEffect reports whether an error says that the call has changed nothing.
func hasNoEffect(err error) bool {
	return errors.Is(err, idempotency.ErrStoreFull) || errors.Is(err, idempotency.ErrStoreBusy) || errors.Is(err, errors.ErrUnsupported)
}

// update replaces the record that the claim holds by what set makes of it. It returns false if the claim does not hold the
// record, or set returns false. The first try relies on what the claim has written last.
func (s *steps) update(digest, token []byte, set func(own *sqlstore.Seen) bool) (bool, error) {
	if last := s.last.Load(); last != nil {
		own := *last
		own.Now = s.now().UnixMicro()
		if own.isHeldBy(token) && set(&own.Seen) {
			if changed, err := s.write(digest, own.version, &own.Seen); changed || err != nil {
				return changed, err
			}
		}
	}
	for {
		own, err := s.look(digest)
		if err != nil {
			return false, err
		}
		next := own.Seen // own stays what the next read returns
		if !own.isHeldBy(token) || !set(&next) {
			return false, nil
		}
		if changed, err := s.write(digest, own.version, &next); changed || err != nil {
			return changed, err
		}
	}
}

// Read implements [sqlstore.Steps].
func (s *steps) Read(digest []byte) (*sqlstore.Row, error) {
	if s.isOpening {
		s.isOpening = false
		s.seen = &stored{}
		s.seen.Now = s.now().UnixMicro()
		return &s.seen.Row, nil
	}
	seen, err := s.See(digest)
	if err != nil {
		return nil, err
	}
	return &seen.Row, nil
}

// See implements [sqlstore.Changes].
func (s *steps) See(digest []byte) (*sqlstore.Seen, error) {
	seen, err := s.look(digest)
	if err != nil {
		return nil, err
	}
	s.seen, s.fresh = seen, nil
	return &seen.Seen, seen.invalid
}

// Put implements [sqlstore.Steps].
func (s *steps) Put(digest []byte, _, own *sqlstore.Row, entries []byte, lease, ttl time.Duration) (bool, error) {
	began := s.now()
	next := sqlstore.Seen{Row: *own, Steps: entries}
	if s.seen.Counts() {
		next.Resolved = s.seen.Resolved
		if !own.Response.Valid {
			next.Steps = s.seen.Steps
		}
	}
	next.Found, next.Expires = true, s.after(ttl)
	if lease > 0 {
		next.Lease = sql.NullInt64{Int64: s.after(lease), Valid: true}
	}
	put, err := s.write(digest, s.seen.version, &next)
	if put && lease > 0 && s.now().Sub(began) > lease/10 { // the lease counts from before the call
		return s.Extend(digest, own.Token, lease)
	}
	return put, err
}

// Extend implements [sqlstore.Steps].
func (s *steps) Extend(digest, token []byte, lease time.Duration) (bool, error) {
	return s.update(digest, token, func(own *sqlstore.Seen) bool {
		own.Lease.Int64 = s.after(lease)
		own.Expires = max(own.Expires, own.Lease.Int64)
		return true
	})
}

// end ends the lease, and keeps the record for ttl from now.
func (s *steps) end(own *sqlstore.Seen, ttl time.Duration) bool {
	own.Lease, own.Expires = sql.NullInt64{}, s.after(ttl)
	return true
}

// Complete implements [sqlstore.Steps].
func (s *steps) Complete(digest, token, response []byte, ttl time.Duration, _ int) (bool, error) {
	return s.update(digest, token, func(own *sqlstore.Seen) bool {
		own.Response, own.Steps = sql.Null[[]byte]{V: response, Valid: true}, nil
		return s.end(own, ttl)
	})
}

// Release implements [sqlstore.Steps].
func (s *steps) Release(digest, token []byte, ttl time.Duration) (bool, error) {
	return s.update(digest, token, func(own *sqlstore.Seen) bool { return s.end(own, ttl) })
}

// Free implements [sqlstore.Steps].
func (s *steps) Free(digest, token []byte, ttl time.Duration) (bool, error) {
	return s.update(digest, token, func(own *sqlstore.Seen) bool {
		own.Attempt, own.Steps = 0, nil
		return s.end(own, ttl)
	})
}

// Checkpoint implements [sqlstore.Steps].
func (s *steps) Checkpoint(digest, token, entries []byte, before int) (bool, error) {
	return s.update(digest, token, func(own *sqlstore.Seen) bool {
		isLast := len(own.Steps) == before
		own.Steps = entries
		return isLast
	})
}

// Checkpoints implements [sqlstore.Steps].
func (s *steps) Checkpoints(digest, token []byte) (entries []byte, held bool, err error) {
	own, err := s.look(digest)
	if err != nil || !own.isHeldBy(token) {
		return nil, false, err
	}
	return own.Steps, true, nil
}

// IsFull implements [sqlstore.Steps]. The table tells when it has no room.
func (*steps) IsFull() bool { return false }

// HasRoom implements [sqlstore.Steps].
func (*steps) HasRoom(int) bool { return true }

// keyOf returns the key of the table for a digest.
func keyOf(digest []byte) string { return hex.EncodeToString(digest) }
