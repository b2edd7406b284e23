package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// deleteBatch is the number of records that one transaction deletes. With 200, claims wait no longer than for one commit.
const deleteBatch = 200

// expired is an expired record.
type expired struct {
	operation []byte
	expiredAt int64
}

// Maintain deletes expired records in short transactions. [Table.Janitor] calls Maintain at intervals.
//
// Call Maintain every few minutes, because expired records take space until then. Maintain may run at any time, on many
// instances, and be interrupted. Claims go on meanwhile, and wait no longer than for one transaction. Maintain leaves records that
// another transaction has locked to the next call.
func (t *Table) Maintain(ctx context.Context) error {
	if t.optionFaults != nil {
		return t.optionFaults
	}
	if err := t.admitServer(ctx); err != nil {
		return wrapFailure("maintain", err)
	}
	for last := (expired{operation: []byte{}, expiredAt: math.MinInt64}); ; {
		found, err := t.findExpired(ctx, last)
		if err == nil && len(found) > 0 {
			err = t.retryStep(ctx, func() error { return t.deleteExpired(ctx, found) })
		}
		if err != nil || len(found) < deleteBatch {
			return wrapFailure("maintain", err)
		}
		last = found[len(found)-1]
	}
}

// findExpired returns up to deleteBatch expired records in the order of expiry, behind the record last. So a record that was left
// locked is not found twice.
func (t *Table) findExpired(ctx context.Context, last expired) (found []expired, err error) {
	err = t.retryStep(ctx, func() error {
		stmt, err := t.statements.prepare(ctx, "find_expired")
		if err != nil {
			return err
		}
		found, err = scanExpired(stmt.QueryContext(ctx, last.expiredAt, last.expiredAt, hexDigits(last.operation), deleteBatch))
		return err
	})
	return found, err
}

// deleteExpired deletes the found records that are still expired and not locked. The transaction runs at READ COMMITTED, so that no
// gap between records is locked, and claims can insert.
func (t *Table) deleteExpired(ctx context.Context, found []expired) error {
	begin := []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"}
	_, err := t.inTransaction(ctx, begin, func(tx transaction) (commit bool, err error) {
		locked, err := scanExpired(tx.queryFile(ctx, lockExpired(*t.serverVersion.Load()), operationArgs(found)...))
		if err != nil || len(locked) == 0 {
			return false, err
		}
		_, err = tx.execFile(ctx, "delete_expired", operationArgs(locked)...)
		return true, err
	})
	return err
}

// operationArgs returns the operations of records in ascending order, as the parameters of a statement for deleteBatch
// operations. The last operation fills the remaining parameters.
func operationArgs(records []expired) []any {
	records = slices.SortedFunc(slices.Values(records), func(a, b expired) int { return bytes.Compare(a.operation, b.operation) })
	args := make([]any, deleteBatch)
	for i := range args {
		args[i] = hexDigits(records[min(i, len(records)-1)].operation)
	}
	return args
}

// scanExpired reads the rows of a query for expired records.
func scanExpired(rows *sql.Rows, err error) (records []expired, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close() // Err tells what matters
	for rows.Next() {
		var r expired
		if err := rows.Scan(&r.operation, &r.expiredAt); err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

// Janitor calls [Table.Maintain] immediately and then every interval, until ctx ends. Each interval is up to a tenth longer or
// shorter, so that instances run at different times. An interval of zero means five minutes.
//
// Janitor may run on every instance. A call of Maintain is cancelled after the interval, or after a minute if a minute is longer.
// Janitor passes each error to failed, and goes on. A nil failed logs errors to [log/slog.Default].
func (t *Table) Janitor(ctx context.Context, interval time.Duration, failed func(error)) {
	sqlstore.Janitor(ctx, interval, t.Maintain, failed)
}
