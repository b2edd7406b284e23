package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Store keeps records in a file, for handlers whose effects are elsewhere. A claim is a lease: exactly once holds as
// long as its owner lives. It is safe for concurrent use, also by several processes of one machine.
type Store struct {
	path             string
	opts             Options
	writing, reading *sql.DB
	writer           *writer
	readers          *readers

	closing sync.Once
	closed  chan struct{}
	failed  error // of Close
}

var _ idempotency.Store = (*Store)(nil)

// Close waits for the steps that run, and closes the file. Steps that come later return [ErrClosed].
func (s *Store) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		<-s.writer.ended
		s.failed = s.disconnect()
	})
	return s.failed
}

// Begin implements [idempotency.Store]. A record that holds its key is read without a wait for those who write.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	digest, asked := key.Digest(), namesOf(key)
	found, err := s.readers.read(ctx, digest[:])
	if err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	now := s.writer.micros()
	if isHeld, record, err := held(found, asked, &request, now); isHeld {
		return record, nil, failure("claim", err)
	}
	c := &claim{store: s, digest: digest[:], names: asked, token: make([]byte, 16)}
	rand.Read(c.token) // never fails
	return c.take(ctx, &request)
}

// held reports whether a record holds its key against a request, and how others see it then. The error wraps
// idempotency.ErrRecordInvalid.
func held(found *row, asked names, request *idempotency.ClaimRequest, now int64) (bool, idempotency.Record, error) {
	if found == nil || found.expired(now) {
		return false, idempotency.Record{}, nil
	}
	if err := found.check(asked, request.Fingerprint, now); err != nil {
		return true, idempotency.Record{}, err
	}
	if found.claimable(request, now) {
		return false, idempotency.Record{}, nil
	}
	record, err := found.record(now)
	return true, record, err
}

// granted is what comes of the step that claims.
type granted struct {
	record  idempotency.Record
	claimed bool
	err     error
}

// take claims the key, unless another attempt has it by now. Its claim comes with an error if the step may have taken
// effect.
func (c *claim) take(
	ctx context.Context, request *idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	var g granted
	begun, err := c.store.writer.do(ctx, true, func(tx *transaction) (err error) {
		g, err = c.claimIn(tx, request)
		return err
	})
	switch {
	case err != nil && begun:
		return idempotency.Record{}, c, failure("claim", err)
	case err != nil:
		return idempotency.Record{}, nil, failure("claim", err)
	case !g.claimed:
		return g.record, nil, failure("claim", g.err)
	}
	c.record = g.record
	return g.record, c, nil
}

// claimIn claims the key in a transaction.
func (c *claim) claimIn(tx *transaction, request *idempotency.ClaimRequest) (granted, error) {
	found, err := tx.read(c.digest)
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		return granted{err: err}, nil
	}
	if err != nil {
		return granted{}, err
	}
	now := tx.micros()
	if isHeld, record, err := held(found, c.names, request, now); isHeld {
		return granted{record: record, err: err}, nil
	}
	record := idempotency.Record{Operation: uuid.New(), Attempt: 1, Created: time.UnixMicro(now)}
	switch {
	case found != nil && !found.expired(now):
		record = found.attempted()
		record.Attempt++
		record.Remaining = until(found.expires, now)
	case tx.isFull():
		return granted{err: idempotency.ErrStoreFull}, nil
	}
	record.Fingerprint, record.LeaseLeft = request.Fingerprint, request.Lease
	own := c.row(record)
	own.lease = sql.NullInt64{Int64: after(now, request.Lease), Valid: true}
	own.expires = after(now, max(request.TTL, request.Lease))
	return granted{record: record, claimed: true}, tx.put(c.digest, own)
}
