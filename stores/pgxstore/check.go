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

// Check returns everything that would break the guarantees of the store, or keep the store from working, as joined errors.
// Call Check when the program starts. [idempotency.Findings] returns the findings one by one. Each finding has one of
// these types, for [errors.AsType]:
//
//   - [*idempotency.UnsafeSetting]: the server is a standby; the server or its standbys may lose acknowledged records;
//     the table is unlogged; a pooler refuses transactions; or the server compiles each claim.
//   - [*UnreadyTable]: the table is missing, out of date, newer than this package, or made with a different
//     PartitionDays; its columns were changed; or its partitions are not created in time.
//   - [*MissingPrivilege]: the role lacks a privilege that the stores or Maintain need.
//
// If stores do not work on the server, Check returns [ErrEngine] alone. For other engines that are allowed, and for
// servers of unknown type, Check returns an UnsafeSetting with the name "version()", because stores were never run there.
//
// Any other error means that the options have faults, or that a query failed.
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

// tableCheck collects the findings of a call of Check on one connection.
type tableCheck struct {
	*Table
	conn     *pgxpool.Conn
	isUnfit  bool // stores do not work on the server
	findings []error
}

// runChecks runs all checks until a check fails with an error, or the server turns out to be unfit.
func (c *tableCheck) runChecks(ctx context.Context) error {
	for _, runCheck := range []func(context.Context) error{
		c.checkEngine, c.checkSettings, c.checkTable, c.checkLogged, c.checkPrivileges, c.checkRowSecurity, c.checkStandbys,
		c.checkTransactions, // last, because a pooler that refuses a transaction closes the connection
	} {
		if err := runCheck(ctx); err != nil || c.isUnfit { // the remaining checks need what the server lacks
			return err
		}
	}
	return nil
}

// addUnsafe adds a finding about the server, or about the pooler in front of the server.
func (c *tableCheck) addUnsafe(setting, value, risk string) {
	node := c.conn.Conn().PgConn().Conn().RemoteAddr().String()
	c.findings = append(c.findings, &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk})
}

// forEachRow runs query, and calls do for each row after the row was scanned into columns.
func (c *tableCheck) forEachRow(ctx context.Context, columns []any, do func(), query string, args ...any) error {
	rows, _ := c.conn.Query(ctx, query, args...) // ForEachRow returns the error
	_, err := pgx.ForEachRow(rows, columns, func() error {
		do()
		return nil
	})
	return err
}

const standbySetting = "synchronous_standby_names"

// hazards are the settings that can break the guarantees of the store.
var hazards = []struct {
	name     string
	isUnsafe func(value string, all settings) bool
	risk     string
}{
	{"in_hot_standby", isValue("on"), "a standby cannot claim keys, and may lack the last records"},
	{"default_transaction_read_only", isValue("on"), "no key can be claimed, and no answer can be stored"},
	{"synchronous_commit", isValue("off"), "a crash loses the last records"},
	{"synchronous_commit", isValueWithStandby("local"),
		"commits do not wait for the standby: a failover loses the last records"},
	{"synchronous_commit", isValueWithStandby("remote_write"),
		"a failover loses the last records if the system of the standby crashes, too"},
	{"fsync", isValue("off"), "a crash of the machine loses records"},
	{"full_page_writes", isValue("off"), "a crash of the machine may damage records"},
	{"enable_nestloop", isValueWithJIT("off"), "the server compiles each claim and replay, which takes 0.07 s (see jit)"},
}

// settings are the settings of the session by name.
type settings map[string]string

// isValue returns a condition that holds if a setting has the value unsafe.
func isValue(unsafe string) func(string, settings) bool {
	return func(value string, _ settings) bool { return value == unsafe }
}

// isValueWithStandby is isValue for settings that matter only if commits wait for a standby.
func isValueWithStandby(unsafe string) func(string, settings) bool {
	return func(value string, all settings) bool { return value == unsafe && all[standbySetting] != "" }
}

// isValueWithJIT is isValue for settings that disable a kind of plan. Up to PostgreSQL 17, such a plan then looks so
// expensive that the server compiles it if jit is on. PostgreSQL 18 disables plans in a different way.
func isValueWithJIT(unsafe string) func(string, settings) bool {
	return func(value string, all settings) bool {
		return value == unsafe && all["jit"] == "on" && all["server_version_num"] < "180000"
	}
}

// genuineVersion matches version() of a PostgreSQL from any vendor.
var genuineVersion = regexp.MustCompile(`^PostgreSQL [1-9]\d\S*.* on .+, compiled by `)

