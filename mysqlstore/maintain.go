package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// deleteBatch is how many records one statement deletes: few enough for claims not to notice.
const deleteBatch = 200

// Maintain deletes the records that have expired, in short transactions. [Table.Janitor] calls it again and again.
//
// Call it every few minutes. Records that have expired do not count, but take space until then. Maintain may run at any
// time, on many instances, and be interrupted. Claims go on meanwhile, and wait for the disk no longer than for one
// transaction. Records that another transaction has locked are left for the next time.
func (t *Table) Maintain(ctx context.Context) error {
	if t.faults != nil {
		return t.faults
	}
	for {
		found, deleted, err := t.deleteSome(ctx)
		if err != nil {
			return fmt.Errorf("mysqlstore: maintain: %w", err)
		}
		if found < deleteBatch || deleted == 0 {
			return nil
		}
	}
}

// deleteSome deletes what one search finds, and returns how many records it has found and deleted. By then some may be
// gone, belong to a new operation, or be locked.
func (t *Table) deleteSome(ctx context.Context) (found, deleted int, err error) {
	digests, err := t.findExpired(ctx)
	if err != nil || len(digests) == 0 {
		return 0, 0, err
	}
	err = t.retry(ctx, func() (err error) {
		deleted, err = t.delete(ctx, digests)
		return err
	})
	return len(digests), deleted, err
}

// delete deletes in a transaction that locks no gaps between records, in which others insert.
func (t *Table) delete(ctx context.Context, digests [][]byte) (deleted int, err error) {
	lock, err := t.statements.get(ctx, "lock_expired")
	if err != nil {
		return 0, err
	}
	stmt, err := t.statements.get(ctx, "delete_expired")
	if err != nil {
		return 0, err
	}
	tx, err := t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() // does nothing behind Commit
	rows, err := tx.StmtContext(ctx, lock).QueryContext(ctx, batch(digests)...)
	if err != nil {
		return 0, err
	}
	locked, err := collect(rows)
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	if _, err := tx.StmtContext(ctx, stmt).ExecContext(ctx, batch(locked)...); err != nil {
		return 0, err
	}
	return len(locked), tx.Commit()
}

// batch returns the parameters of a statement for some digests. It repeats one for those that are missing.
func batch(digests [][]byte) []any {
	slices.SortFunc(digests, bytes.Compare)
	args := make([]any, deleteBatch)
	for i := range args {
		args[i] = digits(digests[min(i, len(digests)-1)])
	}
	return args
}

func (t *Table) findExpired(ctx context.Context) (digests [][]byte, err error) {
	err = t.retry(ctx, func() error {
		stmt, err := t.statements.get(ctx, "find_expired")
		if err != nil {
			return err
		}
		rows, err := stmt.QueryContext(ctx, deleteBatch)
		if err != nil {
			return err
		}
		digests, err = collect(rows)
		return err
	})
	return digests, err
}

func collect(rows *sql.Rows) (digests [][]byte, err error) {
	defer rows.Close() // Err tells what matters
	for rows.Next() {
		var digest []byte
		if err := rows.Scan(&digest); err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	return digests, rows.Err()
}

// Janitor calls [Table.Maintain] at once and then every interval, until ctx ends. Each interval is up to a tenth longer
// or shorter, so that instances come at different times. An interval of zero means five minutes.
//
// It may run on every instance. A turn is given up after the interval, or after a minute if that is longer. Each
// failure is given to failed, or logged by [slog.Default] if that is nil. Janitor then goes on.
func (t *Table) Janitor(ctx context.Context, interval time.Duration, failed func(error)) {
	sqlstore.Janitor(ctx, interval, t.Maintain, failed)
}
