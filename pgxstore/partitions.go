package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Maintain creates the partitions of the coming [Options].PartitionDays, and drops those whose records have expired,
// each at once and whole. What it costs does not depend on the number of records. To be called at least once a day.
//
// It may run at any time and on many instances. Claims go on: a partition is detached before it is dropped, which
// waits for the transactions that began before, but lets nobody wait. That takes two connections of the pool. If it is
// interrupted, the next call goes on from there.
func (t *Table) Maintain(ctx context.Context) error {
	if t.opts.PartitionDays == 0 {
		return errors.New("pgxstore: maintain: the table has no partitions, use DeleteExpired")
	}
	if t.pool.Config().MaxConns < 2 {
		return errors.New("pgxstore: maintain: a pool of two connections is needed") // one would wait for itself
	}
	err := pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error { return t.createMissing(ctx, tx) })
	if err == nil {
		err = pgx.BeginFunc(ctx, t.pool, func(turn pgx.Tx) error { return t.dropExpired(ctx, turn) })
	}
	if err != nil {
		return fmt.Errorf("pgxstore: maintain: %w", err)
	}
	return nil
}

// turnNumber is what advisory locks call the turn to change partitions.
func (t *Table) turnNumber() int64 { return int64(t.space) + 1 }

// createMissing makes the partitions that are not there yet.
func (t *Table) createMissing(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", t.turnNumber()); err != nil {
		return err
	}
	today, partitions, err := t.partitions(ctx, tx)
	if err != nil {
		return err
	}
	for i := range t.opts.PartitionDays + 1 {
		day := today.AddDate(0, 0, i)
		ready := slices.ContainsFunc(partitions, func(p partition) bool { return p.day.Equal(day) })
		if ready {
			continue
		}
		if err := t.create(ctx, tx, day); err != nil {
			return err
		}
	}
	return nil
}

// dropExpired drops the partitions of days that are over, while turn keeps other instances from it. It cannot work in
// that transaction, because partitions are not detached concurrently in one.
func (t *Table) dropExpired(ctx context.Context, turn pgx.Tx) error {
	var mine bool
	// By the extended protocol the statement would keep its snapshot, and to finalize a detachment waits for that.
	err := turn.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1::bigint)", pgx.QueryExecModeSimpleProtocol,
		t.turnNumber()).Scan(&mine)
	if err != nil || !mine {
		return err // another instance is about it
	}
	today, partitions, err := t.partitions(ctx, t.pool)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		if !p.day.Before(today) {
			continue
		}
		if err := t.drop(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// partition holds the records that expire on one day.
type partition struct {
	day   time.Time
	state string // attached, pending, or detached
}

const partitionComment = "idempotency records of one day"

// partitions returns the partitions of the table, and those that were on their way out. Their comment tells them from
// tables of somebody else's, their name the day.
func (t *Table) partitions(ctx context.Context, q querier) (today time.Time, partitions []partition, err error) {
	rows, err := q.Query(ctx, t.opts.expand(`
SELECT ({now} AT TIME ZONE 'UTC')::date, right(c.relname, 8),
    CASE WHEN i.inhdetachpending THEN 'pending' WHEN i.inhrelid IS NULL THEN 'detached' ELSE 'attached' END
FROM pg_class p
LEFT JOIN pg_class c ON c.relnamespace = p.relnamespace AND c.relkind = 'r' AND starts_with(c.relname, p.relname || '_')
    AND length(c.relname) = length(p.relname) + 9 AND obj_description(c.oid, 'pg_class') = $2::text
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE p.oid = to_regclass($1::text)`), t.opts.name(""), partitionComment)
	if err != nil {
		return today, nil, err
	}
	var day *string
	var state string
	_, err = pgx.ForEachRow(rows, []any{&today, &day, &state}, func() error {
		if day == nil {
			return nil // there is no partition yet
		}
		d, err := time.Parse(dayFormat, *day)
		partitions = append(partitions, partition{d, state})
		return err
	})
	if err == nil && today.IsZero() {
		err = fmt.Errorf("there is no table %s", t.opts.name(""))
	}
	return today, partitions, err
}

const dayFormat = "20060102"

func (t *Table) partitionName(day time.Time) string { return t.opts.name("_" + day.Format(dayFormat)) }

// create makes the partition of a day.
func (t *Table) create(ctx context.Context, tx pgx.Tx, day time.Time) error {
	const border = "2006-01-02 00:00:00+00"
	_, err := tx.Exec(ctx, fmt.Sprintf(`
CREATE TABLE %[1]s (LIKE %[2]s INCLUDING DEFAULTS, PRIMARY KEY (digest)) WITH (fillfactor = 70);
COMMENT ON TABLE %[1]s IS '%[3]s';
ALTER TABLE %[2]s ATTACH PARTITION %[1]s FOR VALUES FROM ('%[4]s') TO ('%[5]s')`,
		t.partitionName(day), t.opts.name(""), partitionComment, day.Format(border), day.AddDate(0, 0, 1).Format(border)))
	return err
}

// drop removes a partition. To drop it while it is attached would make every claim wait for the longest transaction.
func (t *Table) drop(ctx context.Context, p partition) error {
	name := t.partitionName(p.day)
	if how := map[string]string{"attached": "CONCURRENTLY", "pending": "FINALIZE"}[p.state]; how != "" {
		if _, err := t.pool.Exec(ctx, "ALTER TABLE "+t.opts.name("")+" DETACH PARTITION "+name+" "+how); err != nil {
			return err
		}
	}
	_, err := t.pool.Exec(ctx, "DROP TABLE "+name)
	return err
}
