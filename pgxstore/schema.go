package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Migration is a step from one version of the schema to the next.
type Migration struct {
	Version int
	SQL     string
}

// Migrations returns all migrations for opts in their order, for other tools to apply. Each may be run twice. A table
// with partitions needs [Table.Maintain] before it can be used.
func Migrations(opts Options) []Migration {
	file := "0001_records"
	if opts.PartitionDays != 0 {
		file = "0001_records_partitioned"
	}
	sql := opts.read(file) + "\n" + opts.at("$13").read("0001_claim")
	if opts.Schema != "" {
		sql = "CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{opts.Schema}.Sanitize() + ";\n\n" + sql
	}
	return []Migration{{1, sql}}
}

// Migrate applies the migrations that the table has not seen yet, in one transaction, and makes the first partitions
// if it has any. Many may call it at once, and again at each start.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	if err := opts.validate(); err != nil {
		return err
	}
	t := NewTable(pool, opts)
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", int64(t.space)); err != nil {
			return err
		}
		have, err := t.version(ctx, tx)
		if err != nil {
			return err
		}
		for _, m := range Migrations(opts) {
			if m.Version <= have {
				continue
			}
			if _, err := tx.Exec(ctx, m.SQL); err != nil {
				return fmt.Errorf("version %d: %w", m.Version, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pgxstore: migrate: %w", err)
	}
	if opts.PartitionDays != 0 {
		return t.Maintain(ctx)
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// version returns the version of the table, which its comment tells, or zero if there is none. It is an error if the
// table has partitions and should not, or the other way round.
func (t *Table) version(ctx context.Context, q querier) (version int, err error) {
	var comment string
	err = q.QueryRow(ctx, "SELECT coalesce(obj_description(to_regclass($1::text), 'pg_class'), '')", t.opts.name("")).Scan(&comment)
	if err != nil || comment == "" {
		return 0, err
	}
	form := "idempotency records, version %d"
	if t.opts.PartitionDays != 0 {
		form = "idempotency records by day, version %d"
	}
	if _, err := fmt.Sscanf(comment, form, &version); err != nil {
		return 0, fmt.Errorf("table %s is %q, not %q", t.opts.name(""), comment, form)
	}
	return version, nil
}
