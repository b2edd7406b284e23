package pgxstore

import (
	"context"
	"errors"
	"fmt"

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
	if opts.divided() {
		file = "0001_records_partitioned"
	}
	sql := opts.read("0001_form") + "\n"
	if opts.Schema != "" {
		sql += opts.read("0001_schema") + "\n"
	}
	sql += opts.read(file) + "\n" + opts.at("$11").read("0001_claim")
	return []Migration{{1, sql, opts.read("0001_down")}}
}

// Migrate applies, in one transaction, the migrations that the table has not seen yet, or whose function or comment is
// missing. If the table has partitions, it makes the first ones. Many processes may call it at once, and again at each
// start.
//
// The role needs CREATE and USAGE on the schema of the table, and ownership of the table if the table exists. It needs
// CREATE on the database only if the schema does not exist, because Migrate makes the schema first. If nothing is to be
// done, it needs only USAGE.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	t := NewTable(pool, opts)
	if t.faults != nil {
		return t.faults
	}
	if err := makeSchema(ctx, pool, opts); err != nil {
		return fmt.Errorf("pgxstore: migrate: %w", err)
	}
	err := pgx.BeginTxFunc(ctx, pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", int64(t.space)); err != nil {
			return err
		}
		have, err := t.version(ctx, tx)
		if unready, ok := errors.AsType[*UnreadyTable](err); ok && unready.Remedy == callMigrate {
			err = nil
		}
		if err == nil {
			err = t.stayBeside(ctx, tx)
		}
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
	if opts.divided() {
		return t.Maintain(ctx)
	}
	return nil
}

// makeSchema works in a transaction of its own. One that finds out by its own attempt that another session has made the
// schema may not know that schema until it ends, because it remembers that there was none.
func makeSchema(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	if opts.Schema == "" {
		return nil
	}
	_, err := pool.Exec(ctx, opts.read("0001_schema"))
	return err
}

// readCommitted is named because a session may begin at another level, where what has waited for a lock would go on by
// what it saw before.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// stayBeside lets the transaction make whatever has no schema in that of the table, which may be a later one of the
// search path.
func (t *Table) stayBeside(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('search_path', quote_ident(nspname), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1::text)`, t.opts.name(""))
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
// are that the table has partitions and should not, or the other way round; or is not ours.
func (t *Table) version(ctx context.Context, q querier) (version int, err error) {
	var kind, comment string
	var claims bool
	name := t.opts.name("")
	err = q.QueryRow(ctx, `
SELECT c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
    EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = $2::text)
FROM pg_class c WHERE c.oid = to_regclass($1::text)`, name, t.opts.claimFunction()).
		Scan(&kind, &comment, &claims)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, t.unready(callMigrate, "there is no table %s", name)
	case err != nil:
		return 0, err
	case kind != t.opts.kind():
		return 0, t.unready("", "table %s was made with another setting of PartitionDays, or is none", name)
	case comment == "":
		return 0, t.unready(callMigrate, "table %s has no comment that tells its version", name)
	}
	const form = "idempotency records, version %d"
	if _, err := fmt.Sscanf(comment, form, &version); err != nil {
		return 0, t.unready("", "table %s is %q, not %q", name, comment, form)
	}
	if !claims {
		return 0, t.unready(callMigrate, "table %s has no function %s beside it", name, t.opts.claimFunction())
	}
	return version, nil
}
