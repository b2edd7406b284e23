package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// ErrEngine says that a store cannot be used on the server: that is older than PostgreSQL 14, or is another engine, of which it
// is not known that the store keeps its promise there. Nothing is claimed, and no handler
// runs, also with FailOpen: it wraps [errors.ErrUnsupported]. The README lists the engines.
var ErrEngine = fmt.Errorf("pgxstore: the server cannot be used: %w", errors.ErrUnsupported)

// Who uses a feature.
const (
	byStore  = "New"
	bySteps  = "DoTx"
	byDays   = "PartitionDays"
	byExpiry = "Maintain" // works without these features, too
)

// engine is how a [sqlstore.Engine] tells what it is when a connection is made.
type engine struct {
	sqlstore.Engine
	from string         // the parameter that it sends, or "host", which is what the client connects to
	is   *regexp.Regexp // of its value; the first group is the version
}

var engines = []engine{
	{sqlstore.Engine{Name: "CockroachDB"}, "crdb_version", regexp.MustCompile(`()`)},
	{sqlstore.Engine{Name: "YugabyteDB", Versions: []string{"2025.1", "2025.2"}}, "server_version",
		regexp.MustCompile(`-YB-([\w.]*)`)},
	{sqlstore.Engine{Name: "Aurora DSQL"}, "host", regexp.MustCompile(`\.dsql(?:-\w+)?\.[\w-]+\.on\.aws()$`)},
	{sqlstore.Engine{Name: "Spanner"}, "session_authorization", regexp.MustCompile(`^PGAdapter()$`)},
}

// features are what the statements use beyond what every engine has. A test compares them with the statements. No statement
// uses a partial index, or an isolation level that the options do not name.
var features = []sqlstore.Feature{
	{
		Name: "functions in PL/pgSQL with GET DIAGNOSTICS", Uses: []string{byStore}, Words: "plpgsql diagnostics",
		Has: map[string]string{
			"YugabyteDB": yugabyte + "api/ysql/user-defined-subprograms-and-anon-blocks/language-plpgsql-subprograms/" +
				"plpgsql-syntax-and-semantics/executable-section/basic-statements/get-diagnostics/",
			"Aurora DSQL": dsql + "working-with-plpgsql.html",
		},
		Lacks: map[string]string{"CockroachDB": cockroach + "v25.4/known-limitations", "Spanner": spanner},
	},
	{
		Name: "INSERT ... ON CONFLICT DO NOTHING", Uses: []string{byStore}, Words: "conflict nothing",
		Has: map[string]string{"YugabyteDB": yugabyte + "architecture/transactions/read-committed/"},
	},
	{
		Name: "WITH that changes data", Uses: []string{byStore}, Words: "returning",
		Has: map[string]string{"YugabyteDB": yugabyte + "api/ysql/the-sql-language/with-clause/with-clause-syntax-semantics/"},
	},
	{
		Name: "advisory locks of a transaction", Uses: []string{byDays},
		Words: "pg_advisory_xact_lock pg_try_advisory_xact_lock",
		Has:   map[string]string{"YugabyteDB": yugabyte + "explore/transactions/explicit-locking/"},
		Lacks: map[string]string{
			"CockroachDB": "https://github.com/cockroachdb/docs/pull/18154",
			"Aurora DSQL": dsql + "working-with-concurrency-control.html", "Spanner": spanner,
		},
	},
	{
		Name: "transactions of which the ID tells whether they were committed", Uses: []string{bySteps},
		Words: "pg_current_xact_id pg_current_xact_id_if_assigned pg_xact_status pg_visible_in_snapshot pg_current_snapshot xid8",
		Lacks: map[string]string{"YugabyteDB": "https://github.com/yugabyte/yugabyte-db/issues/15638"},
	},
	{
		Name: "CREATE INDEX in a transaction", Uses: []string{byStore}, Words: "index",
		Has:   map[string]string{"YugabyteDB": yugabyte + "api/ysql/the-sql-language/statements/ddl_create_index/"},
		Lacks: map[string]string{"Aurora DSQL": dsql + "working-with-postgresql-compatibility-supported-sql-features.html"},
	},
	{
		Name: "date_bin, and the settings of PostgreSQL 14", Uses: []string{byStore},
		Words: "date_bin current_setting set_config local lock_timeout pg_is_in_recovery",
		Has:   map[string]string{"YugabyteDB": yugabyte + "api/ysql/pg15-features/"},
	},
	{
		Name: "the time of the statement and of the transaction", Uses: []string{byStore},
		Words: "statement_timestamp now",
		Has:   map[string]string{"YugabyteDB": yugabyte + "api/ysql/datatypes/type_datetime/functions/current-date-time-moment/"},
	},
	{
		Name: "serialization failures with 40001, which are repeated", Uses: []string{byStore},
		Has: map[string]string{
			"YugabyteDB":  yugabyte + "architecture/transactions/read-committed/",
			"Aurora DSQL": dsql + "working-with-concurrency-control.html",
		},
	},
	{
		Name: "FOR KEY SHARE", Uses: []string{byStore}, Words: "for share",
		Has: map[string]string{"YugabyteDB": yugabyte + "explore/transactions/explicit-locking/"},
	},
	{
		Name: "FOR NO KEY UPDATE", Uses: []string{bySteps}, Words: "for no",
		Has: map[string]string{"YugabyteDB": yugabyte + "explore/transactions/explicit-locking/"},
	},
	{
		Name: "FOR UPDATE SKIP LOCKED", Uses: []string{byExpiry}, Words: "skip locked",
		Has:   map[string]string{"YugabyteDB": "https://github.com/yugabyte/yugabyte-db/issues/9929"},
		Lacks: map[string]string{"Aurora DSQL": dsql + "working-with-postgresql-compatibility-supported-sql-features.html"},
	},
	{
		Name: "the place of a row (ctid)", Uses: []string{byExpiry, bySteps}, Words: "ctid tid",
		Lacks: map[string]string{"YugabyteDB": "https://github.com/yugabyte/yugabyte-db/issues/24843"},
	},
	{Name: "partitions that are attached and detached", Uses: []string{byDays}, Words: "attach detach partition"},
}

