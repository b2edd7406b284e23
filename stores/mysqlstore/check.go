package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Check reports settings that break the promises of the store, and faults that keep the store from working. Call Check when the
// program starts. Check returns all findings joined; [idempotency.Findings] separates them. These findings are
// [*idempotency.UnsafeSetting] values, which the operator weighs:
//
//   - a setting with which the server, or a replica in its place, may forget acknowledged records, or store altered values;
//   - a read-only server or session, or a session with autocommit off, in which nothing would be committed;
//   - a session that reads uncommitted rows, or has a clock that stands still;
//   - a Galera cluster whose nodes may show old records;
//   - a table without its index, or with an engine without transactions;
//   - a pool with more connections than the server allows;
//   - an engine other than MySQL and MariaDB, on which the store was never run.
//
// On a server that the store cannot use, Check returns only [ErrEngine].
//
// Any other error means that the options have faults, that the server did not reply, or that the store does not work, for example
// because the table is missing or has another version, or because the database user lacks a privilege.
func (t *Table) Check(ctx context.Context) error {
	if t.optionFaults != nil {
		return errors.Join(t.optionFaults)
	}
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return errors.Join(wrapFailure("check", err))
	}
	defer conn.Close()
	c := &check{Table: t, conn: conn}
	err = conn.QueryRowContext(ctx, askVersion).Scan(&c.versionText)
	if err == nil {
		err = checkServerVersion(c.versionText)
	}
	if err != nil {
		return errors.Join(wrapFailure("check", err))
	}
	for _, ask := range []func(context.Context) error{
		c.askServer, c.askClock, c.askReplicas, c.askTable, c.askIndex, c.askStatements,
	} {
		if err := ask(ctx); err != nil {
			c.findings = append(c.findings, wrapFailure("check", err))
		}
	}
	return errors.Join(c.findings...)
}

// check is one run of Check, on one connection.
type check struct {
	*Table
	conn        *sql.Conn
	versionText string // VERSION() of the server
	node        string
	settings    settings
	isUnready   bool // the table is missing or different
	findings    []error
}

// addFinding adds a finding about the server.
func (c *check) addFinding(setting, value, risk string) { c.addFindingAt(c.node, setting, value, risk) }

func (c *check) addFindingAt(node, setting, value, risk string) {
	finding := &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk}
	c.findings = append(c.findings, finding)
}

// settings are the variables of the session, by name in lower case.
type settings map[string]string

// leastPacket has room for an answer of 1 MiB, the default of Options.MaxResponse, in hexadecimal digits and with a header.
const leastPacket = 3 << 20

// hazards are the settings on which the promises of the store depend.
var hazards = []struct {
	name   string
	unsafe func(value string, all settings) bool
	risk   string
}{
	{"innodb_flush_log_at_trx_commit", isOneOf("0"), "a crash of the server loses the records of the last second"},
	{"innodb_flush_log_at_trx_commit", isOneOf("2"), "a crash of the machine loses the records of the last second"},
	{"sync_binlog", isBinlogUnsynced, "after a crash of the machine, the replicas may lack the last records"},
	{"binlog_format", isLoggedAsStatements, "the server refuses Maintain, and the times on the replicas differ"},
	{"innodb_doublewrite", isOneOf("OFF", "DETECT_ONLY"), "a crash of the machine may damage records"},
	{"sql_mode", isNotStrict, "the server truncates values that do not fit into a column, instead of refusing them"},
	{"max_allowed_packet", isLessThan(leastPacket), "larger answers are stored without their body"},
	{"autocommit", isOneOf("OFF"), "the server would not commit records, so each request gets 503"},
	{"read_only", isOneOf("ON"), "no key can be claimed, and no answer can be stored"},
	{"tx_read_only", isOneOf("ON"), "no key can be claimed, and no answer can be stored"},
	{"transaction_read_only", isOneOf("ON"), "no key can be claimed, and no answer can be stored"},
	{"tx_isolation", isOneOf("READ-UNCOMMITTED"), "answers are replayed before they are committed"},
	{"transaction_isolation", isOneOf("READ-UNCOMMITTED"), "answers are replayed before they are committed"},
	{"wsrep_sync_wait", mayReadThePast, "a node that lags shows old records, so a free key may seem to be taken"},
}

func isOneOf(unsafe ...string) func(string, settings) bool {
	return func(value string, _ settings) bool { return slices.Contains(unsafe, value) }
}

func isBinlogUnsynced(value string, all settings) bool { return all["log_bin"] == "ON" && value != "1" }

