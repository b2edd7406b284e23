package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// joinedTx is a transaction that the handler has begun, and that the handler commits with the result of a step.
type joinedTx struct {
	*claim
	step *idempotency.TxStep
	ask  askRow
	xid  string

	isIntact bool // the server has said that the transaction went on until the step had ended
}

// askRow sends a statement in the transaction of a handler, and scans the one row that it returns.
type askRow func(ctx context.Context, sql string, args []any, dest ...any) error

func askPgx(tx Querier) askRow {
	return func(ctx context.Context, sql string, args []any, dest ...any) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		_, err = pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (struct{}, error) { return struct{}{}, r.Scan(dest...) })
		return err
	}
}

func askSQL(tx SQLQuerier) askRow {
	return func(ctx context.Context, query string, args []any, dest ...any) error {
		return sqlstore.ScanRow(ctx, tx, query, args, dest...)
	}
}

// run runs the step between two statements in the transaction. Renewals rest between them if the first one locks the record.
func (j *joinedTx) run(ctx context.Context) (stored []byte, err error) {
	defer j.leaveTx()
	if err := j.enter(ctx); err != nil {
		return nil, failure("enter the transaction of a step", err)
	}
	defer func() { j.step.Escaped = !j.isIntact && j.hasEscaped(ctx) }() // also when the step panics
	data, err := j.step.Run()
	if err != nil {
		return nil, err
	}
	return j.keep(ctx, data)
}

func (j *joinedTx) enter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	err := j.enterTx(func() (isLocked bool, err error) {
		err = j.ask(ctx, j.sql["enter_step"], j.enterArgs(), &j.xid, &isLocked, new(any), new(any))
		return isLocked, err
	})
	if isUnkept(err) {
		return idempotency.ErrClaimLost
	}
	return err
}

func (j *joinedTx) keep(ctx context.Context, data []byte) (stored []byte, err error) {
	bounded, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	err = j.ask(bounded, j.sql["keep_step"], j.keepArgs(j.step.Name, data, j.xid), new(any))
	j.isIntact = err == nil || isUnkept(err)
	switch {
	case err == nil:
		j.rows.join()
		return data, nil
	case isUnkept(err): // the transaction has failed, so a result that is there is of no use
		if _, err := j.storedBefore(ctx, j.step.Name); err != nil {
			return nil, err
		}
		return nil, failure("store the result of a step", sqlstore.ErrStepChanged)
	case isOtherTx(err), isClosedTx(err) && ctx.Err() == nil:
		return nil, sqlstore.ErrTxEnded
	case sqlState(err) == "25P02":
		return nil, errFailedTx
	}
	return nil, failure("store the result of a step", err)
}

// hasEscaped reports whether the step has ended its transaction by itself, so that its rows may be permanent. It asks in the
// transaction of the handler first. A failed or closed transaction cannot answer. Then hasEscaped
// asks on another connection, but not for long, because the handler keeps its own one meanwhile.
func (j *joinedTx) hasEscaped(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.step.Timeout/4)
	defer cancel()
	var isOpenOrUndone bool
	err := j.ask(bounded, `SELECT coalesce(pg_current_xact_id_if_assigned() = $1::text::xid8
    OR pg_xact_status($1::text::xid8) = 'aborted', false)`, []any{j.xid}, &isOpenOrUndone)
	if err == nil {
		return !isOpenOrUndone
	}
	isClosed := isClosedTx(err)
	for n := 0; ; n++ {
		status, err := j.askStatus(bounded)
		switch {
		case err == nil && status != inProgress:
			return status != rolledBack
		case err == nil && !isClosed: // after an error in a savepoint
			return false
		case err != nil, !sqlstore.Pause(bounded, sqlstore.Growing(n, time.Millisecond)): // nobody can tell
			return isClosed && ctx.Err() == nil // else package database/sql may have closed the transaction
		}
	}
}

// askStatus returns what the server says of the transaction.
func (j *joinedTx) askStatus(ctx context.Context) (string, error) {
	var status pgtype.Text
	err := j.store.retry(ctx, new(bool), spare, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select pg_xact_status($1::text::xid8)", j.xid).Scan(&status)
	})
	return status.String, err
}

// isClosedTx reports whether a transaction was ended by a method of it, or by package database/sql because its context has ended.
func isClosedTx(err error) bool {
	return errors.Is(err, sql.ErrTxDone) || errors.Is(err, pgx.ErrTxClosed)
}
