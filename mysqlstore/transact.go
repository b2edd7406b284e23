package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

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
