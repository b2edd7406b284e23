package sqlitestore

import (
	"context"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// TxStore keeps records in a file, for handlers whose effects are in the same file. A handler makes its effects in the
// transaction that [Tx] returns. The commit makes effects and record permanent together, so each operation takes effect
// exactly once, whatever breaks. The handler cannot commit by itself: SQLite asks the store about each statement. An
// answer of 400 or more is kept without the effects (see [KeepEffects]). It is safe for concurrent use.
//
// A claim has no lease. It ends with the process.
//
// What the handler does in other systems is no part of the transaction. After a rollback or a commit that has failed, the
// next attempt has the same [idempotency.Operation.DownstreamKey]. So a system that compares these keys acts once.
//
// Attempt of [idempotency.Operation] counts the claims that are in the record. A rollback leaves none. So Attempt is 1,
// unless a [Store] has released the key before, or has let its lease lapse.
type TxStore struct{ *file }

var _ idempotency.Store = (*TxStore)(nil)

// OpenTx opens the store in the file at path. This is the file of the service, whose tables the handlers change. In all
// else OpenTx is like [Open].
func OpenTx(ctx context.Context, path string, opts Options) (*TxStore, error) {
	f, err := openFile(ctx, path, opts, true)
	if err != nil {
		return nil, err
	}
	return &TxStore{f}, nil
}

// Transactional tells idempotency.New that no handler may run without its transaction.
func (s *TxStore) Transactional() bool { return true }

// Begin implements [idempotency.Store]. It begins no transaction. Of another running attempt of this store, it knows
// only that it runs. An attempt of another process shows when it is committed.
func (s *TxStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	a := newAttempt(s, key, request)
	// Before it enters, or replays at the same time would take each other for attempts that run.
	if isHeld, record, err := a.look(ctx); isHeld || err != nil {
		return record, nil, failure("claim", err)
	}
	if !s.running.enter(a.digest) {
		return idempotency.Record{NoLease: true}, nil, nil
	}
	// And again, as another attempt may have ended in between.
	isHeld, record, err := a.look(ctx)
	if err == nil && !isHeld {
		err = a.seekRoom(ctx)
	}
	if isHeld || err != nil {
		s.running.leave(a.digest)
		return record, nil, failure("claim", err)
	}
	a.own()
	return a.record, sqlstore.NewTxClaim(dialect, a), nil
}
