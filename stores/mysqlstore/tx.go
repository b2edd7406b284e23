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
	conn            *sql.Conn
	hasUnknownState bool // the step has ended the transaction itself, so the state of the session is unknown
}

// Leave implements [sqlstore.StepStatements].
func (t *stepTx) Leave(ctx context.Context, cause error) error {
	err := t.stepStatements.Leave(ctx, cause)
	t.hasUnknownState = err != nil
	return err
}

// beginStep begins a transaction on a connection of the pool. beginStep uses at most half of the remaining time, so that time is left
// for another connection if the server does not reply.
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
	begin := values{"{idle}", intLiteral(l.opts.idleSeconds())}.fillIn(l.opts.statement("step_begin"))
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
	t.dropConnection()
	return false, err
}

// Rollback implements [sqlstore.StepTx].
func (t *stepTx) Rollback(ctx context.Context) {
	if t.IsStuck() || t.hasUnknownState { // for example, LOCK TABLES of the step would outlast a rollback
		t.dropConnection()
		return
	}
	_, err := t.Send(ctx, "ROLLBACK AND NO CHAIN NO RELEASE")
	if err == nil {
		_, err = t.Send(ctx, t.table.opts.statement("step_commit")) // there is nothing to commit
	}
	if err != nil {
		t.dropConnection()
		return
	}
	_ = t.conn.Close()
}

// dropConnection closes the connection, so the server rolls back.
func (t *stepTx) dropConnection() {
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = t.conn.Close()
}
