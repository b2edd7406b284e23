package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// located returns the statements, which are kept once the schema of the table is known. They name the schema also if the
// options leave it to the search path: a handler may change that path, or make a temporary table that hides the one with the
// records.
func (t *Table) located(ctx context.Context) (statements, error) {
	if kept := t.kept.Load(); kept != nil {
		return *kept, nil
	}
	opts, err := t.locate(ctx)
	if err != nil {
		return nil, err
	}
	all := opts.statements()
	t.kept.Store(&all)
	return all, nil
}

// locate returns the options with the schema of the table, which is the first one of the search path that has it. It refuses a
// server on which the stores cannot be used, at the first use of each store.
func (t *Table) locate(ctx context.Context) (Options, error) {
	opts := t.opts
	var schema *string
	err := t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		if refusal := t.admit(conn, bySteps); refusal != nil {
			t.stepsRefusal.Store(&refusal)
		}
		if err := t.admit(conn); err != nil || opts.Schema != "" {
			return err
		}
		return conn.QueryRow(ctx, `SELECT (SELECT n.nspname
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, place)
JOIN pg_namespace n ON n.nspname = s.name JOIN pg_class c ON c.relnamespace = n.oid
WHERE c.relname = $1::text ORDER BY s.place LIMIT 1)`, pgx.QueryExecModeExec, opts.table()).Scan(&schema)
	})
	switch {
	case err != nil || opts.Schema != "":
		return opts, err
	case schema == nil:
		return opts, t.unready(callMigrate, "there is no table %s", opts.name(""))
	}
	opts.Schema = *schema
	return opts, nil
}