// checkEngine reports engines other than PostgreSQL.
func (c *tableCheck) checkEngine(ctx context.Context) error {
	if err := c.admitServer(c.conn.Conn()); err != nil {
		c.findings, c.isUnfit = append(c.findings, err), true
		return nil
	}
	var version string
	err := c.conn.QueryRow(ctx, "SELECT version()").Scan(&version)
	switch e, _ := engineOf(c.conn.Conn()); {
	case e != nil:
		c.addUnsafe("version()", version, "the store was never run on "+e.Name+", and relies on its documentation")
	case err == nil && !genuineVersion.MatchString(version):
		c.addUnsafe("version()", version, "the engine is unknown: the guarantees of the store may not hold there")
	}
	return err
}

// checkSettings reports hazards in the settings of the session.
func (c *tableCheck) checkSettings(ctx context.Context) error {
	all := make(settings)
	var name, value string
	note := func() { all[name] = value }
	if err := c.forEachRow(ctx, []any{&name, &value}, note, "SELECT name, setting FROM pg_settings"); err != nil {
		return err
	}
	for _, h := range hazards {
		if value := all[h.name]; h.isUnsafe(value, all) {
			c.addUnsafe(h.name, value, h.risk)
		}
	}
	return nil
}

// checkStandbys reports standbys for which commits do not wait. Subscribers of logical replication are no standbys. A
// role without the privileges of pg_monitor sees standbys without their state.
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

// checkTransactions reports a pooler that refuses transactions, as PgBouncer does in statement mode.
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

// checkTable reports what is wrong with the table, and if nothing is, what is wrong with its partitions.
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

// checkPartitions reports records that stores do not look for, because they expire in more than PartitionDays. It also
// reports if no more than half of the spare days have partitions.
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
		return t.unreadyError(callMaintain, "table %s has partitions for only %d days", t.opts.quotedName(""), ready)
	}
	return nil
}

// checkLogged reports an unlogged table or partition: the server does not write it to the write-ahead log.
func (c *tableCheck) checkLogged(ctx context.Context) error {
	var name string
	report := func() { c.addUnsafe("table "+name, "unlogged", "a crash empties the table") }
	return c.forEachRow(ctx, []any{&name}, report, `SELECT c.oid::regclass::text
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relpersistence <> 'p' AND (c.oid = to_regclass($1::text) OR i.inhparent = to_regclass($1::text))`, c.opts.quotedName(""))
}

// checkPrivileges reports privileges on the table that the role lacks. If the table does not exist, it reports nothing.
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
    FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = ANY ($2::text[])
UNION ALL
    SELECT 'OWNERSHIP', 'table ' || p.oid::regclass, 'Maintain', pg_has_role(p.relowner, 'USAGE')
    FROM pg_class p WHERE c.relkind = 'p'
        AND (p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid))
