package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Check reports what would break the promise of the store, or keep it from working. Call it when the program starts. It
// returns all findings joined. Each has one of these types, for [errors.AsType] to find:
//
//   - [*idempotency.UnsafeSetting]: the server is a standby, it or its standbys may forget what was acknowledged, the
//     table is not logged, a pooler refuses transactions, or the server compiles each claim.
//   - [*UnreadyTable]: the table is missing, out of date, newer than this package, or made with another PartitionDays;
//     somebody has changed its columns; or nobody creates its partitions.
//   - [*MissingPrivilege]: the role may not do what the stores or Maintain do.
//
// It returns [ErrEngine] alone for a server on which the stores do not work. For other engines that are allowed, and for those
// that do not say what they are, it returns an UnsafeSetting with the name "version()": no store was ever run there.
//
// Any other error says that the options are wrong, or that the server could not be asked. [idempotency.Findings]
// returns the findings one by one.
func (t *Table) Check(ctx context.Context) error {
	if t.optionFaults != nil {
		return errors.Join(t.optionFaults)
	}
	c := &tableCheck{Table: t}
	err := t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		c.conn = conn
		return c.runChecks(ctx)
	})
	return errors.Join(append(c.findings, wrapError("check", err))...)
}

// check is what one connection tells.
type tableCheck struct {
	*Table
	conn     *pgxpool.Conn
	isUnfit  bool // the server
	findings []error
}

// run finds as much as it can before there is an error.
func (c *tableCheck) runChecks(ctx context.Context) error {
	for _, ask := range []func(context.Context) error{
		c.checkEngine, c.checkSettings, c.checkTable, c.checkLogged, c.checkPrivileges, c.checkRowSecurity, c.checkStandbys,
		c.checkTransactions, // last, because a pooler that refuses them closes the connection
	} {
		if err := ask(ctx); err != nil || c.isUnfit { // the other questions need what it does not have
			return err
		}
	}
	return nil
}

// unsafe adds a finding about the server, or about the pooler in front of it.
func (c *tableCheck) addUnsafe(setting, value, risk string) {
	node := c.conn.Conn().PgConn().Conn().RemoteAddr().String()
	c.findings = append(c.findings, &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk})
}

// each calls do for each row of a query, which is scanned to columns.
func (c *tableCheck) forEachRow(ctx context.Context, columns []any, do func(), query string, args ...any) error {
	rows, _ := c.conn.Query(ctx, query, args...) // the rows have its error, too
	_, err := pgx.ForEachRow(rows, columns, func() error {
		do()
		return nil
	})
	return err
}

const standbySetting = "synchronous_standby_names"

// hazards are the settings that the promise rests on.
var hazards = []struct {
	name   string
	unsafe func(value string, all settings) bool
	risk   string
}{
	{"in_hot_standby", isValue("on"), "a standby can neither claim nor know the last records"},
	{"default_transaction_read_only", isValue("on"), "nothing can be claimed or recorded"},
	{"synchronous_commit", isValue("off"), "a crash loses the last records"},
	{"synchronous_commit", isValueWithStandby("local"), "commits do not wait for the standby: a failover loses the last records"},
	{"synchronous_commit", isValueWithStandby("remote_write"),
		"a failover loses the last records if the system of the standby crashes, too"},
	{"fsync", isValue("off"), "a crash of the machine loses records"},
	{"full_page_writes", isValue("off"), "a crash of the machine may damage records"},
	{"enable_nestloop", isValueWithJIT("off"), "the server compiles each claim and replay, which takes it 0.07 s (see jit)"},
}

// settings are those of the session.
type settings map[string]string

func isValue(unsafe string) func(string, settings) bool {
	return func(value string, _ settings) bool { return value == unsafe }
}

// withStandby is for what makes a difference only if commits are to wait for a standby.
func isValueWithStandby(unsafe string) func(string, settings) bool {
	return func(value string, all settings) bool { return value == unsafe && all[standbySetting] != "" }
}

// withCompiler is for what makes a plan seem so expensive that the server compiles it. PostgreSQL 18 has another way to
// avoid a kind of plan.
func isValueWithJIT(unsafe string) func(string, settings) bool {
	return func(value string, all settings) bool {
		return value == unsafe && all["jit"] == "on" && all["server_version_num"] < "180000"
	}
}

// genuine is what every PostgreSQL says of itself, whoever has built it.
var genuineVersion = regexp.MustCompile(`^PostgreSQL [1-9]\d\S*.* on .+, compiled by `)

