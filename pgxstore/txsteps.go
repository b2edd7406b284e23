package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
	"github.com/idempotency-go/idempotency/step"
)

// DoTx is [step.DoTx] in a transaction of the store's pool: the rows that fn writes and its result become permanent together.
// The transaction has the isolation level of [Options].Isolation.
func DoTx[T any](ctx context.Context, name string, fn func(tx pgx.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// DoSQLTx is [DoTx] with a transaction of package database/sql, for GORM, sqlx, ent, bun and the code that sqlc generates for
// database/sql.
func DoSQLTx[T any](ctx context.Context, name string, fn func(tx *sql.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// Querier is a transaction of pgx, for [DoInTx].
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLQuerier is a transaction of package database/sql, or of a library on top of it, for [DoInSQLTx]: a *sql.Tx or *sqlx.Tx, the
// Tx of ent, or the Statement.ConnPool of a transaction of GORM. Of bun it is the Tx within a bun.Tx.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DoInTx is [step.DoInTx] in a transaction of pgx that the caller has begun, and that the caller commits. The transaction is in the
// database of the store. Its role needs SELECT and UPDATE on the table of the store.
func DoInTx[T any](ctx context.Context, tx Querier, name string, fn func() (T, error)) (T, error) {
	return step.DoInTx(ctx, tx, name, fn)
}

// DoInSQLTx is [DoInTx] in a transaction of package database/sql.
func DoInSQLTx[T any](ctx context.Context, tx SQLQuerier, name string, fn func() (T, error)) (T, error) {
	return step.DoInTx(ctx, tx, name, fn)
}

var _ idempotency.TxCheckpointer = (*claim)(nil)

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *claim) CheckpointTx(ctx context.Context, s *idempotency.TxStep) (stored []byte, err error) {
	if refusal := c.store.stepsRefusal.Load(); refusal != nil {
		return nil, *refusal
	}
	if tx := s.Tx; tx != nil {
		switch tx := tx.(type) {
		case Querier:
			return (&joinedTx{claim: c, step: s, ask: askPgx(tx)}).run(ctx)
		case SQLQuerier:
			return (&joinedTx{claim: c, step: s, ask: askSQL(tx)}).run(ctx)
		}
		return nil, unsupported(tx)
	}
	w := &stepTx{claim: c, step: s}
	switch tx := s.Var.(type) {
	case *pgx.Tx:
		return w.run(ctx, func() { *tx = w.handler })
	case **sql.Tx:
		w.bySQL = true
		return w.run(ctx, func() { *tx = w.sqlTx })
	}
	return nil, unsupported(s.Var)
}

func unsupported(tx any) error {
	return fmt.Errorf("pgxstore: a %T is no transaction of this store: %w", tx, errors.ErrUnsupported)
}

// errFailedTx says that a step has left a transaction in which nothing can be stored.
var errFailedTx = fmt.Errorf("%w: it has ignored an error of the database", step.ErrMisuse)

// isUnkept reports whether enter_step or keep_step failed because the claim has lost its record, or because the step has a result
// already.
func isUnkept(err error) bool { return sqlState(err) == "22012" }

// isOtherTx reports whether keep_step was sent in another transaction than the one in which the step began.
func isOtherTx(err error) bool { return sqlState(err) == "2201F" }

// sqlState returns the code of an error of the server, by whatever driver.
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// enterArgs returns the arguments of enter_step. Drivers other than pgx know no [pgtype.UUID].
func (c *claim) enterArgs() []any { return []any{c.digest[:], c.token.String(), c.store.idleTimeout()} }

// keepArgs returns the arguments of keep_step.
func (c *claim) keepArgs(name string, data []byte, xid string) []any {
	if data == nil {
		data = []byte{} // not null
	}
	return []any{c.digest[:], c.token.String(), name, data, c.request.Lease.Microseconds(), xid}
}

// storedBefore returns the result of a step that keep_step has not stored because there was one. If there is none, the claim is
// lost, or the record was changed at the same time ([sqlstore.ErrStepChanged]).
func (c *claim) storedBefore(ctx context.Context, name string) ([]byte, error) {
	steps, found, err := c.steps(ctx)
	stored, ok := steps[name]
	switch {
	case err == nil && ok:
		err = c.store.confirm(ctx, c.sql, c.digest, c.token, false)
	case err == nil && found:
		err = sqlstore.ErrStepChanged
	case err == nil:
		err = idempotency.ErrClaimLost
	}
	if err != nil {
		return nil, failure("store the result of a step", err)
	}
	c.rows.rely(name)
	return stored, nil
}

// What pg_xact_status says of a transaction. Unless the status is aborted, the rows are permanent or may become so: PREPARE
// TRANSACTION, for example, leaves a transaction in progress.
const (
	rolledBack = "aborted"
	inProgress = "in progress"
)

// enterTx calls enter, which sends enter_step and returns whether the transaction locks the record. Renewals rest then: they would
// wait for the lock, and nobody else can claim the key. No renewal comes between the snapshot of the transaction and its lock.
func (c *claim) enterTx(enter func() (isLocked bool, err error)) error {
	c.renewals.Lock()
	defer c.renewals.Unlock()
	isLocked, err := enter()
	c.rests = isLocked && err == nil
	return err
}

// leaveTx lets renewals go on, and reports whether they have rested.
func (c *claim) leaveTx() (rested bool) {
	c.renewals.Lock()
	defer c.renewals.Unlock()
	rested, c.rests = c.rests, false
	return rested
}

func (t *Table) idleTimeout() int64 {
	return max(1, cmp.Or(t.opts.IdleTimeout, time.Minute).Milliseconds())
}