func isLoggedAsStatements(value string, all settings) bool {
	return all["log_bin"] == "ON" && value == "STATEMENT"
}

// mayReadThePast reports whether a Galera node reads without waiting for the commits of other nodes.
func mayReadThePast(value string, all settings) bool {
	n, err := strconv.Atoi(value)
	return all["wsrep_on"] == "ON" && err == nil && n&1 == 0
}

func isNotStrict(value string, _ settings) bool {
	modes := strings.Split(value, ",")
	return !slices.Contains(modes, "STRICT_TRANS_TABLES") && !slices.Contains(modes, "STRICT_ALL_TABLES")
}

func isLessThan(least int64) func(string, settings) bool {
	return func(value string, _ settings) bool {
		n, err := strconv.ParseInt(value, 10, 64)
		return err == nil && n < least
	}
}

// allSettings is SHOW VARIABLES in spite of sql_select_limit. MariaDB and MySQL have the table in different schemas.
const allSettings = "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM " +
	"/*M!100000 information_schema.SESSION_VARIABLES *//*!50720 performance_schema.session_variables */ LIMIT 10000"

// askServer reports unsafe settings of the session.
func (c *check) askServer(ctx context.Context) error {
	rows, err := c.conn.QueryContext(ctx, forAnySession(allSettings))
	if err != nil {
		return err
	}
	defer rows.Close() // Err reports the errors
	c.settings = make(settings)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		c.settings[strings.ToLower(name)] = value
	}
	if err := rows.Err(); err != nil {
		return err
	}
	c.node = c.settings["hostname"] + ":" + c.settings["port"]
	for _, h := range hazards {
		if value, ok := c.settings[h.name]; ok && h.unsafe(value, c.settings) {
			c.addFinding(h.name, value, h.risk)
		}
	}
	c.checkEngine()
	c.checkPool()
	return nil
}

// checkEngine reports an engine other than MySQL and MariaDB.
func (c *check) checkEngine() {
	switch e, _ := engineOf(c.versionText); {
	case e != nil:
		c.addFinding("VERSION()", c.versionText, "the store was never run on "+e.Name+", and relies on its documentation")
	case foreign.MatchString(c.versionText):
		c.addFinding("VERSION()", c.versionText, "the engine is unknown: the guarantees of the store may not hold there")
	}
}

// checkPool reports a pool with more connections than the server allows. With such a pool, a statement fails at once when the server
// refuses a connection, instead of waiting for a connection of the pool.
func (c *check) checkPool() {
	most := c.db.Stats().MaxOpenConnections
	allowed, err := strconv.Atoi(c.settings["max_connections"])
	const name = "MaxOpenConns"
	switch {
	case most == 0:
		c.addFindingAt("client", name, "unlimited", "under load, the server refuses connections of this or another service")
	case err == nil && allowed > 0 && most > allowed: // zero means any number to TiDB
		c.addFindingAt("client", name, strconv.Itoa(most), fmt.Sprintf("the server allows %d connections", allowed))
	}
}

// askClock reports a server on which SYSDATE is NOW, because leases then begin before the wait of a statement for a lock. askClock
// also reports a session that has set the time of NOW.
func (c *check) askClock(ctx context.Context) error {
	var slept, stands, differs bool
	const query = "SELECT SLEEP(0.001), SYSDATE(6) = NOW(6), ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())) > 60 LIMIT 1"
	if err := c.conn.QueryRowContext(ctx, query).Scan(&slept, &stands, &differs); err != nil {
		return err
	}
	if differs {
		c.addFinding("timestamp", "set", "the clock of the session stands still: leases do not lapse, and records do not expire")
	}
	if stands {
		c.addFinding("sysdate_is_now", "ON", "a claim that waits for a lock gets a shorter lease")
	}
	return nil
}

// askReplicas reports replicas for which no commit waits. A database user without the privilege PROCESS sees no replicas.
func (c *check) askReplicas(ctx context.Context) error {
	for _, semi := range []string{"rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"} {
		if c.settings[semi] == "ON" {
			return nil
		}
	}
	var replicas int
	query := forAnySession("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%' LIMIT 1")
	if err := c.conn.QueryRowContext(ctx, query).Scan(&replicas); err != nil {
		return err
	}
	if replicas > 0 {
		c.addFinding("replication", "asynchronous", "a failover loses the last records that were acknowledged")
	}
	return nil
}