// askEngine reports another engine than PostgreSQL.
func (c *tableCheck) checkEngine(ctx context.Context) error {
	if err := c.admitServer(c.conn.Conn()); err != nil {
		c.findings, c.isUnfit = append(c.findings, err), true
		return nil
	}
	var version string
	err := c.conn.QueryRow(ctx, "SELECT version()").Scan(&version)
	switch e, _ := engineOf(c.conn.Conn()); {
	case e != nil:
		c.addUnsafe("version()", version, e.Name+" was only read about: no store was ever run there")
	case err == nil && !genuineVersion.MatchString(version):
		c.addUnsafe("version()", version, "no engine is known that says so: the promise of the store may not hold there")
	}
	return err
}

// askServer reports settings as the session has them.
func (c *tableCheck) checkSettings(ctx context.Context) error {
	all := make(settings)
	var name, value string
	note := func() { all[name] = value }
	if err := c.forEachRow(ctx, []any{&name, &value}, note, "SELECT name, setting FROM pg_settings"); err != nil {
		return err
	}
	for _, h := range hazards {
		if value := all[h.name]; h.unsafe(value, all) {
			c.addUnsafe(h.name, value, h.risk)
		}
	}
	return nil
}

// askStandbys reports that no commit waits for the standbys that there are. A subscriber of logical replication is none.
// A role without the privileges of pg_monitor sees that there is a standby, but not its state.
func (c *tableCheck) checkStandbys(ctx context.Context) error {
	var isAsynchronous bool
	err := c.conn.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names') = '' AND EXISTS (
    SELECT FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
    WHERE s.slot_type IS DISTINCT FROM 'logical'
        AND coalesce(r.state, 'hidden') IN ('streaming', 'catchup', 'hidden'))`).Scan(&isAsynchronous)
	if isAsynchronous {
		c.addUnsafe(standbySetting, "empty",
			"replication is asynchronous: a failover loses the last records that were acknowledged")
	}
	return err
}

// askTransactions reports a pooler that allows none, as PgBouncer does in statement mode.
func (c *tableCheck) checkTransactions(ctx context.Context) error {
	_, err := c.conn.Exec(ctx, "BEGIN")
	if err == nil {
		_, err = c.conn.Exec(ctx, "ROLLBACK")
		return err
	}
	refusal, isRefused := errors.AsType[*pgconn.PgError](err)
	if !isRefused {
		return err
	}
	c.addUnsafe("BEGIN", "refused ("+refusal.Message+")", "Maintain and DoTx need transactions")
	return nil
}

// askTable reports what is wrong with the table, and with its partitions if it is otherwise as it should be.
func (c *tableCheck) checkTable(ctx context.Context) error {
	err := c.checkVersion(ctx, c.conn)
	if err == nil && c.opts.isPartitioned() {
		err = c.checkPartitions(ctx, c.conn)
	}
	if unready, ok := errors.AsType[*UnreadyTable](err); ok {
		c.findings, err = append(c.findings, unready), nil
	}
	return err
}

func (t *Table) checkVersion(ctx context.Context, q querier) error {
	have, err := t.readVersion(ctx, q)
	if err != nil {
		return err
	}
	if want := t.newestVersion(); have < want {
		return t.unreadyError(callMigrate, "table %s has version %d, not %d", t.opts.quotedName(""), have, want)
	}
	return nil
}

// checkPartitions reports that from today on, in a row, no more than half of the spare days are ready, or that there are
// records which the stores do not look for.
func (t *Table) checkPartitions(ctx context.Context, q querier) error {
	now, partitions, err := t.listPartitions(ctx, q)
	if err != nil {
		return err
	}
	var hasBeyond bool
	err = q.QueryRow(ctx, t.opts.expandSQL("SELECT EXISTS (SELECT FROM {records} WHERE NOT "+expiresBeforeSQL+")")).Scan(&hasBeyond)
	if err != nil {
		return err
	}
	if hasBeyond {
		return t.unreadyError("set PartitionDays to the longest TTL", "table %s has records that expire in more than %d days",
			t.opts.quotedName(""), t.opts.PartitionDays)
	}
	ready := 0
	for hasPartition(partitions, dayOf(now).AddDate(0, 0, ready), attached) {
		ready++
	}
	if spare := ready - t.opts.PartitionDays - 1; spare <= t.opts.spareDays()/2 {
		return t.unreadyError(callMaintain, "only %d partitions are ready of table %s", ready, t.opts.quotedName(""))
	}
	return nil
}

// askLogged reports tables that are not in the write-ahead log: the table or its partitions.
func (c *tableCheck) checkLogged(ctx context.Context) error {
	var name string
	report := func() { c.addUnsafe("table "+name, "unlogged", "a crash empties it") }
	return c.forEachRow(ctx, []any{&name}, report, `SELECT c.oid::regclass::text
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relpersistence <> 'p' AND (c.oid = to_regclass($1::text) OR i.inhparent = to_regclass($1::text))`, c.opts.quotedName(""))
}

// askPrivileges reports what the role may not do with the table, as far as there is one.
func (c *tableCheck) checkPrivileges(ctx context.Context) error {
	var lack MissingPrivilege
	report := func() {
		found := lack
		c.findings = append(c.findings, &found)
	}
	return c.forEachRow(ctx, []any{&lack.Role, &lack.Privilege, &lack.Object, &lack.For}, report, `
