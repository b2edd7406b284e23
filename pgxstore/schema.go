package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	sql += opts.read(file) + "\n" + opts.at("$10").read("0001_claim")
	return []Migration{{1, sql, opts.read("0001_down")}}
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
	if t.faults != nil {
		return t.faults
	}
	if _, err := t.admitted(ctx); err != nil {
		return failure("migrate", err)
	}
	if err := makeSchema(ctx, pool, opts); err != nil {
		return failure("migrate", err)
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
		_, err = t.version(ctx, tx) // what has the name may be a table of somebody else
		return err
	})
	if err != nil {
		return failure("migrate", err)
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
// are that the table has partitions and should not, or the other way round; that it is not ours, or newer than this
// package; or that somebody has changed its columns.
func (t *Table) version(ctx context.Context, q querier) (version int, err error) {
	var kind, comment string
	var claims bool
	var lacking, unfilled []string
	name := t.opts.name("")
	err = q.QueryRow(ctx, `
SELECT c.relkind::text, coalesce(obj_description(c.oid, 'pg_class'), ''),
    EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = $2::text),
    ARRAY(SELECT n FROM unnest($3::text[]) n
        WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = n)),
    ARRAY(SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL ($3::text[])
            AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' ORDER BY a.attnum)
FROM pg_class c WHERE c.oid = to_regclass($1::text)`, name, t.opts.claimFunction(), columns()).
		Scan(&kind, &comment, &claims, &lacking, &unfilled)
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
	_, err = fmt.Sscanf(comment, form, &version)
	switch newest := t.newest(); {
	case err != nil:
		return 0, t.unready("", "table %s is %q, not %q", name, comment, form)
	case version > newest:
		return 0, t.unready("use a newer version of pgxstore", "table %s has version %d, newer than %d", name, version, newest)
	case version == newest && len(lacking) > 0:
		return 0, t.unready("", "table %s lacks the columns %s", name, strings.Join(lacking, ", "))
	case len(unfilled) > 0:
		return 0, t.unready("give them a default, or let them be null", "table %s has the columns %s, which no store fills",
			name, strings.Join(unfilled, ", "))
	case !claims:
		return 0, t.unready(callMigrate, "table %s has no function %s beside it", name, t.opts.claimFunction())
	}
	return version, nil
}

func (t *Table) newest() int {
	migrations := Migrations(t.opts)
	return migrations[len(migrations)-1].Version
}
