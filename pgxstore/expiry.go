package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// deleteBatch is how many records one statement deletes: few enough for claims not to notice.
const deleteBatch = 1000

// DeleteExpired deletes the records that have expired, and returns how many. It works in short transactions and waits
// for nobody, so it may run at any time, on many instances at once, and be interrupted. Records stay up to a minute
// longer than they count; until they are deleted they take space, and nothing else.
//
// To be called every few minutes. A table with partitions needs [Table.Maintain] instead.
func (t *Table) DeleteExpired(ctx context.Context) (deleted int64, err error) {
	if t.opts.PartitionDays != 0 {
		return 0, errors.New("pgxstore: delete expired: the table has partitions, use Maintain")
	}
	sql := t.opts.statement("delete_expired")
	for {
		n, err := t.deleteBatch(ctx, sql)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("pgxstore: delete expired: %w", err)
		}
		if n < deleteBatch {
			return deleted, nil
		}
	}
}

// deleteBatch does not wait for the disk: a record that a crash brings back is expired still.
func (t *Table) deleteBatch(ctx context.Context, sql string) (deleted int64, err error) {
	var batch pgx.Batch
	batch.Queue(beginReadCommitted)
	batch.Queue("set local synchronous_commit = off")
	batch.Queue(sql, int64(deleteBatch)).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	batch.Queue("commit")
	err = t.pool.SendBatch(ctx, &batch).Close()
	return deleted, err
}
