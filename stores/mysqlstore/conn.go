package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// maxTries bounds how often a step is begun while connections break.
const maxTries = 4

// retryStep runs step until step succeeds or fails for good. After a conflict with another transaction, retryStep repeats the step
// until ctx ends. After a broken connection, retryStep repeats the step up to maxTries times. The error wraps
// [idempotency.ErrStoreBusy] if ctx has ended because of conflicts or a crowded pool.
func (t *Table) retryStep(ctx context.Context, step func() error) error {
	crowded := t.isCrowded()
	var conflict error
	for n, broken := 0, 0; ; n++ {
		err := step()
		switch {
		case err == nil:
			return nil
		case isConflict(err):
			conflict = err
		case isBroken(err) && broken < maxTries-1:
			broken++
		case ctx.Err() == nil:
			return err
		}
		if sqlstore.Pause(ctx, sqlstore.Growing(n, time.Millisecond)) {
			continue
		}
		if conflict != nil || crowded && isLate(err) && t.isCrowded() {
			return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, errors.Join(ctx.Err(), err))
		}
		return err
	}
}

// isCrowded reports whether all connections of the pool are in use.
func (t *Table) isCrowded() bool {
	stats := t.db.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}

// dropReadOnly closes the idle connections to a read-only server, so that the pool opens new connections. After a failover, new
// connections lead to the new primary. One caller at a time drops connections, because a caller holds many of them meanwhile.
func (t *Table) dropReadOnly(ctx context.Context) {
	if !t.dropMutex.TryLock() {
		return
	}
	defer t.dropMutex.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for range max(1, t.db.Stats().Idle) {
		conn, err := t.db.Conn(ctx)
		if err != nil {
			return
		}
		defer conn.Close() // at the end, so that the pool does not lend the same connection twice
		var readOnly bool
		err = conn.QueryRowContext(ctx, "SELECT @@GLOBAL.read_only LIMIT 1").Scan(&readOnly)
		if err == nil && readOnly {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
}

// transaction is a transaction of the store on a connection of the pool. The store does not use [sql.Tx], because with the
// completion_type CHAIN or RELEASE, the COMMIT of a sql.Tx begins the next transaction or closes the connection.
type transaction struct {
	*sql.Conn
	table *Table
}

// inTransaction calls do in a transaction that begins with the statements of begin. inTransaction commits if do returns true
// without an error, and rolls back otherwise. If commitFailed is true, err is the error of the commit, which may have taken effect.
func (t *Table) inTransaction(
	ctx context.Context, begin []string, do func(tx transaction) (commit bool, err error),
) (commitFailed bool, err error) {
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() // endTransaction has closed a broken connection before
	tx := transaction{conn, t}
	for _, text := range begin {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return false, err
		}
	}
	commit, err := do(tx)
	if err != nil || !commit {
		_ = tx.endTransaction(ctx, "ROLLBACK") // without a reply, the server rolls back when the connection closes
		return false, err
	}
	err = tx.endTransaction(ctx, "COMMIT")
	return err != nil, err
}

// endTransaction commits or rolls back, as verb says. After an error, endTransaction closes the connection.
func (tx transaction) endTransaction(ctx context.Context, verb string) error {
	_, err := tx.ExecContext(ctx, verb+" AND NO CHAIN NO RELEASE")
	if err != nil {
		_ = tx.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}

// execFile runs the statement of a file, and reports whether the statement has changed a row.
func (tx transaction) execFile(ctx context.Context, file string, args ...any) (changed bool, err error) {
	return sqlstore.HasChanged(tx.ExecContext(ctx, tx.table.opts.statement(file), args...))
}

// queryFile runs the query of a file.
func (tx transaction) queryFile(ctx context.Context, file string, args ...any) (*sql.Rows, error) {
	return tx.QueryContext(ctx, tx.table.opts.statement(file), args...)
}
