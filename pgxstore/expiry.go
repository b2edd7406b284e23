package pgxstore

import (
	"context"
	"slices"
	"strings"

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
	find, sql := by.Replace(t.opts.statement("find_expired")), by.Replace(t.opts.statement("delete_expired"))
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
