package pgxstore

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// located are the statements S of a store. They name the schema of the table, also if the options leave it to the search
// path: a handler may change that path, or make a temporary table that hides the one with the records.
type located[S any] struct {
	expand func(Options) S
	found  atomic.Pointer[S]
}

// in returns the statements for the table t. They are kept once the schema is known.
func (l *located[S]) in(ctx context.Context, t *Table) (*S, error) {
	if statements := l.found.Load(); statements != nil {
		return statements, nil
	}
	opts, err := t.locate(ctx)
	if err != nil {
		return nil, err
	}
	statements := l.expand(opts)
	l.found.Store(&statements)
	return &statements, nil
}

// locate returns the options with the schema of the table, which is the first one of the search path that has it.
func (t *Table) locate(ctx context.Context) (Options, error) {
	opts := t.opts
	if opts.Schema != "" {
		return opts, nil
	}
	claimed := false
	var schema *string
	err := t.retry(ctx, &claimed, pooled, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT n.nspname
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, place)
JOIN pg_namespace n ON n.nspname = s.name JOIN pg_class c ON c.relnamespace = n.oid
WHERE c.relname = $1::text ORDER BY s.place LIMIT 1)`, pgx.QueryExecModeExec, opts.table()).Scan(&schema)
	})
	switch {
	case err != nil:
		return opts, err
	case schema == nil:
		return opts, t.unready(callMigrate, "there is no table %s", opts.name(""))
	}
	opts.Schema = *schema
	return opts, nil
}