UNION ALL
    SELECT 'CREATE', 'schema ' || quote_ident(n.nspname), 'Maintain', has_schema_privilege(n.oid, 'CREATE')
    WHERE c.relkind = 'p'
) AS needed (privilege, object, use, granted)
WHERE c.oid = to_regclass($1::text) AND NOT needed.granted`, c.opts.quotedName(""), c.opts.claimFunctions())
}

// checkRowSecurity reports active row-level security, because its policies can hide records from the role.
func (c *tableCheck) checkRowSecurity(ctx context.Context) error {
	var isActive bool
	const query = "SELECT coalesce(row_security_active(to_regclass($1::text)), false)"
	err := c.conn.QueryRow(ctx, query, c.opts.quotedName("")).Scan(&isActive)
	if isActive {
		c.findings = append(c.findings, c.unreadyError("give the role BYPASSRLS, or the table no row security",
			"row security is active on table %s: if a policy hides a record, its key can be neither claimed nor replayed",
			c.opts.quotedName("")))
	}
	return err
}

// UnreadyTable is a finding of [Table.Check] about the table: stores do not work on the table, or will stop working.
type UnreadyTable struct {
	Table   string // quoted, with its schema if the options name one
	Problem string
	Remedy  string // for example "call Migrate"; empty if the remedy depends on the case
}

// Error returns the problem and its remedy.
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
	Privilege string // for example "INSERT", or "OWNERSHIP"
	Object    string // for example "table idempotency_records"
	For       string // "Store" or "Maintain", whichever needs the privilege
}

// Error returns the missing privilege and its use.
func (e *MissingPrivilege) Error() string {
	return fmt.Sprintf("pgxstore: role %s lacks %s on %s, which is needed for %s", e.Role, e.Privilege, e.Object, e.For)
}

// ErrEngine is returned for a server on which stores cannot be used: a PostgreSQL older than 14, or another engine on
// which the guarantees of the store are unproven. The README lists the engines. Stores claim no key on such a server.
// Because ErrEngine wraps [errors.ErrUnsupported], the handler does not run either, even with FailOpen.
var ErrEngine = fmt.Errorf("pgxstore: the server cannot be used: %w", errors.ErrUnsupported)

// The uses of a feature.
const (
	byStore  = "New"
	bySteps  = "DoTx"
	byDays   = "PartitionDays"
	byQuota  = "MaxUserRecords"
	byExpiry = "Maintain" // has a slower way without these features
)

// engine is a [sqlstore.Engine] with the way to recognise it by a parameter of its connections.
type engine struct {
	sqlstore.Engine
	parameter      string         // sent by the server, or "host" for the host of the connection
	versionPattern *regexp.Regexp // of the value of parameter; the first group is the version
}

var engines = []engine{
	{sqlstore.Engine{Name: "CockroachDB"}, "crdb_version", regexp.MustCompile(`()`)},
	{sqlstore.Engine{Name: "YugabyteDB", Versions: []string{"2025.1", "2025.2"}}, "server_version",
		regexp.MustCompile(`-YB-([\w.]*)`)},
	{sqlstore.Engine{Name: "Aurora DSQL"}, "host", regexp.MustCompile(`\.dsql(?:-\w+)?\.[\w-]+\.on\.aws()$`)},
	{sqlstore.Engine{Name: "Spanner"}, "session_authorization", regexp.MustCompile(`^PGAdapter()$`)},
}

// features are the features of PostgreSQL that the statements use and that another engine may lack. A test compares the
// list with the statements. The statements use no partial index, and no isolation level that the options do not name.
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
		Name: "advisory locks of a transaction", Uses: []string{byDays, byQuota},
		Words: "pg_advisory_xact_lock pg_try_advisory_xact_lock hashtext",
		Has:   map[string]string{"YugabyteDB": yugabyte + "explore/transactions/explicit-locking/"},
		Lacks: map[string]string{
			"CockroachDB": "https://github.com/cockroachdb/docs/pull/18154",
			"Aurora DSQL": dsql + "working-with-concurrency-control.html", "Spanner": spanner,
		},
	},
	{
		Name: "transaction outcomes by pg_xact_status", Uses: []string{bySteps},
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
		Name: "the start times of the statement and the transaction", Uses: []string{byStore},
		Words: "statement_timestamp now",
		Has:   map[string]string{"YugabyteDB": yugabyte + "api/ysql/datatypes/type_datetime/functions/current-date-time-moment/"},
	},
	{
		Name: "serialization failures with SQLSTATE 40001", Uses: []string{byStore},
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
		Name: "the physical place of a row (ctid)", Uses: []string{byExpiry, bySteps}, Words: "ctid tid",
		Lacks: map[string]string{"YugabyteDB": "https://github.com/yugabyte/yugabyte-db/issues/24843"},
	},
	{Name: "partitions that are attached and detached", Uses: []string{byDays}, Words: "attach detach partition"},
}

// The beginnings of URLs of documentation.
const (
	yugabyte  = "https://docs.yugabyte.com/stable/"
	cockroach = "https://www.cockroachlabs.com/docs/"
	dsql      = "https://docs.aws.amazon.com/aurora-dsql/latest/userguide/"
	spanner   = "https://docs.cloud.google.com/spanner/docs/reference/postgresql/overview"
)

// engineOf returns the engine of conn and its version, or nil for PostgreSQL. It sends nothing to the server.
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

// admitServer returns an error if the server lacks a feature that one of uses needs. It sends nothing to the server. A
// newer PostgreSQL is admitted, and so is an unknown engine, which [Table.Check] reports.
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
	if t.opts.MaxUserRecords > 0 {
		uses = append(uses, byQuota)
	}
	if why := e.Refusal(features, version, uses...); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrEngine, e.Name, why)
	}
	return nil
}

// admitPool is admitServer on a connection of the pool. It returns the engine, or nil for PostgreSQL.
func (t *Table) admitPool(ctx context.Context) (e *engine, err error) {
	err = t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		e, _ = engineOf(conn.Conn())
		return t.admitServer(conn.Conn())
	})
	return e, err
}
