package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Migration is a step from one version of the schema to the next.
type Migration struct {
	Version int
	SQL     string // one statement, which may be run twice
	Down    string // one statement, which undoes SQL and deletes all records
}

// Migrations returns all migrations for opts in order, for other tools to apply. Each migration may be run twice. Migrations does
// not check opts, whose faults are errors of [Migrate], of [Table.Check] and of the Begin of a store.
func Migrations(opts Options) []Migration {
	return []Migration{{1, opts.statement("0001_records"), opts.statement("0001_down")}}
}

// Migrate creates the table if the table is missing. Migrate leaves an existing table unchanged, except for the index of
// [Options].MaxUserRecords, and returns an error if the table has another version, or columns in which the store cannot store
// records.
//
// Many processes may call Migrate at the same time, and again at each start. The database user needs the privilege CREATE for the
// table. After a conflict with another session, Migrate tries again until ctx ends.
func Migrate(ctx context.Context, db *sql.DB, opts Options) error {
	t := NewTable(db, opts)
	if t.optionFaults != nil {
		return t.optionFaults
	}
	if err := t.admitServer(ctx); err != nil {
		return wrapFailure("migrate", err)
	}
	for _, m := range Migrations(opts) {
		err := t.retryStep(ctx, func() error {
			_, err := db.ExecContext(ctx, m.SQL)
			return err
		})
		if err != nil && !hasNumber(err, 1050) { // the table exists: MariaDB reports this in spite of IF NOT EXISTS with sql_if_exists
			return fmt.Errorf("mysqlstore: migrate: version %d: %w", m.Version, err)
		}
	}
	table, err := t.describeTable(ctx, db)
	err = cmp.Or(err, table.difference)
	if err == nil && opts.MaxUserRecords > 0 {
		err = t.retryStep(ctx, func() error { return t.addUserKey(ctx) })
	}
	return wrapFailure("migrate", err)
}

// addUserKey creates the index for MaxUserRecords in a table that was made without the option.
func (t *Table) addUserKey(ctx context.Context) error {
	var hasIndex bool
	query := forAnySession(`SELECT COUNT(*) > 0 FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND INDEX_NAME = 'users' LIMIT 1`)
	if err := t.db.QueryRowContext(ctx, query, t.opts.table()).Scan(&hasIndex); err != nil || hasIndex {
		return err
	}
	_, err := t.db.ExecContext(ctx, "ALTER TABLE "+t.opts.name()+" ADD "+sqlstore.Statement(files, "user_key"))
	if hasNumber(err, 1061) { // another process has created the index meanwhile
		return nil
	}
	return err
}

// querier is a pool or a connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// description is the state of the table.
type description struct {
	engine     string // empty: the table is missing
	difference error  // from the table that Migrate creates
}

// comment is the table comment, which tells the version.
const comment = "idempotency records, version 1"

// describeTable reads the state of the table. A database user without rights on the table does not see the columns.
func (t *Table) describeTable(ctx context.Context, q querier) (is description, err error) {
	query := forAnySession(`SELECT COALESCE(ENGINE, 'no engine'), TABLE_COMMENT, COLUMN_NAME, IS_NULLABLE = 'NO' AND
    COLUMN_DEFAULT IS NULL AND EXTRA NOT LIKE '%auto_increment%' AND EXTRA NOT LIKE '%GENERATED%'
FROM information_schema.TABLES LEFT JOIN information_schema.COLUMNS USING (TABLE_SCHEMA, TABLE_NAME)
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? LIMIT 10000`)
	rows, err := q.QueryContext(ctx, query, t.opts.table())
	if err != nil {
		return is, err
	}
	defer rows.Close() // Err reports the errors
	var foundComment string
	var unfilled []string
	lacking := slices.Clone(columns)
	for rows.Next() {
		var column sql.NullString
		var needed sql.NullBool
		if err := rows.Scan(&is.engine, &foundComment, &column, &needed); err != nil {
			return is, err
		}
		if i := slices.Index(lacking, column.String); i >= 0 {
			lacking = slices.Delete(lacking, i, i+1)
		} else if needed.Bool {
			unfilled = append(unfilled, column.String)
		}
	}
	name := t.opts.name()
	switch {
	case is.engine == "":
	case foundComment != comment:
		is.difference = fmt.Errorf("the comment of table %s is %q, not %q", name, foundComment, comment)
	case len(lacking) > 0 && len(lacking) < len(columns):
		is.difference = fmt.Errorf("table %s lacks the column %s", name, strings.Join(lacking, ", "))
	case len(unfilled) > 0:
		is.difference = fmt.Errorf("table %s has the column %s, which the store does not fill: give it a default, or allow null",
			name, strings.Join(unfilled, ", "))
	}
	return is, rows.Err()
}

// columns are those of the table.
var columns = []string{"operation", "user_id", "endpoint", "key", "attempt", "fingerprint", "token", "created",
	"lease", "expires", "response", "answer_size", "steps", "resolved", "ended"}