SELECT current_user::text, needed.privilege, needed.object, needed.use
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
    SELECT p, 'table ' || c.oid::regclass, CASE WHEN p <> 'DELETE' THEN 'Store' ELSE 'Maintain' END,
        has_table_privilege(c.oid, p)
    FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p WHERE p <> 'DELETE' OR c.relkind <> 'p'
UNION ALL
    SELECT 'EXECUTE', 'function ' || f.oid::regproc, 'Store', has_function_privilege(f.oid, 'EXECUTE')
    FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = $2::text
UNION ALL
    SELECT 'OWNERSHIP', 'table ' || p.oid::regclass, 'Maintain', pg_has_role(p.relowner, 'USAGE')
    FROM pg_class p WHERE c.relkind = 'p'
        AND (p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid))
UNION ALL
    SELECT 'CREATE', 'schema ' || quote_ident(n.nspname), 'Maintain', has_schema_privilege(n.oid, 'CREATE')
    WHERE c.relkind = 'p'
) AS needed (privilege, object, use, granted)
WHERE c.oid = to_regclass($1::text) AND NOT needed.granted`, c.opts.quotedName(""), c.opts.claimFunction())
}

// askRowSecurity reports that policies decide which records the role sees.
func (c *tableCheck) checkRowSecurity(ctx context.Context) error {
	var isActive bool
	const query = "SELECT coalesce(row_security_active(to_regclass($1::text)), false)"
	err := c.conn.QueryRow(ctx, query, c.opts.quotedName("")).Scan(&isActive)
	if isActive {
		c.findings = append(c.findings, c.unreadyError("give the role BYPASSRLS, or the table no row security",
			"row security is active on table %s: where a policy hides a record, its key can be neither claimed nor replayed",
			c.opts.quotedName("")))
	}
	return err
}

// UnreadyTable is a finding of [Table.Check] about the table: stores do not work on it, or will not for long.
type UnreadyTable struct {
	Table   string // as SQL names it
	Problem string
	Remedy  string // such as "call Migrate"; empty if there is none that suits all cases
}

// Error describes the problem and its remedy.
func (e *UnreadyTable) Error() string {
	if e.Remedy == "" {
		return "pgxstore: " + e.Problem
	}
	return "pgxstore: " + e.Problem + ": " + e.Remedy
}

func (t *Table) unreadyError(remedy, format string, args ...any) error {
	return &UnreadyTable{t.opts.quotedName(""), fmt.Sprintf(format, args...), remedy}
}

// MissingPrivilege is a finding of [Table.Check] about the role of the pool.
type MissingPrivilege struct {
	Role      string
	Privilege string // such as "INSERT", or "OWNERSHIP"
	Object    string // of the privilege, such as "table idempotency_records"
	For       string // what needs it: "Store" or "Maintain"
}

// Error describes the privilege and what needs it.
func (e *MissingPrivilege) Error() string {
	return fmt.Sprintf("pgxstore: role %s lacks %s on %s, which is needed for %s", e.Role, e.Privilege, e.Object, e.For)
}

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
	parameter      string         // the parameter that it sends, or "host", which is what the client connects to
	versionPattern *regexp.Regexp // of its value; the first group is the version
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
		value := conn.PgConn().ParameterStatus(e.parameter)
		if e.parameter == "host" {
			value = conn.Config().Host
		}
		if said := e.versionPattern.FindStringSubmatch(value); value != "" && said != nil {
			return e, said[1]
		}
	}
	return nil, ""
}

var majorVersion = regexp.MustCompile(`^\d+`)

// admit returns an error if the server cannot be used. It sends nothing. A PostgreSQL that is newer than this module is
// admitted, and so is an engine that does not say what it is: [Table.Check] reports that.
func (t *Table) admitServer(conn *pgx.Conn, uses ...string) error {
	e, version := engineOf(conn)
	if e == nil {
		says := conn.PgConn().ParameterStatus("server_version")
		if n, err := strconv.Atoi(majorVersion.FindString(says)); err == nil && n < 14 {
			return fmt.Errorf("%w: PostgreSQL %s is older than 14", ErrEngine, says)
		}
		return nil
	}
	uses = append(uses, byStore)
	if t.opts.isPartitioned() {
		uses = append(uses, byDays)
	}
	if why := e.Refusal(features, version, uses...); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrEngine, e.Name, why)
	}
	return nil
}

// admitted is admit for a step that has no connection yet. It returns the engine, nil for PostgreSQL.
func (t *Table) admitPool(ctx context.Context) (e *engine, err error) {
	err = t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		e, _ = engineOf(conn.Conn())
		return t.admitServer(conn.Conn())
	})
	return e, err
}
