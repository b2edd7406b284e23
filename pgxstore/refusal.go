package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// KeepEffects commits the changes of the handler together with its answer, even if the status of the answer is 400 or
// more. Without it, such an answer is stored and the changes are rolled back. An answer that is not stored, such as a 503,
// always rolls them back.
//
// The handler calls it with its context, at any time before it returns. If the transaction cannot be committed, for
// instance after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false if no
// [TxStore] protects the call.
func KeepEffects(ctx context.Context) bool {
	tx, ok := ctx.Value(txKey{}).(*transaction)
	if ok {
		tx.Keep()
	}
	return ok
}

// startOver rolls back what the handler did, and claims the key again in a transaction for the record alone. The key is
// free for a moment in between. The level is read committed, so that the read sees what is older than the lock.
func (a *attempt) startOver(ctx context.Context) error {
	v := a.visit
	if a.status() == 'I' && !a.undone {
		return sqlstore.RolledBack(errEnded) // it may have been committed
	}
	if a.status() == 'E' { // then nothing but a rollback can be prepared
		if err := rollback(ctx, a.conn); err != nil {
			return sqlstore.RolledBack(err)
		}
		if committed, _ := a.hasCommitted(ctx, a.conn); committed {
			return sqlstore.RolledBack(errEnded)
		}
	}
	seen, began, ended := v.row.token, v.began, v.began
	v.locked, v.found, v.claimable, v.expired = false, false, false, false
	var batch pgx.Batch
	if a.status() == 'T' {
		batch.Queue("select now()").QueryRow(func(r pgx.Row) error { return r.Scan(&ended) })
		batch.Queue("rollback")
	}
	a.store.queueLook(&batch, v, beginReadCommitted, a)
	err := a.conn.SendBatch(ctx, &batch).Close()
	switch {
	case err != nil:
		return sqlstore.RolledBack(err)
	case !began.Time.Equal(ended.Time):
		return sqlstore.RolledBack(errEnded) // the handler has committed its transaction and begun another one
	case !v.free() || v.found && v.row.token != seen:
		return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, errOvertaken)
	}
	return nil
}
