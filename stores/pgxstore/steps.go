package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Checkpointer = (*claim)(nil)

// minRestoredTTL is the least TTL of a record that Checkpoint restores. The next renewal of the lease sets the usual TTL.
const minRestoredTTL = time.Minute

// Checkpoint implements [idempotency.Checkpointer].
func (c *claim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	if data == nil {
		data = []byte{} // an empty value, because the column must not be null
	}
	var restored error
	for range maxConflicts {
		isStored, err := c.changeRecord(ctx, fromPoolOrSpare, "checkpoint", []any{c.operation, c.ownerToken, name, data})
		if isStored || err != nil {
			return data, cmp.Or(err, restored)
		}
		steps, hasRecord, err := c.loadSteps(ctx)
		stored, ok := steps[name]
		switch {
		case err != nil:
			return nil, wrapError("checkpoint", err)
		case ok:
			return stored, cmp.Or(c.store.confirmRecord(ctx, c.statements, c.operation, c.ownerToken, false), restored)
		case hasRecord: // the record was restored since the first statement
			continue
		}
		restored = c.restoreLease(ctx, "checkpoint", c.request.Lease, max(c.request.TTL, minRestoredTTL))
		if !errors.Is(restored, idempotency.ErrRestored) {
			return nil, restored
		}
	}
	return nil, wrapError("checkpoint", errRecordHidden)
}

// Checkpoints implements [idempotency.Checkpointer].
func (c *claim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	steps, hasRecord, err := c.loadSteps(ctx)
	switch {
	case err != nil || hasRecord:
		c.reliedRows.addSteps(slices.Collect(maps.Keys(steps))...) // any of the steps may have written rows
		return steps, wrapError("checkpoints", err)
	case c.hasEnded():
		return nil, wrapError("checkpoints", idempotency.ErrClaimLost)
	}
	return map[string][]byte{idempotency.RecordLost: {}}, nil
}

// loadSteps reads the results of the steps of the operation, and reports whether the record exists. The error is
// [idempotency.ErrClaimLost] if another attempt has claimed the key, or if this claim has released or completed the
// record.
func (c *claim) loadSteps(ctx context.Context) (steps map[string][]byte, hasRecord bool, err error) {
	var names []string
	var results [][]byte
	var isOwn bool
	err = c.store.retryOnConn(ctx, new(bool), fromPoolOrSpare, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, c.statements["checkpoints"], c.operation, c.ownerToken).
			Scan(&names, &results, &hasRecord, &isOwn)
	})
	if areForgedSteps(err, names, results) {
		return nil, true, errors.Join(sqlstore.Invalid("the steps of the record cannot be read"), err)
	}
	switch {
	case err == nil && !isOwn:
		return nil, hasRecord, idempotency.ErrClaimLost
	case err != nil || !hasRecord:
		return nil, hasRecord, err
	}
	steps = make(map[string][]byte, len(names))
	for i, name := range names {
		steps[name] = results[i]
	}
	return steps, true, nil
}

// areForgedSteps reports whether no store can have written these steps. scanErr is the error of their scan.
func areForgedSteps(scanErr error, names []string, results [][]byte) bool {
	if _, isMisread := errors.AsType[pgx.ScanArgError](scanErr); isMisread {
		return true
	}
	return len(names) != len(results) || slices.ContainsFunc(results, func(result []byte) bool { return result == nil })
}

// hasEnded reports whether Complete or Release has settled the claim.
func (c *claim) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isSettled
}