// Where documentation begins.
const (
	yugabyte  = "https://docs.yugabyte.com/stable/"
	cockroach = "https://www.cockroachlabs.com/docs/"
	dsql      = "https://docs.aws.amazon.com/aurora-dsql/latest/userguide/"
	spanner   = "https://docs.cloud.google.com/spanner/docs/reference/postgresql/overview"
)

// engineOf returns the engine at the other end of a connection, and its version; nil for PostgreSQL. It sends nothing.
func engineOf(conn *pgx.Conn) (*engine, string) {
	for i := range engines {
		e := &engines[i]
		value := conn.PgConn().ParameterStatus(e.from)
		if e.from == "host" {
			value = conn.Config().Host
		}
		if said := e.is.FindStringSubmatch(value); value != "" && said != nil {
			return e, said[1]
		}
	}
	return nil, ""
}

var major = regexp.MustCompile(`^\d+`)

// admit returns an error if the server cannot be used. It sends nothing. A PostgreSQL that is newer than this module is
// admitted, and so is an engine that does not say what it is: [Table.Check] reports that.
func (t *Table) admit(conn *pgx.Conn, uses ...string) error {
	e, version := engineOf(conn)
	if e == nil {
		says := conn.PgConn().ParameterStatus("server_version")
		if n, err := strconv.Atoi(major.FindString(says)); err == nil && n < 14 {
			return fmt.Errorf("%w: PostgreSQL %s is older than 14", ErrEngine, says)
		}
		return nil
	}
	uses = append(uses, byStore)
	if t.opts.divided() {
		uses = append(uses, byDays)
	}
	if why := e.Refusal(features, version, uses...); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrEngine, e.Name, why)
	}
	return nil
}

// admitted is admit for a step that has no connection yet. It returns the engine, nil for PostgreSQL.
func (t *Table) admitted(ctx context.Context) (e *engine, err error) {
	err = t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		e, _ = engineOf(conn.Conn())
		return t.admit(conn.Conn())
	})
	return e, err
}
