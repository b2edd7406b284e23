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

// Migration is a change of the schema from one version to the next.
type Migration struct {
	Version int
	SQL     string
	Down    string // reverts SQL, and deletes all records
}

// Migrations returns all migrations for opts in their order, for other migration tools. Each migration may be run twice.
// After the migrations, a table with partitions needs a call of [Table.Maintain], which creates the partitions.
//
// Without a Schema, the migrations work in the first schema of the search path. Migrations does not check opts.
// [Migrate], [Table.Check] and Begin of a store return the faults of opts.
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
	if opts.MaxUserRecords > 0 {
		sql += "\n" + opts.withNow("$10").readFile("0001_user_claim")
	}
	return []Migration{{1, sql, opts.readFile("0001_down")}}
}

// Migrate applies, in one transaction, the migrations that the table lacks. Migrate also applies a migration again if its
// function or comment is missing, as when [Options].MaxUserRecords is new. If opts has PartitionDays, Migrate then creates
// the first partitions. Many processes may call Migrate at the same time, and at each start.
//
// The role needs:
//
//   - USAGE on the schema of the table. If nothing is to be done, the role needs no further privilege.
//   - CREATE on the schema, and ownership of the table if the table exists. With PartitionDays, this also holds on each
//     new day, whose partition is created.
//   - CREATE on the database, if the schema does not exist. Migrate then creates the schema.
//
// Migrate changes nothing and returns an [UnreadyTable] if the table is newer than this package, lacks columns, or has a
// column that no store can fill.
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

// migrateInTx applies the missing migrations in tx. An advisory lock makes concurrent calls take turns.
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
	_, err = t.readVersion(ctx, tx) // the migrations may have found an unrelated table of that name
	return err
}

// makeSchema creates the schema in a transaction of its own. If another session creates the schema at the same time,
// PostgreSQL may hide the new schema from a transaction that has looked for it before.
func makeSchema(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	if opts.Schema == "" {
		return nil
	}
	_, err := pool.Exec(ctx, opts.readFile("0001_schema"))
	return err
}

// readCommitted names its level because the default level of the session may be higher. At a higher level, a transaction
// that has waited for a lock still works with the snapshot from before the wait.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// setSearchPath makes the transaction create objects without a schema in the schema of the table, which need not be the
// first schema of the search path.
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

// readVersion returns the version of the table, which is stored in the comment of the table. The error is an
// [UnreadyTable] in these cases:
//
//   - The table, a function or its comment is missing: version is zero, and the remedy is callMigrate. A dump may lack
//     the comment.
//   - The table has partitions and opts has no PartitionDays, or the reverse.
//   - The comment is not that of a table of this package, or the version is newer than this package.
//   - A column was dropped, or a column was added that no store fills.
func (t *Table) readVersion(ctx context.Context, q querier) (version int, err error) {
	var kind, comment string
	var lackingFunctions, lackingColumns, unfilledColumns []string
	name := t.opts.quotedName("")
	err = q.QueryRow(ctx, `
SELECT c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
    ARRAY(SELECT n FROM unnest($2::text[]) n
        WHERE NOT EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = n)),
    ARRAY(SELECT n FROM unnest($3::text[]) n
        WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = n)),
    ARRAY(SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL ($3::text[])
            AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' ORDER BY a.attnum)
FROM pg_class c WHERE c.oid = to_regclass($1::text)`, name, t.opts.claimFunctions(), allColumns()).
		Scan(&kind, &comment, &lackingFunctions, &lackingColumns, &unfilledColumns)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, t.unreadyError(callMigrate, "there is no table %s", name)
	case err != nil:
		return 0, err
	case kind != t.opts.relKind():
		return 0, t.unreadyError("", "table %s was made with a different PartitionDays, or is not a table", name)
	case comment == "":
		return 0, t.unreadyError(callMigrate, "table %s has no comment with its version", name)
	}
	version, err = t.parseVersion(comment)
	switch {
	case err != nil:
		return 0, err
	case len(lackingColumns) > 0 && version == t.newestVersion():
		return 0, t.unreadyError("", "table %s lacks the columns %s", name, strings.Join(lackingColumns, ", "))
	case len(unfilledColumns) > 0:
		return 0, t.unreadyError("give them a default, or allow null", "table %s has the columns %s, which the store does not fill",
			name, strings.Join(unfilledColumns, ", "))
	case len(lackingFunctions) > 0:
		return 0, t.unreadyError(callMigrate, "table %s lacks its function %s", name, strings.Join(lackingFunctions, ", "))
	}
	return version, nil
}

