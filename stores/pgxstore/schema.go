package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Migration is a step from one version of the schema to the next.
type Migration struct {
	Version int
	SQL     string
	Down    string // undoes SQL, and deletes all records
}

// Migrations returns all migrations for opts in their order, for other tools to apply. Each may be run twice. A table
// with partitions needs [Table.Maintain] before it can be used.
//
// Without a Schema they work in the first schema of the search path. Migrations does not check opts: their faults are
// errors of [Migrate], of [Table.Check] and of the Begin of a store.
func Migrations(opts Options) []Migration {
	file := "0001_records"
	if opts.isPartitioned() {
		file = "0001_records_partitioned"
	}
	sql := opts.readFile("0001_form") + "\n"
	if opts.Schema != "" {
		sql += opts.readFile("0001_schema") + "\n"
	}
	sql += opts.readFile(file) + "\n" + opts.withNow("$10").readFile("0001_claim")
	return []Migration{{1, sql, opts.readFile("0001_down")}}
}

// Migrate applies, in one transaction, the migrations that the table has not seen yet, or whose function or comment is
// missing. If the table has partitions, it makes the first ones. Many processes may call it at once, and again at each
// start.
//
// The role needs CREATE and USAGE on the schema of the table, and ownership of the table if the table exists. It needs
// CREATE on the database only if the schema does not exist, because Migrate makes the schema first. If nothing is to be
// done, it needs only USAGE.
//
// It changes nothing, and returns an [UnreadyTable], if the table is newer than this package, lacks columns, or has
// one that no store can fill.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	t := NewTable(pool, opts)
	if t.optionFaults != nil {
		return t.optionFaults
	}
	if _, err := t.admitPool(ctx); err != nil {
		return wrapError("migrate", err)
	}
	if err := makeSchema(ctx, pool, opts); err != nil {
		return wrapError("migrate", err)
	}
	if err := pgx.BeginTxFunc(ctx, pool, readCommitted, func(tx pgx.Tx) error { return t.migrateInTx(ctx, tx) }); err != nil {
		return wrapError("migrate", err)
	}
	if opts.isPartitioned() {
		return t.Maintain(ctx)
	}
	return nil
}

// migrate is Migrate in a transaction.
func (t *Table) migrateInTx(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", int64(t.lockSpace)); err != nil {
		return err
	}
	have, err := t.readVersion(ctx, tx)
	if unready, ok := errors.AsType[*UnreadyTable](err); ok && unready.Remedy == callMigrate {
		err = nil
	}
	if err == nil {
		err = t.setSearchPath(ctx, tx)
	}
	if err != nil {
		return err
	}
	for _, m := range Migrations(t.opts) {
		if m.Version <= have {
			continue
		}
		if _, err := tx.Exec(ctx, m.SQL); err != nil {
			return fmt.Errorf("version %d: %w", m.Version, err)
		}
	}
	_, err = t.readVersion(ctx, tx) // what has the name may be a table of somebody else
	return err
}

// makeSchema works in a transaction of its own. One that finds out by its own attempt that another session has made the
// schema may not know that schema until it ends, because it remembers that there was none.
func makeSchema(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	if opts.Schema == "" {
		return nil
	}
	_, err := pool.Exec(ctx, opts.readFile("0001_schema"))
	return err
}

