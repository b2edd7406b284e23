package pgxstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Maintain removes expired records. On a table with partitions, Maintain also creates the partitions of the coming
// [Options].PartitionDays and SpareDays. [Table.Janitor] calls Maintain periodically.
//
// Maintain may run at any time, on many instances, and may be interrupted. An advisory lock lets only one instance at a
// time remove records; the others return at once. Claims continue meanwhile. Maintain needs two connections of the pool.
//
// Without partitions, Maintain deletes records in short transactions, and skips records that others have locked. Call it
// every few minutes. A record may be deleted up to a minute after its expiry. Until then an expired record takes space
// and has no other effect.
//
// With partitions, Maintain drops each partition whose day has been over for an hour, at a cost that does not depend on
// the number of records. Call it at least once a day:
//
//   - Before Maintain drops a partition, it detaches the partition concurrently. The detachment waits for older
//     transactions, and other transactions do not wait for the detachment. If Maintain is interrupted, the next call
//     continues.
//   - If somebody has detached a partition before its day is over, Maintain attaches the partition again.
//   - The hour is for claims that were made, renewed or completed before midnight. While a partition is detached, a
//     search could miss a record that moves away from the partition.
func (t *Table) Maintain(ctx context.Context) error {
	if t.optionFaults != nil {
		return t.optionFaults
	}
	if t.pool.Config().MaxConns < 2 {
		// The lock takes one connection, and the removal takes another.
		return errors.New("pgxstore: maintain: the pool needs at least two connections")
	}
	e, err := t.admitPool(ctx)
	if err != nil {
		return wrapError("maintain", err)
	}
	remove := func(ctx context.Context) error { return t.deleteExpired(ctx, e) }
	if t.opts.isPartitioned() {
		remove = t.dropExpiredPartitions
		err = pgx.BeginTxFunc(ctx, t.pool, readCommitted, func(tx pgx.Tx) error { return t.createPartitions(ctx, tx) })
	}
	if err == nil {
		err = t.inTurn(ctx, remove)
	}
	return wrapError("maintain", err)
}

// Janitor calls [Table.Maintain] at once and then every interval, until ctx ends. Each interval varies by up to a tenth,
// so that instances run at different times. An interval of zero means five minutes.
//
// Janitor may run on every instance. Each call of Maintain is cancelled after interval, or after a minute if interval is
// shorter. Janitor passes each failure to failed, or logs the failure with [log/slog.Default] if failed is nil, and
// continues.
func (t *Table) Janitor(ctx context.Context, interval time.Duration, failed func(error)) {
	sqlstore.Janitor(ctx, interval, t.Maintain, failed)
}

// The numbers of the advisory locks to create partitions and to remove records. A number is derived from the oid of the
// table that the search path finds, so tables of the same name in two schemas have different locks.
const (
	lockNumberSQL = "$1::bigint # to_regclass($2::text)::oid::bigint"
	createLockSQL = "SELECT pg_advisory_xact_lock(" + lockNumberSQL + ")"

	// The transaction that holds the lock to remove records is idle for a long time, so its timeout is switched off.
	removeLockSQL = "SELECT set_config('idle_in_transaction_session_timeout', '0', true), pg_try_advisory_xact_lock(" +
		lockNumberSQL + ")"
)

// inTurn calls remove, unless another instance is removing records. The lock belongs to a transaction of its own, because
// remove needs many transactions, or statements that cannot run in a transaction.
func (t *Table) inTurn(ctx context.Context, remove func(context.Context) error) error {
	return pgx.BeginTxFunc(ctx, t.pool, readCommitted, func(turn pgx.Tx) error {
		hasLock, err := t.takeTurn(ctx, turn.Conn().PgConn())
		if err != nil || !hasLock {
			return err
		}
		return remove(ctx)
	})
}

// takeTurn reports whether the transaction of conn has got the lock to remove records. takeTurn uses the simple protocol,
// because the snapshot of a statement of the extended protocol lasts until the end of the transaction, and a partition
// cannot be detached before that snapshot ends. The statement has no parameters, because pgx can insert parameters into
// the text only with the usual values of client_encoding and standard_conforming_strings.
func (t *Table) takeTurn(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	lockSpace := strconv.FormatInt(int64(t.lockSpace)+1, 10)
	number := strings.NewReplacer("$1", "'"+lockSpace+"'", "$2", quoteLiteral(t.opts.quotedName("")))
	results, err := conn.Exec(ctx, number.Replace(removeLockSQL)).ReadAll()
	if err != nil {
		return false, err
	}
	hasLock := results[0].Rows[0][1] // the second column of the only row: t or f; null without the table
	if hasLock == nil {
		return false, t.unreadyError(callMigrate, "there is no table %s", t.opts.quotedName(""))
	}
	return string(hasLock) == "t", nil
}

const (
	// deleteBatch is the number of records that one statement deletes: few enough that claims do not slow down.
	deleteBatch = 1000

	// findBatch is the number of records that one search finds. Deleted records stay in the index until a vacuum, so each
	// search passes by the records of the searches before. A large batch keeps the number of searches small.
	findBatch = 50 * deleteBatch
)

// deleteExpired deletes expired records. Its statements find the records by their ctid, which takes a third of the time
// of a search by the primary key. On an engine without ctid, they use the primary key.
func (t *Table) deleteExpired(ctx context.Context, e *engine) error {
	if e != nil && len(e.Missing(features, byExpiry)) > 0 {
		return deleteBy[pgtype.UUID](ctx, t, byKey)
	}
	return deleteBy[pgtype.TID](ctx, t, byPlace)
}

// The columns by which the statements find expired records again.
var (
	byPlace = strings.NewReplacer("{place}", "ctid", "{places}", "tid[]")
	byKey   = strings.NewReplacer("{place}", "operation", "{places}", "uuid[]")
)

// deleteBy finds and deletes expired records in batches, until a search finds less than a full batch. Locked records are
// skipped, so each search has to pass by the records that earlier searches have found and left.
func deleteBy[place any](ctx context.Context, t *Table, by *strings.Replacer) error {
	find, sql := by.Replace(t.opts.readStatement("find_expired")), by.Replace(t.opts.readStatement("delete_expired"))
	for left := int64(0); ; {
		rows, _ := t.pool.Query(ctx, find, int64(findBatch), left) // CollectRows returns the error
		found, err := pgx.CollectRows(rows, pgx.RowTo[place])
		if err != nil {
			return err
		}
		for batch := range slices.Chunk(found, deleteBatch) {
			deleted, err := t.deleteAt(ctx, sql, batch)
			if err != nil {
				return err
			}
			left += int64(len(batch)) - deleted
		}
		if len(found) < findBatch {
			return nil
		}
	}
}

// deleteAt deletes the records at places. The commit does not wait for the disk, because a record that a crash restores
// is still expired.
func (t *Table) deleteAt(ctx context.Context, sql string, places any) (deleted int64, err error) {
	var batch pgx.Batch
	batch.Queue(beginReadCommitted)
	batch.Queue("set local synchronous_commit = off")
	batch.Queue(sql, places).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	batch.Queue("commit")
	err = t.pool.SendBatch(ctx, &batch).Close()
	return deleted, err
}
