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

// Maintain removes the records that have expired. On a table with partitions it also creates the partitions of the coming
// [Options].PartitionDays. [Table.Janitor] calls it again and again.
//
// It may run at any time, on many instances, and be interrupted: one instance at a time removes records, and the others
// return at once. Claims go on meanwhile. It takes two connections of the pool.
//
// Without partitions it deletes records in short transactions, and waits for nobody. It should be called every few
// minutes. A record stays up to a minute longer than it counts. Until it is deleted it takes space, and does nothing
// else.
//
// With partitions it drops each partition whose day has been over for an hour. That costs the same whatever is in it.
// It must be called at least once a day. A partition is detached before it is dropped. That waits for the transactions
// that began before, but nobody waits for it. If it is interrupted, the next call goes on from there. A partition that
// somebody has detached before its day is over is attached again. The hour lets those claims end that were made,
// renewed or completed before midnight: while a day is detached, a record that moves away from it might be missed.
func (t *Table) Maintain(ctx context.Context) error {
	if t.optionFaults != nil {
		return t.optionFaults
	}
	if t.pool.Config().MaxConns < 2 {
		return errors.New("pgxstore: maintain: a pool of two connections is needed") // one would wait for itself
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

// Janitor calls [Table.Maintain] at once and then every interval, until ctx ends. Each interval is up to a tenth longer
// or shorter, so that instances come at different times. An interval of zero means five minutes.
//
// It may run on every instance. A turn is given up after the interval, or after a minute if that is longer. Each
// failure is given to failed, or logged by [log/slog.Default] if that is nil. Janitor then goes on.
func (t *Table) Janitor(ctx context.Context, interval time.Duration, failed func(error)) {
	sqlstore.Janitor(ctx, interval, t.Maintain, failed)
}

// Advisory locks call the turns to create partitions and to remove records after the table that the search path finds.
const (
	turnNumber = "$1::bigint # to_regclass($2::text)::oid::bigint"
	createTurn = "SELECT pg_advisory_xact_lock(" + turnNumber + ")"

	// A turn to remove lasts as long as that takes, without a statement.
	removeTurn = "SELECT set_config('idle_in_transaction_session_timeout', '0', true), pg_try_advisory_xact_lock(" +
		turnNumber + ")"
)

// inTurn calls remove, unless another instance is about it. It keeps the turn in a transaction of its own, for what
// removes records needs many transactions, or may not be in one.
func (t *Table) inTurn(ctx context.Context, remove func(context.Context) error) error {
	return pgx.BeginTxFunc(ctx, t.pool, readCommitted, func(turn pgx.Tx) error {
		isTaken, err := t.takeTurn(ctx, turn.Conn().PgConn())
		if err != nil || !isTaken {
			return err
		}
		return remove(ctx)
	})
}

// takeTurn reports whether the transaction of conn has got the turn to remove records. It sends the statement by the
// simple protocol, because a transaction keeps the snapshot of a statement of the extended protocol, and to finalize a
// detachment waits for that snapshot. The statement has no parameters, because pgx puts parameters into the text only
// if the settings client_encoding and standard_conforming_strings are the usual ones.
func (t *Table) takeTurn(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	number := strings.NewReplacer("$1", "'"+strconv.FormatInt(int64(t.lockSpace)+1, 10)+"'", "$2", quoteLiteral(t.opts.quotedName("")))
	results, err := conn.Exec(ctx, number.Replace(removeTurn)).ReadAll()
	if err != nil {
		return false, err
	}
	isTaken := results[0].Rows[0][1] // of the only row
	if isTaken == nil {
		return false, t.unreadyError(callMigrate, "there is no table %s", t.opts.quotedName(""))
	}
	return string(isTaken) == "t", nil
}

const (
	// deleteBatch is how many records one statement deletes: few enough for claims not to notice.
	deleteBatch = 1000

	// findBatch is how many records are found at once. Each search goes through what the one before has found, which
	// stays in the index until a vacuum.
	findBatch = 50 * deleteBatch
)

// deleteExpired deletes the records that have expired. It finds them again by their place in the file, which takes a third of
// the time that the key takes; or by the key, on an engine whose rows have no place.
func (t *Table) deleteExpired(ctx context.Context, e *engine) error {
	if e != nil && len(e.Missing(features, byExpiry)) > 0 {
		return deleteBy[[]byte](ctx, t, byKey)
	}
	return deleteBy[pgtype.TID](ctx, t, byPlace)
}

// How records are found again.
var (
	byPlace = strings.NewReplacer("{place}", "ctid", "{places}", "tid[]")
	byKey   = strings.NewReplacer("{place}", "digest", "{places}", "bytea[]")
)

// deleteBy waits for nobody. Each search passes by those records that the ones before have found and left, because another
// session is working on them.
func deleteBy[place any](ctx context.Context, t *Table, by *strings.Replacer) error {
	find, sql := by.Replace(t.opts.readStatement("find_expired")), by.Replace(t.opts.readStatement("delete_expired"))
	for left := int64(0); ; {
		rows, _ := t.pool.Query(ctx, find, int64(findBatch), left) // the rows have its error, too
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

// deleteAt does not wait for the disk: a record that a crash brings back is expired still.
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