// readCommitted is named because a session may begin at another level, where what has waited for a lock would go on by
// what it saw before.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// stayBeside lets the transaction make whatever has no schema in that of the table, which may be a later one of the
// search path.
func (t *Table) setSearchPath(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('search_path', quote_ident(nspname), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)`, t.opts.quotedName(""))
	return err
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const callMigrate = "call Migrate"

// version returns the version of the table, which its comment tells. It is zero beside the error that asks for Migrate:
// there is no table, or not the function that claims beside it, or not the comment, which a dump may lack. Other errors
// are that the table has partitions and should not, or the other way round; that it is not ours, or newer than this
// package; or that somebody has changed its columns.
func (t *Table) readVersion(ctx context.Context, q querier) (version int, err error) {
	var kind, comment string
	var hasFunction bool
	var lackingColumns, unfilledColumns []string
	name := t.opts.quotedName("")
	err = q.QueryRow(ctx, `
SELECT c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
    EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = $2::text),
    ARRAY(SELECT n FROM unnest($3::text[]) n
        WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = n)),
    ARRAY(SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL ($3::text[])
            AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' ORDER BY a.attnum)
FROM pg_class c WHERE c.oid = to_regclass($1::text)`, name, t.opts.claimFunction(), allColumns()).
		Scan(&kind, &comment, &hasFunction, &lackingColumns, &unfilledColumns)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, t.unreadyError(callMigrate, "there is no table %s", name)
	case err != nil:
		return 0, err
	case kind != t.opts.relKind():
		return 0, t.unreadyError("", "table %s was made with another setting of PartitionDays, or is none", name)
	case comment == "":
		return 0, t.unreadyError(callMigrate, "table %s has no comment that tells its version", name)
	}
	version, err = t.parseVersion(comment)
	switch {
	case err != nil:
		return 0, err
	case version == t.newestVersion() && len(lackingColumns) > 0:
		return 0, t.unreadyError("", "table %s lacks the columns %s", name, strings.Join(lackingColumns, ", "))
	case len(unfilledColumns) > 0:
		return 0, t.unreadyError("give them a default, or let them be null", "table %s has the columns %s, which no store fills",
			name, strings.Join(unfilledColumns, ", "))
	case !hasFunction:
		return 0, t.unreadyError(callMigrate, "table %s has no function %s beside it", name, t.opts.claimFunction())
	}
	return version, nil
}

// versionIn returns the version that the comment of the table tells.
func (t *Table) parseVersion(comment string) (version int, err error) {
	const form = "idempotency records, version %d"
	_, err = fmt.Sscanf(comment, form, &version)
	switch name, newest := t.opts.quotedName(""), t.newestVersion(); {
	case err != nil:
		return 0, t.unreadyError("", "table %s is %q, not %q", name, comment, form)
	case version > newest:
		return 0, t.unreadyError("use a newer version of pgxstore", "table %s has version %d, newer than %d", name, version, newest)
	}
	return version, nil
}

func (t *Table) newestVersion() int {
	migrations := Migrations(t.opts)
	return migrations[len(migrations)-1].Version
}

// createMissing makes the partitions that are not there yet, and gives the attached ones their comment, by which they
// are known when they are detached. A dump may lack it.
func (t *Table) createPartitions(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, createTurn, int64(t.lockSpace), t.opts.quotedName("")); err != nil {
		return err
	}
	now, partitions, err := t.listPartitions(ctx, tx)
	if err == nil {
		err = t.setSearchPath(ctx, tx)
	}
	if err == nil {
		err = commentPartitions(ctx, tx, partitions)
	}
	if err != nil {
		return err
	}
	for i := range t.opts.PartitionDays + t.opts.spareDays() + 1 {
		day := dayOf(now).AddDate(0, 0, i)
		if hasPartition(partitions, day, attached) {
			continue
		}
		if !hasPartition(partitions, day, detached) {
			err = t.createPartition(ctx, tx, day)
		}
		if err == nil {
			err = t.attachPartition(ctx, tx, day)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func commentPartitions(ctx context.Context, tx pgx.Tx, partitions []partition) error {
	for _, p := range partitions {
		if p.attachment != attached || p.hasComment {
			continue
		}
		if _, err := tx.Exec(ctx, "COMMENT ON TABLE "+p.name+" IS "+quoteLiteral(partitionComment)); err != nil {
			return err
		}
	}
	return nil
}

// dropExpired drops the partitions of days that are over. It cannot work in a transaction, because partitions are not
// detached concurrently in one.
func (t *Table) dropExpiredPartitions(ctx context.Context) error {
	now, partitions, err := t.listPartitions(ctx, t.pool)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		if !p.day.Before(dayOf(now.Add(-time.Hour))) {
			continue
		}
		if err := t.dropPartition(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// partition holds the records that expire on one day.
type partition struct {
	name       string // quoted
	day        time.Time
	attachment string
	hasComment bool
}

const (
	pending  = "pending" // a detachment was interrupted
	attached = "attached"
	detached = "detached"
)

func hasPartition(partitions []partition, day time.Time, state string) bool {
	return slices.ContainsFunc(partitions, func(p partition) bool { return p.day.Equal(day) && p.attachment == state })
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

const partitionComment = "idempotency records of one day"

// partitions returns the attached partitions whose names end in the day that their borders say, and the detached ones of
// the table's own name whose comment tells them from other tables. The pending one is the first: until it is finalized,
// PostgreSQL detaches no other.
//
// Borders are compared as text because a session may write them in a style that it reads otherwise.
func (t *Table) listPartitions(ctx context.Context, q querier) (now time.Time, partitions []partition, err error) {
	rows, _ := q.Query(ctx, t.opts.expandSQL(`
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
ORDER BY d.pending DESC NULLS LAST, d.relname`), t.opts.quotedName(""), partitionComment) // the rows have its error, too
	var name *string
	var day *time.Time
	var p partition
	_, err = pgx.ForEachRow(rows, []any{&now, &name, &day, &p.hasComment, &p.attachment}, func() error {
		if name != nil { // there is a partition
			p.name, p.day = *name, *day
			partitions = append(partitions, p)
		}
		return nil
	})
	if err == nil && now.IsZero() {
		err = t.unreadyError(callMigrate, "there is no table %s", t.opts.quotedName(""))
	}
	return now, partitions, err
}

const dayFormat = "20060102"

func (t *Table) partitionName(day time.Time) string {
	return t.opts.quotedName("_" + day.Format(dayFormat))
}

// create makes the partition of a day, which is not attached yet.
func (t *Table) createPartition(ctx context.Context, tx pgx.Tx, day time.Time) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`
CREATE TABLE %[1]s (LIKE %[2]s INCLUDING DEFAULTS, PRIMARY KEY (digest)) WITH (%[4]s);
COMMENT ON TABLE %[1]s IS '%[3]s'`, t.partitionName(day), t.opts.quotedName(""), partitionComment, t.opts.storageSettings()))
	return err
}

func (t *Table) attachPartition(ctx context.Context, tx pgx.Tx, day time.Time) error {
	const border = "2006-01-02 00:00:00+00"
	_, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
		t.opts.quotedName(""), t.partitionName(day), day.Format(border), day.AddDate(0, 0, 1).Format(border)))
	return err
}

// drop removes a partition. To drop it while it is attached would make every claim wait for the longest transaction.
func (t *Table) dropPartition(ctx context.Context, p partition) error {
	if how := map[string]string{attached: "CONCURRENTLY", pending: "FINALIZE"}[p.attachment]; how != "" {
		if _, err := t.pool.Exec(ctx, "ALTER TABLE "+t.opts.quotedName("")+" DETACH PARTITION "+p.name+" "+how); err != nil {
			return err
		}
	}
	_, err := t.pool.Exec(ctx, "DROP TABLE "+p.name)
	return err
}

// mayKeep returns an error if nobody would look for a record on the day on which it expires, or there may be no partition
// for it. No handler is to run then.
func (t *Table) checkTTL(ttl time.Duration) error {
	days := int(math.Ceil(ttl.Hours() / 24))
	if !t.opts.isPartitioned() || days <= t.opts.PartitionDays {
		return nil
	}
	return fmt.Errorf("pgxstore: PartitionDays is %d, too few for records that are kept for %s: set it to %d, and call Maintain",
		t.opts.PartitionDays, ttl, days)
}

const callMaintain = "call Maintain every day"

// lacksDay says that there is no partition for a record.
func (t *Table) missingPartitionError() error {
	return t.unreadyError(callMaintain, "table %s has no partition for the day on which the record would expire", t.opts.quotedName(""))
}
