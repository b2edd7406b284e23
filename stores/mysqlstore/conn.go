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

// tries is how often a step is begun while connections break.
const tries = 4

// retry repeats a step that may be repeated: while others are in the way until ctx ends, and a few times if its
// connection breaks. Its error wraps [idempotency.ErrStoreBusy] if it was others who have kept it until ctx ended.
func (t *Table) retry(ctx context.Context, step func() error) error {
	crowded := t.isCrowded()
	var conflict error
	for n, broken := 0, 0; ; n++ {
		err := step()
		switch {
		case err == nil:
			return nil
		case isConflict(err):
			conflict = err
		case isBroken(err) && broken < tries-1:
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

// dropReadOnly closes the idle connections to a server that takes no writes, for the pool to make new ones: after a
// failover they lead to another server. One caller at a time does so, because it takes many connections.
func (t *Table) dropReadOnly(ctx context.Context) {
	if !t.dropping.TryLock() {
		return
	}
	defer t.dropping.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for range max(1, t.db.Stats().Idle) {
		conn, err := t.db.Conn(ctx)
		if err != nil {
			return
		}
		defer conn.Close() // and not before the others were looked at; it does nothing if the connection was dropped
		var readOnly bool
		err = conn.QueryRowContext(ctx, "SELECT @@GLOBAL.read_only LIMIT 1").Scan(&readOnly)
		if err == nil && readOnly {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
}

// transaction is one that the store begins by itself, on a connection of the pool. A [sql.Tx] would not do: its COMMIT
// and ROLLBACK begin the next transaction, or close the connection, if completion_type is CHAIN or RELEASE.
type transaction struct {
	*sql.Conn
	table *Table
}

// transact calls do in a transaction that begins with those statements. It commits if do returns true and no error, and
// rolls back otherwise. CommitFailed says that err is that of the commit, which may have taken effect.
func (t *Table) transact(
	ctx context.Context, begin []string, do func(tx transaction) (commit bool, err error),
) (commitFailed bool, err error) {
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() // does nothing behind a failure of end
	tx := transaction{conn, t}
	for _, text := range begin {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return false, err
		}
	}
	commit, err := do(tx)
	if err != nil || !commit {
		_ = tx.end(ctx, "ROLLBACK") // the server does it if the connection is closed
		return false, err
	}
	err = tx.end(ctx, "COMMIT")
	return err != nil, err
}

// end ends the transaction. If that fails, end closes the connection.
func (tx transaction) end(ctx context.Context, verb string) error {
	_, err := tx.ExecContext(ctx, verb+" AND NO CHAIN NO RELEASE")
	if err != nil {
		_ = tx.Raw(func(any) error { return driver.ErrBadConn })
	}
	return err
}

// exec runs the statement of a file.
func (tx transaction) exec(ctx context.Context, file string, args ...any) (changed bool, err error) {
	result, err := tx.ExecContext(ctx, tx.table.opts.statement(file), args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// query runs the statement of a file.
func (tx transaction) query(ctx context.Context, file string, args ...any) (*sql.Rows, error) {
	return tx.QueryContext(ctx, tx.table.opts.statement(file), args...)
}