// askTable reports a table that is missing, is different from the table of Migrate, or has an engine without transactions.
func (c *check) askTable(ctx context.Context) error {
	table, err := c.describeTable(ctx, c.conn)
	c.isUnready = table.engine == "" || table.difference != nil
	switch {
	case err != nil:
		return err
	case table.engine == "":
		return fmt.Errorf("there is no table %s: call Migrate", c.opts.name())
	case table.engine != "InnoDB":
		c.addFinding("ENGINE of table "+c.opts.name(), table.engine, "a crash of the server loses records or damages them")
	}
	return table.difference
}

// askIndex reports a missing index on expires, or a primary key other than the operation, as in a partitioned table.
func (c *check) askIndex(ctx context.Context) error {
	var primary, operation, expires sql.NullInt64
	query := forAnySession(`SELECT SUM(INDEX_NAME = 'PRIMARY'), SUM(INDEX_NAME = 'PRIMARY' AND COLUMN_NAME = 'operation'),
    SUM(COLUMN_NAME = 'expires' AND SEQ_IN_INDEX = 1)
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? LIMIT 1`)
	err := c.conn.QueryRowContext(ctx, query, c.opts.table()).Scan(&primary, &operation, &expires)
	if err != nil || c.isUnready {
		return err
	}
	if primary.Int64 != 1 || operation.Int64 != 1 {
		c.addFinding("PRIMARY KEY of table "+c.opts.name(), "not (operation)", "a key may have several records")
	}
	if expires.Int64 == 0 {
		c.addFinding("index of table "+c.opts.name(), "missing on expires", "Maintain reads the whole table each time")
	}
	return nil
}

