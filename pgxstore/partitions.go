package pgxstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// createMissing makes the partitions that are not there yet, and gives the attached ones their comment, by which they
// are known when they are detached. A dump may lack it.
func (t *Table) createMissing(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, createTurn, int64(t.space), t.opts.name("")); err != nil {
		return err
	}
	now, partitions, err := t.partitions(ctx, tx)
	if err == nil {
		err = t.stayBeside(ctx, tx)
	}
	if err == nil {
		err = commentAll(ctx, tx, partitions)
	}
	if err != nil {
		return err
	}
	for i := range t.opts.PartitionDays + t.opts.spareDays() + 1 {
		day := dayOf(now).AddDate(0, 0, i)
		if has(partitions, day, attached) {
			continue
		}
		if !has(partitions, day, detached) {
			err = t.create(ctx, tx, day)
		}
		if err == nil {
			err = t.attach(ctx, tx, day)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func commentAll(ctx context.Context, tx pgx.Tx, partitions []partition) error {
	for _, p := range partitions {
		if p.state != attached || p.commented {
			continue
		}
		if _, err := tx.Exec(ctx, "COMMENT ON TABLE "+p.name+" IS "+literal(partitionComment)); err != nil {
			return err
		}
	}
	return nil
}

// dropExpired drops the partitions of days that are over. It cannot work in a transaction, because partitions are not
// detached concurrently in one.
func (t *Table) dropExpired(ctx context.Context) error {
	now, partitions, err := t.partitions(ctx, t.pool)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		if !p.day.Before(dayOf(now.Add(-time.Hour))) {
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
	name      string // quoted
	day       time.Time
	state     string
	commented bool
}

const (
	pending  = "pending" // a detachment was interrupted
	attached = "attached"
	detached = "detached"
)

func has(partitions []partition, day time.Time, state string) bool {
	return slices.ContainsFunc(partitions, func(p partition) bool { return p.day.Equal(day) && p.state == state })
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

const partitionComment = "idempotency records of one day"

// partitions returns the attached partitions whose names end in the day that their borders say, and the detached ones of
// the table's own name whose comment tells them from other tables. The pending one is the first: until it is finalized,
// PostgreSQL detaches no other.
//
// Borders are compared as text because a session may write them in a style that it reads otherwise.
func (t *Table) partitions(ctx context.Context, q querier) (now time.Time, partitions []partition, err error) {
	rows, _ := q.Query(ctx, t.opts.expand(`
WITH named AS MATERIALIZED (
    SELECT c.oid, c.relname, c.relnamespace, i.inhparent, i.inhdetachpending AS pending,
        obj_description(c.oid, 'pg_class') AS comment, pg_get_expr(c.relpartbound, c.oid) AS borders
    FROM pg_class p CROSS JOIN pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
    WHERE p.oid = to_regclass($1::text) AND c.relkind = 'r' AND c.relname ~ '_[0-9]{8}$' AND (i.inhparent = p.oid
        OR i.inhparent IS NULL AND c.relnamespace = p.relnamespace AND left(c.relname, -8) = p.relname || '_')
), dated AS (
    SELECT *, (right(relname, 8) || ' 00:00:00+00')::timestamptz AS day FROM named
    WHERE inhparent IS NOT NULL OR comment = $2::text
)
SELECT {now}, d.relnamespace::regnamespace || '.' || quote_ident(d.relname), d.day, d.comment IS NOT NULL,
    CASE WHEN d.pending THEN 'pending' WHEN d.inhparent IS NULL THEN 'detached' ELSE 'attached' END
FROM pg_class p LEFT JOIN dated d ON d.inhparent IS NULL
    OR d.borders = format('FOR VALUES FROM (%L) TO (%L)', d.day, d.day + interval '24 hours')
WHERE p.oid = to_regclass($1::text)
ORDER BY d.pending DESC NULLS LAST, d.relname`), t.opts.name(""), partitionComment) // the rows have its error, too
	var name *string
	var day *time.Time
	var p partition
	_, err = pgx.ForEachRow(rows, []any{&now, &name, &day, &p.commented, &p.state}, func() error {
		if name != nil { // there is a partition
			p.name, p.day = *name, *day
			partitions = append(partitions, p)
		}
		return nil
	})
	if err == nil && now.IsZero() {
		err = t.unready(callMigrate, "there is no table %s", t.opts.name(""))
	}
	return now, partitions, err
}

const dayFormat = "20060102"

func (t *Table) partitionName(day time.Time) string { return t.opts.name("_" + day.Format(dayFormat)) }

// create makes the partition of a day, which is not attached yet.
func (t *Table) create(ctx context.Context, tx pgx.Tx, day time.Time) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`
CREATE TABLE %[1]s (LIKE %[2]s INCLUDING DEFAULTS, PRIMARY KEY (digest)) WITH (%[4]s);
COMMENT ON TABLE %[1]s IS '%[3]s'`, t.partitionName(day), t.opts.name(""), partitionComment, t.opts.storage()))
	return err
}

func (t *Table) attach(ctx context.Context, tx pgx.Tx, day time.Time) error {
	const border = "2006-01-02 00:00:00+00"
	_, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
		t.opts.name(""), t.partitionName(day), day.Format(border), day.AddDate(0, 0, 1).Format(border)))
	return err
}

// drop removes a partition. To drop it while it is attached would make every claim wait for the longest transaction.
func (t *Table) drop(ctx context.Context, p partition) error {
	if how := map[string]string{attached: "CONCURRENTLY", pending: "FINALIZE"}[p.state]; how != "" {
		if _, err := t.pool.Exec(ctx, "ALTER TABLE "+t.opts.name("")+" DETACH PARTITION "+p.name+" "+how); err != nil {
			return err
		}
	}
	_, err := t.pool.Exec(ctx, "DROP TABLE "+p.name)
	return err
}

// mayKeep returns an error if nobody would look for a record on the day on which it expires, or there may be no partition
// for it. No handler is to run then.
func (t *Table) mayKeep(ttl time.Duration) error {
	days := int(math.Ceil(ttl.Hours() / 24))
	if !t.opts.divided() || days <= t.opts.PartitionDays {
		return nil
	}
	return fmt.Errorf("pgxstore: PartitionDays is %d, too few for records that are kept for %s: set it to %d, and call Maintain",
		t.opts.PartitionDays, ttl, days)
}

const callMaintain = "call Maintain every day"

// lacksDay says that there is no partition for a record.
func (t *Table) lacksDay() error {
	return t.unready(callMaintain, "table %s has no partition for the day on which the record would expire", t.opts.name(""))
}
