package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
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

// Migrate makes the table unless it exists. Many may call it at once, and again at each start. The user of the database
// needs the privilege CREATE for the table. After a conflict with another session, Migrate tries again until ctx ends.
func Migrate(ctx context.Context, db *sql.DB, opts Options) error {
	t := NewTable(db, opts)
	if t.faults != nil {
		return t.faults
	}
	for _, m := range Migrations(opts) {
		err := t.retry(ctx, func() error {
			_, err := db.ExecContext(ctx, m.SQL)
			return err
		})
		if err != nil {
			return fmt.Errorf("mysqlstore: migrate: version %d: %w", m.Version, err)
		}
	}
	return nil
}
