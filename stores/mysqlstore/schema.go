package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// Migration is a step from one version of the schema to the next.
type Migration struct {
	Version int
	SQL     string // one statement; it does nothing if the step was made before
	Down    string // one statement, which undoes SQL and deletes all records
}

// Migrations returns all migrations for opts in their order, for other tools to apply. Each may be run twice.
// Migrations does not check opts: their faults are errors of [Migrate], of [Table.Check] and of the Begin of a store.
func Migrations(opts Options) []Migration {
	return []Migration{{1, opts.statement("0001_records"), opts.statement("0001_down")}}
}

// Migrate makes the table unless it exists. If it exists, Migrate changes nothing. It returns an error if the table is of
// another version, or somebody has changed its columns so that nothing can be stored.
//
// Many may call it at once, and again at each start. The user of the database needs the privilege CREATE for the table.
// After a conflict with another session, Migrate tries again until ctx ends.
func Migrate(ctx context.Context, db *sql.DB, opts Options) error {
	t := NewTable(db, opts)
	if t.faults != nil {
		return t.faults
	}
	if err := t.admit(ctx); err != nil {
		return failure("migrate", err)
	}
	for _, m := range Migrations(opts) {
		err := t.retry(ctx, func() error {
			_, err := db.ExecContext(ctx, m.SQL)
			return err
		})
		if err != nil && !hasNumber(err, 1050) { // the table exists: MariaDB does not pass over that with sql_if_exists
			return fmt.Errorf("mysqlstore: migrate: version %d: %w", m.Version, err)
		}
	}
	table, err := t.describe(ctx, db)
	return failure("migrate", cmp.Or(err, table.differs))
}

// querier is a pool or a connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// description is what a table is like.
type description struct {
	engine  string // empty: there is no table
	differs error  // how it differs from what Migrate makes
}

// comment tells the version.
const comment = "idempotency records, version 1"

// describe asks what the table is like. A user who may only make it does not see its columns.
func (t *Table) describe(ctx context.Context, q querier) (is description, err error) {
	query := forAnySession(`SELECT COALESCE(ENGINE, 'no engine'), TABLE_COMMENT, COLUMN_NAME, IS_NULLABLE = 'NO' AND
    COLUMN_DEFAULT IS NULL AND EXTRA NOT LIKE '%auto_increment%' AND EXTRA NOT LIKE '%GENERATED%'
FROM information_schema.TABLES LEFT JOIN information_schema.COLUMNS USING (TABLE_SCHEMA, TABLE_NAME)
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? LIMIT 10000`)
	rows, err := q.QueryContext(ctx, query, t.opts.table())
	if err != nil {
		return is, err
	}
	defer rows.Close() // Err tells what matters
	var says string
	var unfilled []string
	lacking := slices.Clone(columns)
	for rows.Next() {
		var column sql.NullString
		var needed sql.NullBool
		if err := rows.Scan(&is.engine, &says, &column, &needed); err != nil {
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
	case says != comment:
		is.differs = fmt.Errorf("the comment of table %s says %q, not %q", name, says, comment)
	case len(lacking) > 0 && len(lacking) < len(columns):
		is.differs = fmt.Errorf("table %s lacks the column %s", name, strings.Join(lacking, ", "))
	case len(unfilled) > 0:
		is.differs = fmt.Errorf("table %s has the column %s, which no store fills: give it a default, or let it be null",
			name, strings.Join(unfilled, ", "))
	}
	return is, rows.Err()
}

// columns are those of the table.
var columns = []string{"digest", "user_id", "endpoint", "key", "attempt", "fingerprint", "token", "created",
	"lease", "expires", "response", "answer_size", "steps", "resolved"}