// askStatements prepares all statements, because an error tells which column or privilege is missing.
func (c *check) askStatements(ctx context.Context) error {
	if c.isUnready {
		return nil
	}
	var faults []error
	read := "read"
	if c.opts.MaxUserRecords > 0 {
		read = "read_counted"
	}
	for _, file := range []string{
		read, "insert", "replace", "extend", "complete", "release", "free", "checkpoint", "checkpoints", "lock",
		"forget", "resolve", "find_expired", lockExpired(c.versionText), "delete_expired",
	} {
		stmt, err := c.conn.PrepareContext(ctx, c.opts.statement(file))
		switch {
		case err == nil:
			_ = stmt.Close()
		case !refusesWrites(err): // askServer has reported a read-only server
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(faults...)
}

// ErrEngine means that the store cannot be used on the server: the server is older than MySQL 8.0 or MariaDB 10.6, is an engine on
// which the promises of the store are not known to hold, or has sessions with autocommit off or with a character_set_results of
// several bytes, such as UTF-16. Begin claims no key, and no handler runs, even with FailOpen, because ErrEngine wraps
// [errors.ErrUnsupported]. The README lists the engines.
var ErrEngine = fmt.Errorf("mysqlstore: the server cannot be used: %w", errors.ErrUnsupported)

// Users of a feature.
const (
	byStore     = "New"
	bySteps     = "DoTx and DoInTx"
	byOperators = "Inspect, Forget and Resolve"
	byExpiry    = "Maintain" // also works without the feature
)

// engine is a [sqlstore.Engine] and the form of its VERSION().
type engine struct {
	sqlstore.Engine
	versionForm *regexp.Regexp // the first group is the version
}

var engines = []engine{
	{sqlstore.Engine{Name: "TiDB", Versions: []string{"7.5", "8.1", "8.5"}}, regexp.MustCompile(`(?i)-TiDB-?v?([\d.]*)`)},
	{sqlstore.Engine{Name: "PlanetScale"}, regexp.MustCompile(`(?i)PlanetScale()`)},
	{sqlstore.Engine{Name: "Vitess"}, regexp.MustCompile(`(?i)Vitess()`)},
}

// features are the features of MySQL that the statements use, and that some engines lack. A test compares the list with the
// statements.
var features = []sqlstore.Feature{
	{
		Name: "primary keys that are unique across shards", Uses: []string{byStore, bySteps}, Words: "primary",
		Has:   map[string]string{"TiDB": tidb + "constraints"},
		Lacks: map[string]string{"PlanetScale": planetscale, "Vitess": vitess},
	},
	{
		Name: "the start time of the statement and the current time, in microseconds", Uses: []string{byStore, bySteps},
		Words: "now sysdate utc_timestamp timestampdiff microsecond timestamp",
		Has:   map[string]string{"TiDB": tidb + "date-and-time-functions"},
	},
	{
		Name: "error numbers for conflicts between transactions", Uses: []string{byStore, bySteps},
		Has: map[string]string{"TiDB": tidb + "error-codes"},
	},
	{
		Name: "FOR UPDATE that waits outside of transactions", Uses: []string{bySteps}, Words: "for",
		Lacks: map[string]string{"TiDB": tidb + "pessimistic-transaction"},
	},
	{Name: "LAST_INSERT_ID with a value", Uses: []string{bySteps}, Words: "last_insert_id idempotency_wait"},
	{
		Name: "FOR UPDATE NOWAIT", Uses: []string{byOperators}, Words: "for nowait",
		Has: map[string]string{"TiDB": tidb + "pessimistic-transaction"},
	},
	{
		Name: "FOR UPDATE SKIP LOCKED", Uses: []string{byExpiry}, Words: "for skip locked",
		Lacks: map[string]string{"TiDB": "https://github.com/pingcap/tidb/issues/18207"},
	},
}

// Addresses of documentation.
const (
	tidb        = "https://docs.pingcap.com/tidb/stable/"
	planetscale = "https://planetscale.com/docs/vitess/sharding/vindexes"
	vitess      = "https://vitess.io/docs/22.0/reference/features/vindexes/"
)

// engineOf returns the engine with the VERSION() says, and the version of the engine. engineOf returns nil for MySQL and MariaDB.
func engineOf(says string) (*engine, string) {
	for i := range engines {
		if said := engines[i].versionForm.FindStringSubmatch(says); said != nil {
			return &engines[i], said[1]
		}
	}
	return nil, ""
}

var (
	numbers = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)(?:.*(MariaDB))?`) // MariaDB 10 reports 5.5.5- before its version
	foreign = regexp.MustCompile(`-[A-Za-z_]+-v\d`)                            // such as "8.0.30-Name-v1.0", which MySQL never reports
)

// isOld reports whether says is the VERSION() of a MySQL before 8.0, or of a MariaDB before 10.6.
func isOld(says string) bool {
	said := numbers.FindStringSubmatch(says)
	if said == nil {
		return false
	}
	major, _ := strconv.Atoi(said[1])
	minor, _ := strconv.Atoi(said[2])
	if said[3] == "" {
		return major < 8
	}
	return major < 10 || major == 10 && minor < 6
}

// checkServerVersion returns an error if the store cannot be used on a server with the VERSION() says. Newer servers and unknown
// engines are accepted; [Table.Check] reports unknown engines.
func checkServerVersion(says string) error {
	e, version := engineOf(says)
	switch {
	case strings.Contains(says, "\x00"):
		return fmt.Errorf("%w: character_set_results of the session has several bytes for each character", ErrEngine)
	case e == nil && isOld(says):
		return fmt.Errorf("%w: version %q is older than MySQL 8.0 or MariaDB 10.6", ErrEngine, says)
	case e == nil:
		return nil
	}
	return e.checkFeatures(version, byStore)
}

// checkFeatures returns an error if a version of the engine lacks a feature for one of the uses.
func (e *engine) checkFeatures(version string, uses ...string) error {
	if why := e.Refusal(features, version, uses...); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrEngine, e.Name, why)
	}
	return nil
}

// checkStepFeatures returns an error if the admitted server cannot run steps in transactions.
func (t *Table) checkStepFeatures() error {
	if e, version := engineOf(*t.serverVersion.Load()); e != nil {
		return e.checkFeatures(version, byStore, bySteps)
	}
	return nil
}

// admitServer returns an error if the server cannot be used. admitServer asks the server once, and remembers the version.
func (t *Table) admitServer(ctx context.Context) error {
	if t.serverVersion.Load() != nil {
		return nil
	}
	var says string
	err := t.retryStep(ctx, func() error { return t.db.QueryRowContext(ctx, askVersion).Scan(&says) })
	if err == nil {
		err = checkServerVersion(says)
	}
	if err == nil {
		t.serverVersion.Store(&says)
	}
	return err
}

const askVersion = "SELECT VERSION() LIMIT 1" // sql_select_limit may be 0

// lockExpired returns the statement that locks expired records for Maintain. An engine without SKIP LOCKED waits for locked records,
// but only as long as one statement takes, because steps in transactions are refused on such an engine.
func lockExpired(says string) string {
	if e, _ := engineOf(says); e != nil && len(e.Missing(features, byExpiry)) > 0 {
		return "lock_expired" + waiting
	}
	return "lock_expired"
}
