package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// DoTx is [step.DoTx] in a transaction of the store's pool: the rows that fn writes and the result of fn are committed together.
// GORM, sqlx, ent, bun and the code that sqlc generates take tx. The transaction has the isolation level of the session.
//
// Tables must have an engine with transactions, such as InnoDB. The connection goes back to the pool afterwards, so fn must undo its
// changes to the session: settings, temporary tables and locks.
func DoTx[T any](ctx context.Context, name string, fn func(tx *sql.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// Querier is a transaction of package database/sql, or of a library on top of it, for [DoInTx]: a *sql.Tx or *sqlx.Tx, the Tx of
// ent, or the Statement.ConnPool of a transaction of GORM. Of bun it is the Tx within a bun.Tx.
type Querier = sqlstore.Querier

// DoInTx is [step.DoInTx] in a transaction that the caller begins and commits. The transaction is in the database of the store, and its
// database user needs SELECT and UPDATE on the table of the store.
func DoInTx[T any](ctx context.Context, tx Querier, name string, fn func() (T, error)) (T, error) {
	return step.DoInTx(ctx, tx, name, fn)
}

var _ sqlstore.TxLeases = leases{}

// stepSavepoint marks the transaction of a step. A savepoint ends with its transaction, so a missing savepoint shows that the step
// has ended the transaction, even if another transaction has begun since.
const stepSavepoint = "idempotency_step"

// send sends a statement in the transaction of a step.
type send func(ctx context.Context, statement string) (driver.Result, error)

// stepStatements implements [sqlstore.StepStatements], with literals instead of parameters, see values.
type stepStatements struct {
	table *Table
	send  send
	read  func(ctx context.Context, query string) ([]byte, error)
}

// Enter implements [sqlstore.StepStatements].
func (s stepStatements) Enter(ctx context.Context, operation uuid.UUID, token []byte, lease time.Duration) (lapses int64, err error) {
	if err := s.table.checkStepFeatures(); err != nil {
		return 0, err
	}
	v := values{"{operation}", hexLiteral(operation[:]), "{token}", hexLiteral(token), "{lease}", intLiteral(sqlstore.Micros(lease))}
	result, err := s.send(ctx, v.fillIn(s.table.opts.statement("step_enter")))
	if held, err := sqlstore.HasChanged(result, err); !held {
		return 0, err
	}
	if lapses, err = result.LastInsertId(); err != nil {
		return 0, err
	}
	_, err = s.send(ctx, "SAVEPOINT "+stepSavepoint)
	return lapses, err
}

// Leave implements [sqlstore.StepStatements].
func (s stepStatements) Leave(ctx context.Context, cause error) error {
	_, err := s.send(ctx, "RELEASE SAVEPOINT "+stepSavepoint)
	if hasNumber(err, 1305) && !isConflict(cause) {
		return sqlstore.ErrTxEnded
	}
	return err
}

// Keep implements [sqlstore.StepStatements].
func (s stepStatements) Keep(
	ctx context.Context, operation uuid.UUID, token, entries []byte, before int, lease time.Duration,
) (kept bool, err error) {
	if !s.HasRoom(len(entries)) { // above the packet size, the server would store null
		return false, idempotency.ErrStoreFull
	}
	v := values{"{operation}", hexLiteral(operation[:]), "{token}", hexLiteral(token), "{lease}", intLiteral(sqlstore.Micros(lease)),
		"{checkpoint}", hexLiteral(entries[before:]), "{before}", intLiteral(int64(before))}
	return sqlstore.HasChanged(s.send(ctx, v.fillIn(s.table.opts.statement("step_keep"))))
}

// Checkpoints implements [sqlstore.StepStatements].
func (s stepStatements) Checkpoints(ctx context.Context, operation uuid.UUID) (entries []byte, err error) {
	return s.read(ctx, values{"{operation}", hexLiteral(operation[:])}.fillIn(s.table.opts.statement("step_checkpoints")))
}

// HasRoom implements [sqlstore.StepStatements].
func (s stepStatements) HasRoom(n int) bool { return fitsPacket(n, s.table.maxPacket.Load()) }

// BeginStep implements [sqlstore.TxLeases].
func (l leases) BeginStep(
	ctx context.Context, enter func(ctx context.Context, tx sqlstore.StepTx) error,
) (sqlstore.StepTx, error) {
	var tx *stepTx
	err := l.retryStep(ctx, func() (err error) {
		tx, err = l.beginStep(ctx, enter)
		if refusesWrites(err) {
			l.dropReadOnly(ctx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return tx, nil
}

// JoinStep implements [sqlstore.TxLeases].
func (l leases) JoinStep(tx sqlstore.Querier) sqlstore.StepStatements {
	return stepStatements{
		table: l.Table,
		send: func(ctx context.Context, statement string) (driver.Result, error) {
			return tx.ExecContext(ctx, statement)
		},
		read: func(ctx context.Context, query string) (value []byte, err error) {
			err = sqlstore.ScanRow(ctx, tx, query, nil, &value)
			return value, err
		},
	}
}

// KeepsRows implements [sqlstore.RowLeases].
func (leases) KeepsRows() {}

// ReadSettled implements [sqlstore.TxLeases].
func (l leases) ReadSettled(ctx context.Context, operation uuid.UUID) (settled sqlstore.Settled, err error) {
	query := values{"{operation}", hexLiteral(operation[:])}.fillIn(l.opts.statement("step_settled"))
	err = l.retryStep(ctx, func() error {
		err := l.db.QueryRowContext(ctx, query).Scan(&settled.Token, &settled.Lease, &settled.Entries)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return settled, err
}