// parseVersion returns the version in the comment of the table.
func (t *Table) parseVersion(comment string) (version int, err error) {
	const form = "idempotency records, version %d"
	_, err = fmt.Sscanf(comment, form, &version)
	switch name, newest := t.opts.quotedName(""), t.newestVersion(); {
	case err != nil:
		return 0, t.unreadyError("", "the comment of table %s is %q, not %q", name, comment, form)
	case version > newest:
		return 0, t.unreadyError("use a newer version of pgxstore", "table %s has version %d, newer than %d", name, version, newest)
	}
	return version, nil
}

func (t *Table) newestVersion() int {
	migrations := Migrations(t.opts)
	return migrations[len(migrations)-1].Version
}

// createPartitions creates and attaches the missing partitions. It also adds the missing comments of attached partitions,
// because listPartitions recognises a detached partition by its comment. A dump may lack the comments.
func (t *Table) createPartitions(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, createLockSQL, int64(t.lockSpace), t.opts.quotedName("")); err != nil {
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

// dropExpiredPartitions drops the partitions whose day has been over for an hour. It works outside of a transaction,
// because PostgreSQL cannot detach a partition concurrently within a transaction.
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

// partition holds the records that expire on a certain day.
type partition struct {
	name       string // quoted, with the schema
	day        time.Time
	attachment string
	hasComment bool
}

const (
	pending  = "pending" // detached, but the detachment was interrupted
	attached = "attached"
	detached = "detached"
)

func hasPartition(partitions []partition, day time.Time, attachment string) bool {
	return slices.ContainsFunc(partitions, func(p partition) bool { return p.day.Equal(day) && p.attachment == attachment })
}

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

const partitionComment = "idempotency records of one day"

// listPartitions returns the partitions of the table, and the time of the server:
//
//   - attached partitions, if the day in the name is the day of the bounds;
//   - detached tables with the name and the comment of a partition.
//
// A partition with a pending detachment comes first, because PostgreSQL detaches no other partition before the pending
// detachment is finalized. The statement compares bounds as text, because PostgreSQL may print a date in a style that the
// session parses differently.
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
ORDER BY d.pending DESC NULLS LAST, d.relname`), t.opts.quotedName(""), partitionComment) // ForEachRow returns the error
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

// createPartition creates the partition for day, without attaching it.
func (t *Table) createPartition(ctx context.Context, tx pgx.Tx, day time.Time) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`
CREATE TABLE %[1]s (LIKE %[2]s INCLUDING DEFAULTS, PRIMARY KEY (operation)) WITH (%[4]s);
COMMENT ON TABLE %[1]s IS '%[3]s'`, t.partitionName(day), t.opts.quotedName(""), partitionComment, t.opts.storageSettings()))
	return err
}

func (t *Table) attachPartition(ctx context.Context, tx pgx.Tx, day time.Time) error {
	const border = "2006-01-02 00:00:00+00"
	_, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')",
		t.opts.quotedName(""), t.partitionName(day), day.Format(border), day.AddDate(0, 0, 1).Format(border)))
	return err
}

// dropPartition detaches and drops a partition. The drop of an attached partition would make every claim wait for the
// longest transaction.
func (t *Table) dropPartition(ctx context.Context, p partition) error {
	if how := map[string]string{attached: "CONCURRENTLY", pending: "FINALIZE"}[p.attachment]; how != "" {
		if _, err := t.pool.Exec(ctx, "ALTER TABLE "+t.opts.quotedName("")+" DETACH PARTITION "+p.name+" "+how); err != nil {
			return err
		}
	}
	_, err := t.pool.Exec(ctx, "DROP TABLE "+p.name)
	return err
}

// checkTTL returns an error if ttl is longer than PartitionDays. Stores do not look for a record that expires later, and
// a partition for the record may be missing. The error keeps the handler from running.
func (t *Table) checkTTL(ttl time.Duration) error {
	days := int(math.Ceil(ttl.Hours() / 24))
	if !t.opts.isPartitioned() || days <= t.opts.PartitionDays {
		return nil
	}
	return fmt.Errorf("pgxstore: PartitionDays is %d, too few for records kept for %s: set PartitionDays to %d, and call Maintain",
		t.opts.PartitionDays, ttl, days)
}

const callMaintain = "call Maintain every day"

// missingPartitionError reports that a new record has no partition.
func (t *Table) missingPartitionError() error {
	return t.unreadyError(callMaintain, "table %s has no partition for the day on which the record would expire", t.opts.quotedName(""))
}
