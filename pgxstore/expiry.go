package pgxstore

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// deleteBatch is how many records one statement deletes: few enough for claims not to notice.
	deleteBatch = 1000

	// findBatch is how many records are found at once. Each search goes through what the one before has found, which
	// stays in the index until a vacuum.
	findBatch = 50 * deleteBatch
)

// deleteExpired deletes the records that have expired. It waits for nobody. Each search passes by those that the ones before
// have found and left, because another session is working on them.
func (t *Table) deleteExpired(ctx context.Context) error {
	find, sql := t.opts.statement("find_expired"), t.opts.statement("delete_expired")
	for left := int64(0); ; {
		rows, _ := t.pool.Query(ctx, find, int64(findBatch), left) // the rows have its error, too
		found, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.TID])
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
func (t *Table) deleteAt(ctx context.Context, sql string, places []pgtype.TID) (deleted int64, err error) {
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
