package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// KeepEffects commits the changes of the handler together with its answer, even if the status of the answer is 400 or
// more. Without it, such an answer is stored and the changes are rolled back.
//
// The handler calls it with its context, at any time before it returns. If the transaction cannot be committed, for
// instance after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false if no
// [TxStore] protects the call.
func KeepEffects(ctx context.Context) bool {
	tx, ok := ctx.Value(txKey{}).(*transaction)
	if ok {
		tx.kept.Store(true)
	}
	return ok
}

// refuses reports whether an answer says that the operation was refused, so that what the handler did must be undone.
func (c *txClaim) refuses(resp idempotency.Response) bool {
	return resp.Status >= http.StatusBadRequest && c.tx.used.Load() && !c.tx.kept.Load()
}

// startOver rolls back what the handler did, and claims the key again in a transaction for the record alone. The key is
// free for a moment in between. The level is read committed, so that the read sees what is older than the lock.
func (c *txClaim) startOver(ctx context.Context) error {
	v, conn := c.visit, c.visit.conn.Conn()
	if err := c.judgeEnd(conn); err != nil {
		return err
	}
	if conn.PgConn().TxStatus() == 'E' { // then nothing but a rollback can be prepared
		if err := rollback(ctx, conn); err != nil {
			return sqlstore.RolledBack(err)
		}
		if c.hasCommitted(ctx, conn) {
			return sqlstore.RolledBack(errEnded)
		}
	}
	seen, began, ended := v.row.token, v.began, v.began
	v.locked, v.found, v.claimable, v.expired = false, false, false, false
	var batch pgx.Batch
	if conn.PgConn().TxStatus() == 'T' {
		batch.Queue("select now()").QueryRow(func(r pgx.Row) error { return r.Scan(&ended) })
		batch.Queue("rollback")
	}
	c.store.queueLook(&batch, v, beginReadCommitted, c, c.reach)
	err := conn.SendBatch(ctx, &batch).Close()
	switch {
	case err != nil:
		return sqlstore.RolledBack(err)
	case !isSame(began, ended):
		return sqlstore.RolledBack(errEnded) // the handler has committed its transaction and begun another one
	case !v.free() || v.found && v.row.token != seen:
		return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, errOvertaken)
	}
	return nil
}

// errPassing says that the answer of the handler may be due to an error that does not come back.
var errPassing = errors.New("pgxstore: a statement of the handler has failed for a reason that may pass")

// judgeEnd returns an error if what the handler did cannot be undone, or if its answer is not to be kept.
func (c *txClaim) judgeEnd(conn *pgx.Conn) error {
	status := conn.PgConn().TxStatus()
	switch {
	case status == 'I' && !c.tx.undoneByHandler.Load():
		return sqlstore.RolledBack(errEnded) // it may have been committed
	case c.tx.passing.Load() && (status != 'T' || c.tx.undone.Load()):
		return sqlstore.RolledBack(errPassing)
	}
	return nil
}

func isSame(a, b pgtype.Timestamptz) bool { return a.Time.Equal(b.Time) }
