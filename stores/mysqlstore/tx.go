package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// stepTx implements [sqlstore.StepTx].
type stepTx struct {
	stepStatements
	*sqlstore.StepConn
	conn      *sql.Conn
	isSpoiled bool // the step has ended the transaction by itself, so the state of the session is unknown
}

// Leave implements [sqlstore.StepStatements].
func (t *stepTx) Leave(ctx context.Context, cause error) error {
	err := t.stepStatements.Leave(ctx, cause)
	t.isSpoiled = err != nil
	return err
}

// beginStep takes half of the time at most, so that a server that falls silent leaves time for another connection.
func (l leases) beginStep(ctx context.Context, enter func(ctx context.Context, tx sqlstore.StepTx) error) (*stepTx, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	below, err := sqlstore.NewStepConn(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithTimeout(ctx, sqlstore.TimeLeft(ctx)/2)
	defer cancel()
	tx := &stepTx{stepStatements: stepStatements{l.Table, below.Send, below.ReadBytes}, StepConn: below, conn: conn}
	begin := values{"{idle}", integer(l.opts.idleSeconds())}.in(l.opts.statement("step_begin"))
	if _, err = tx.Send(ctx, begin); err == nil {
		err = enter(ctx, tx)
	}
	if err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// Commit implements [sqlstore.StepTx].
func (t *stepTx) Commit(ctx context.Context) (isRefused bool, err error) {
	_, err = t.Send(ctx, t.table.opts.statement("step_commit"))
	switch {
	case err == nil:
		return false, t.conn.Close()
	case isAnswer(err):
		return true, err
	}
	t.drop()
	return false, err
}

// Rollback implements [sqlstore.StepTx].
func (t *stepTx) Rollback(ctx context.Context) {
	if t.IsStuck() || t.isSpoiled { // a LOCK TABLES of the step, for example, would outlast a rollback
		t.drop()
		return
	}
	_, err := t.Send(ctx, "ROLLBACK AND NO CHAIN NO RELEASE")
	if err == nil {
		_, err = t.Send(ctx, t.table.opts.statement("step_commit")) // there is nothing to commit
	}
	if err != nil {
		t.drop()
		return
	}
	_ = t.conn.Close()
}

// drop closes the connection. The server rolls back.
func (t *stepTx) drop() {
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = t.conn.Close()
}