// DoTx is [step.DoTx] in a transaction of the store's pool: the database commits the rows of fn and its result together.
// The isolation level of the transaction is [Options].Isolation.
func DoTx[T any](ctx context.Context, name string, fn func(tx pgx.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// DoSQLTx is [DoTx] with a transaction of package database/sql, for GORM, sqlx, ent, bun and the code that sqlc generates
// for database/sql.
func DoSQLTx[T any](ctx context.Context, name string, fn func(tx *sql.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// Querier is a transaction of pgx, for [DoInTx].
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// SQLQuerier is a transaction of package database/sql, or of a library on top of package database/sql, for [DoInSQLTx]: a
// *sql.Tx or *sqlx.Tx, the Tx of ent, the Statement.ConnPool of a transaction of GORM, or the Tx within a bun.Tx.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// DoInTx is [step.DoInTx] in a transaction of pgx that the caller has begun, and that the caller commits. The transaction
// must be in the database of the store. Its role needs SELECT and UPDATE on the table of the store.
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
			return (&joinedTx{claim: c, step: s, queryRow: queryByPgx(tx)}).runStep(ctx)
		case SQLQuerier:
			return (&joinedTx{claim: c, step: s, queryRow: queryBySQL(tx)}).runStep(ctx)
		}
		return nil, unsupportedTxError(tx)
	}
	w := &stepTx{claim: c, step: s}
	switch tx := s.Var.(type) {
	case *pgx.Tx:
		return w.runStep(ctx, func() { *tx = w.handlerTx })
	case **sql.Tx:
		w.usesSQL = true
		return w.runStep(ctx, func() { *tx = w.sqlTx })
	}
	return nil, unsupportedTxError(s.Var)
}

func unsupportedTxError(tx any) error {
	return fmt.Errorf("pgxstore: a %T is not a transaction of this store: %w", tx, errors.ErrUnsupported)
}

// errFailedTx reports that a step has ignored an error of the database, so that the transaction can no longer be committed.
var errFailedTx = fmt.Errorf("%w: the step has ignored an error of the database", step.ErrMisuse)

// isNotStored reports whether enter_step.sql or keep_step.sql failed by its division by zero: the claim has lost the
// record, or the step has a result already.
func isNotStored(err error) bool { return sqlState(err) == "22012" }

// isOtherTx reports whether keep_step.sql failed by its square root of a negative number: the step began in a different
// transaction.
func isOtherTx(err error) bool { return sqlState(err) == "2201F" }

// sqlState returns the SQLSTATE of an error of the server, from any driver.
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// enterArgs returns the arguments of enter_step.sql. The UUIDs are strings, because drivers other than pgx do not support
// [pgtype.UUID].
func (c *claim) enterArgs() []any {
	return []any{c.operation.String(), c.ownerToken.String(), c.store.idleTimeoutMillis()}
}

// keepArgs returns the arguments of keep_step.sql.
func (c *claim) keepArgs(name string, data []byte, xid string) []any {
	if data == nil {
		data = []byte{} // an empty value, because the column must not be null
	}
	return []any{c.operation.String(), c.ownerToken.String(), name, data, c.request.Lease.Microseconds(), xid}
}

// loadStoredResult returns the result of a step after keep_step.sql has stored nothing. If the step has a result,
// loadStoredResult returns that result. Otherwise the error is [sqlstore.ErrStepChanged] if the record was changed at the
// same time, or [idempotency.ErrClaimLost].
func (c *claim) loadStoredResult(ctx context.Context, name string) ([]byte, error) {
	steps, hasRecord, err := c.loadSteps(ctx)
	stored, ok := steps[name]
	switch {
	case err == nil && ok:
		err = c.store.confirmRecord(ctx, c.statements, c.operation, c.ownerToken, false)
	case err == nil && hasRecord:
		err = sqlstore.ErrStepChanged
	case err == nil:
		err = idempotency.ErrClaimLost
	}
	if err != nil {
		return nil, wrapError("store the result of a step", err)
	}
	c.reliedRows.addSteps(name)
	return stored, nil
}

// Results of pg_xact_status. Unless the status is statusAborted, the rows of the transaction are permanent or may become
// permanent. PREPARE TRANSACTION, for example, leaves a transaction in progress.
const (
	statusAborted    = "aborted"
	statusInProgress = "in progress"
)

// enterTx calls enter, which sends enter_step.sql and reports whether the transaction locks the record. If so, Extend
// skips renewals until leaveTx, because a renewal would wait for the lock. enterTx holds renewalLock, so that a renewal
// cannot come between the snapshot of the transaction and its lock.
func (c *claim) enterTx(enter func() (isLocked bool, err error)) error {
	c.renewalLock.Lock()
	defer c.renewalLock.Unlock()
	isLocked, err := enter()
	c.isRecordLocked = isLocked && err == nil
	return err
}

// leaveTx lets Extend renew the lease again, and reports whether the transaction has locked the record.
func (c *claim) leaveTx() (wasLocked bool) {
	c.renewalLock.Lock()
	defer c.renewalLock.Unlock()
	wasLocked, c.isRecordLocked = c.isRecordLocked, false
	return wasLocked
}

// idleTimeoutMillis returns IdleTimeout in milliseconds.
func (t *Table) idleTimeoutMillis() int64 {
	return max(1, cmp.Or(t.opts.IdleTimeout, time.Minute).Milliseconds())
}
