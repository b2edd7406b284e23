package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
)

// joinedTx is a transaction that the handler has begun, and that the handler commits with the result of a step.
type joinedTx struct {
	*claim
	step *idempotency.TxStep
	ask  askRow
	xid  string
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
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return cmp.Or(rows.Err(), sql.ErrNoRows)
		}
		return cmp.Or(rows.Scan(dest...), rows.Close(), rows.Err())
	}
}

// run runs the step between two statements in the transaction. Renewals rest between them if the first one locks the record.
func (j *joinedTx) run(ctx context.Context) (stored []byte, err error) {
	defer j.leaveTx()
	if err := j.enter(ctx); err != nil {
		return nil, failure("enter the transaction of a step", err)
	}
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
	switch {
	case err == nil:
		return data, nil
	case isUnkept(err): // the transaction has failed, so a result that is there is of no use
		if _, err := j.storedBefore(ctx, j.step.Name); err != nil {
			return nil, err
		}
		return nil, failure("store the result of a step", errStepChanged)
	case isOtherTx(err), errors.Is(err, sql.ErrTxDone), errors.Is(err, pgx.ErrTxClosed):
		j.step.Escaped = j.mayBePermanent(ctx, j.xid)
		return nil, errEndedByStep
	}
	return nil, failure("store the result of a step", err)
}
