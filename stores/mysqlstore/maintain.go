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

// deleteBatch is how many records one statement deletes: few enough for claims not to notice.
const deleteBatch = 200

// expired is a record that has expired.
type expired struct {
	digest []byte
	at     int64
}

// Maintain deletes the records that have expired, in short transactions. [Table.Janitor] calls it again and again.
//
// Call it every few minutes. Records that have expired do not count, but take space until then. Maintain may run at any
// time, on many instances, and be interrupted. Claims go on meanwhile, and wait for the disk no longer than for one
// transaction. Records that another transaction has locked are left for the next time.
func (t *Table) Maintain(ctx context.Context) error {
	if t.faults != nil {
		return t.faults
	}
	if err := t.admit(ctx); err != nil {
		return failure("maintain", err)
	}
	for last := (expired{digest: []byte{}, at: math.MinInt64}); ; {
		found, err := t.findExpired(ctx, last)
		if err == nil && len(found) > 0 {
			err = t.retry(ctx, func() error { return t.delete(ctx, found) })
		}
		if err != nil || len(found) < deleteBatch {
			return failure("maintain", err)
		}
		last = found[len(found)-1]
	}
}

// findExpired returns some records behind another one: what was left there is not met again.
func (t *Table) findExpired(ctx context.Context, last expired) (found []expired, err error) {
	err = t.retry(ctx, func() error {
		stmt, err := t.statements.get(ctx, "find_expired")
		if err != nil {
			return err
		}
		found, err = collect(stmt.QueryContext(ctx, last.at, last.at, digits(last.digest), deleteBatch))
		return err
	})
	return found, err
}

// delete deletes records, but for those that are gone by now, belong to a new operation, or are locked. Its transaction
// locks no gaps between records, in which others insert.
func (t *Table) delete(ctx context.Context, found []expired) error {
	begin := []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"}
	_, err := t.transact(ctx, begin, func(tx transaction) (commit bool, err error) {
		locked, err := collect(tx.query(ctx, lockExpired(*t.says.Load()), batch(found)...))
		if err != nil || len(locked) == 0 {
			return false, err
		}
		_, err = tx.exec(ctx, "delete_expired", batch(locked)...)
		return true, err
	})
	return err
}

// batch returns the parameters of a statement for some digests in their order. It repeats one for those that are
// missing.
func batch(records []expired) []any {
	records = slices.SortedFunc(slices.Values(records), func(a, b expired) int { return bytes.Compare(a.digest, b.digest) })
	args := make([]any, deleteBatch)
	for i := range args {
		args[i] = digits(records[min(i, len(records)-1)].digest)
	}
	return args
}

func collect(rows *sql.Rows, err error) (records []expired, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close() // Err tells what matters
	for rows.Next() {
		var r expired
		if err := rows.Scan(&r.digest, &r.at); err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

// Janitor calls [Table.Maintain] at once and then every interval, until ctx ends. Each interval is up to a tenth longer
// or shorter, so that instances come at different times. An interval of zero means five minutes.
//
// It may run on every instance. A turn is given up after the interval, or after a minute if that is longer. Each
// failure is given to failed, or logged by [log/slog.Default] if that is nil. Janitor then goes on.
func (t *Table) Janitor(ctx context.Context, interval time.Duration, failed func(error)) {
	sqlstore.Janitor(ctx, interval, t.Maintain, failed)
}
