package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// attempt implements [sqlstore.SQLAttempt]. It begins nothing in the database before the first statement of the handler.
type attempt struct {
	store   *TxStore
	digest  []byte
	names   sqlstore.Names
	token   []byte
	request *idempotency.ClaimRequest
	seen    *sqlstore.Row      // when the key was claimed
	record  idempotency.Record // as it was granted

	mu    sync.Mutex // held while the transaction begins or ends
	loan  *loan      // nil: there is no transaction
	ended bool       // and none is to begin
}

var _ sqlstore.SQLAttempt = (*attempt)(nil)

func newAttempt(store *TxStore, key idempotency.Key, request idempotency.ClaimRequest) *attempt {
	digest := key.Digest()
	return &attempt{store: store, digest: digest[:], names: sqlstore.NamesOf(key), request: &request}
}

// look reports whether there is a record that holds the key.
func (a *attempt) look(ctx context.Context) (isHeld bool, record idempotency.Record, err error) {
	if a.seen, err = a.store.file.look(ctx, a.digest); err != nil {
		return false, idempotency.Record{}, err
	}
	return a.seen.Held(a.names, a.request)
}

// seekRoom returns an error if there is no room for a new operation, also when records that have expired are deleted.
func (a *attempt) seekRoom(ctx context.Context) error {
	if a.seen.Counts() {
		return nil
	}
	isFull, err := a.store.isFull(ctx)
	if err != nil || !isFull {
		return err
	}
	_, err = a.store.writer.do(ctx, true, func(tx *transaction) error {
		isFull = tx.IsFull()
		return nil
	})
	if err == nil && isFull {
		err = idempotency.ErrStoreFull
	}
	return err
}

// own makes the attempt the one that has the key.
func (a *attempt) own() {
	a.record = a.seen.Next(a.request)
	a.record.NoLease = true
	a.token = sqlstore.NewToken()
}

// Conn implements [sqlstore.SQLAttempt].
func (a *attempt) Conn(ctx context.Context) (*sql.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, errEnded
	}
	if a.loan == nil {
		if err := a.begin(ctx); err != nil {
			return nil, err
		}
	}
	return a.store.writer.conn.Conn, nil
}

// begin waits for the turn of the transaction, and looks whether the key is still free then.
func (a *attempt) begin(ctx context.Context) error {
	writer := a.store.writer
	loan, err := writer.borrow(ctx)
	if err != nil {
		return failure("begin", err)
	}
	if err := writer.start(ctx, a.confirm); err != nil {
		loan.end(nil)
		return failure("begin", err)
	}
	a.loan = loan
	return nil
}

// confirm returns an error if the key is not the attempt's any more: another process, or a lease, has had it since.
func (a *attempt) confirm(tx *transaction) error {
	now, err := tx.Read(a.digest)
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		return idempotency.ErrClaimLost
	}
	if err != nil {
		return err
	}
	if a.isLost(now) {
		return idempotency.ErrClaimLost
	}
	return nil
}

// isLost reports whether somebody else has, or has had, the key by that record since it was claimed.
func (a *attempt) isLost(now *sqlstore.Row) bool {
	isHeld, _, _ := now.Held(a.names, a.request)
	isNew := now.Counts() && string(now.Token) != string(a.seen.Token)
	return isHeld || isNew
}

// Undo implements [sqlstore.Attempt]. The connection is free for others again.
func (a *attempt) Undo(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveBack()
	return nil
}

// Rollback implements [sqlstore.Attempt].
func (a *attempt) Rollback(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.leave()
	a.giveBack()
	return nil
}

// HangUp implements [sqlstore.Attempt].
func (a *attempt) HangUp() {
	a.mu.Lock() // Conn may run, until it notices that its context has ended
	defer a.mu.Unlock()
	defer a.leave()
	if a.loan != nil {
		a.store.writer.sever()
		a.loan.end(nil)
		a.loan = nil
	}
}

// giveBack undoes the transaction, if there is one.
func (a *attempt) giveBack() {
	if a.loan != nil {
		a.store.writer.settle(false)
		a.loan.end(nil)
		a.loan = nil
	}
}

// leave lets others have the key.
func (a *attempt) leave() {
	a.ended = true
	a.store.running.leave(a.digest)
}

// Alive implements [sqlstore.Attempt]. The key stays claimed even if SQLite has rolled back: an answer of 400 or more can
// be stored then. As long as no transaction has begun, another process may have had the key.
func (a *attempt) Alive(ctx context.Context) bool {
	if !a.mu.TryLock() {
		return true // it begins, and looks by itself
	}
	defer a.mu.Unlock()
	if a.loan != nil || a.ended {
		return true
	}
	now, err := a.store.file.look(ctx, a.digest)
	return err != nil || !a.isLost(now)
}

// Commit implements [sqlstore.Attempt]. The record of a handler that has no transaction waits for the disk together
// with other steps. If ctx ends while a transaction is committed, the key stays claimed until it is known what has come
// of that.
func (a *attempt) Commit(ctx context.Context, resp idempotency.Response, ttl time.Duration, undo bool) error {
	record, err := a.recordOf(resp, ttl)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		defer a.leave()
		a.giveBack()
		return sqlstore.RolledBack(failure("complete", err))
	}
	if undo {
		a.giveBack()
	}
	if a.loan == nil {
		defer a.leave()
		return settled(a.keep(ctx, record))
	}
	a.ended = true
	outcome := make(chan error, 1)
	a.loan.end(func() {
		err := a.store.writer.conclude(record)
		a.store.running.leave(a.digest)
		outcome <- err
	})
	a.loan = nil
	select {
	case err := <-outcome:
		return settled(err)
	case <-ctx.Done():
	}
	select {
	case err := <-outcome: // both at once
		return settled(err)
	default:
		return settled(ctx.Err())
	}
}

// recording stores a record with an answer, or with Omitted set.
type recording func(tx *transaction, omitted bool) error

// recordOf returns what stores the record. It is stored with Omitted set where there is no room for the answer.
func (a *attempt) recordOf(resp idempotency.Response, ttl time.Duration) (recording, error) {
	whole, tombstone, err := sqlstore.Stored(resp)
	if err != nil {
		return nil, err
	}
	return func(tx *transaction, omitted bool) error {
		own := sqlstore.NewRow(a.names, a.token, a.record)
		own.Response = sql.Null[[]byte]{V: whole, Valid: true}
		if omitted || !tx.HasRoom(len(whole)) {
			own.Response.V = tombstone
		}
		_, err := tx.Put(a.digest, a.seen, own, nil, 0, ttl)
		return err
	}, nil
}

// keep stores the record of an attempt without a transaction.
func (a *attempt) keep(ctx context.Context, record recording) error {
	err := a.tryKeep(ctx, record, false)
	if isFull(err) {
		err = a.tryKeep(ctx, record, true)
	}
	return err
}

func (a *attempt) tryKeep(ctx context.Context, record recording, omitted bool) error {
	lost := false
	_, err := a.store.writer.do(ctx, true, func(tx *transaction) error {
		err := a.confirm(tx)
		if lost = errors.Is(err, idempotency.ErrClaimLost); lost {
			return nil
		}
		if err != nil {
			return err
		}
		return record(tx, omitted)
	})
	if err == nil && lost {
		return idempotency.ErrClaimLost
	}
	return err
}

// settled returns the error of Complete for what has come of a commit.
func settled(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, idempotency.ErrClaimLost):
		return failure("complete", err)
	case violatesForeignKey(err):
		return sqlstore.Rejected(failure("complete", err))
	default:
		return sqlstore.RolledBack(failure("complete", err))
	}
}
