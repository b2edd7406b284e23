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

// Check reports what would break the promise of the store, or keep it from working. Call it when the program starts. It
// returns all findings joined. Each of these is an [*idempotency.UnsafeSetting] to weigh:
//
//   - a setting of the server by which it, or a replica in its place, may forget what was acknowledged, or stores
//     something else than it was sent;
//   - a server or a session that is read-only, or a session with autocommit off, in which nothing would be committed;
//   - a session that reads what is not committed, or whose clock stands still;
//   - a Galera cluster whose nodes may show old records;
//   - a table without its index, or of an engine that has no transactions;
//   - a pool that may have more connections than the server allows;
//   - another engine than MySQL and MariaDB: no store was ever run there.
//
// It returns [ErrEngine] alone, on a server on which the store does not work.
//
// Any other error says that the options are wrong, that the server could not be asked, or that the store does not work:
// the table is missing or of another version, say, or the user lacks a privilege for one of the statements.
// [idempotency.Findings] returns the findings one by one.
func (t *Table) Check(ctx context.Context) error {
	if t.faults != nil {
		return errors.Join(t.faults)
	}
	conn, err := t.db.Conn(ctx)
	if err != nil {
		return errors.Join(failure("check", err))
	}
	defer conn.Close()
	c := &check{Table: t, conn: conn}
	err = conn.QueryRowContext(ctx, askVersion).Scan(&c.says)
	if err == nil {
		err = refusal(c.says)
	}
	if err != nil {
		return errors.Join(failure("check", err))
	}
	for _, ask := range []func(context.Context) error{
		c.askServer, c.askClock, c.askReplicas, c.askTable, c.askIndex, c.askStatements,
	} {
		if err := ask(ctx); err != nil {
			c.findings = append(c.findings, failure("check", err))
		}
	}
	return errors.Join(c.findings...)
}

// check is what one connection tells.
type check struct {
	*Table
	conn     *sql.Conn
	says     string // what VERSION() returns
	node     string
	settings settings
	unready  bool // the table is missing, or differs
	findings []error
}

// unsafe adds a finding about the server.
func (c *check) unsafe(setting, value, risk string) { c.unsafeAt(c.node, setting, value, risk) }

func (c *check) unsafeAt(node, setting, value, risk string) {
	finding := &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk}
	c.findings = append(c.findings, finding)
}

// settings are those of the session.
type settings map[string]string

// leastPacket is more than what an answer of 1 MiB needs, which is the default of Options.MaxResponse, in hexadecimal
// digits and with its header.
const leastPacket = 3 << 20

// hazards are the settings that the promise rests on.
var hazards = []struct {
	name   string
	unsafe func(value string, all settings) bool
	risk   string
}{
	{"innodb_flush_log_at_trx_commit", is("0"), "if the server dies, it forgets the last second"},
	{"innodb_flush_log_at_trx_commit", is("2"), "if the machine dies, it forgets the last second"},
	{"sync_binlog", unsyncedBinlog, "if the machine dies, the replicas may not get the last records"},
	{"binlog_format", loggedAsStatements, "Maintain is refused, and replicas have times of their own"},
	{"innodb_doublewrite", is("OFF", "DETECT_ONLY"), "if the machine dies, records may be damaged"},
	{"sql_mode", isNotStrict, "what does not fit into a column is cut instead of refused"},
	{"max_allowed_packet", isLessThan(leastPacket), "larger answers are stored without their body"},
	{"autocommit", is("OFF"), "nothing would be committed: each request gets 503"},
	{"read_only", is("ON"), "nothing can be claimed or recorded"},
	{"tx_read_only", is("ON"), "nothing can be claimed or recorded"},
	{"transaction_read_only", is("ON"), "nothing can be claimed or recorded"},
	{"tx_isolation", is("READ-UNCOMMITTED"), "answers are replayed before they are committed"},
	{"transaction_isolation", is("READ-UNCOMMITTED"), "answers are replayed before they are committed"},
	{"wsrep_sync_wait", readsOfThePast, "a node that lags shows records as they were: a key that is free may seem to be taken"},
}

func is(unsafe ...string) func(string, settings) bool {
	return func(value string, _ settings) bool { return slices.Contains(unsafe, value) }
}

func unsyncedBinlog(value string, all settings) bool { return all["log_bin"] == "ON" && value != "1" }

func loggedAsStatements(value string, all settings) bool {
	return all["log_bin"] == "ON" && value == "STATEMENT"
}

// readsOfThePast reports whether a node of a Galera cluster does not wait, before it reads, for what others have committed.
func readsOfThePast(value string, all settings) bool {
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

// allSettings is SHOW VARIABLES in spite of sql_select_limit. MariaDB has the table in another place than MySQL.
const allSettings = "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM " +
	"/*M!100000 information_schema.SESSION_VARIABLES *//*!50720 performance_schema.session_variables */ LIMIT 10000"

// askServer reports settings as the session has them.
func (c *check) askServer(ctx context.Context) error {
	rows, err := c.conn.QueryContext(ctx, forAnySession(allSettings))
	if err != nil {
		return err
	}
	defer rows.Close() // Err tells what matters
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
			c.unsafe(h.name, value, h.risk)
		}
	}
	c.checkEngine()
	c.checkPool()
	return nil
}

// checkEngine reports another engine than MySQL and MariaDB.
func (c *check) checkEngine() {
	switch e, _ := engineOf(c.says); {
	case e != nil:
		c.unsafe("VERSION()", c.says, e.Name+" was only read about: no store was ever run there")
	case foreign.MatchString(c.says):
		c.unsafe("VERSION()", c.says, "this engine is not known: the promise of the store may not hold there")
	}
}

// checkPool reports a pool that the server will refuse connections to. A statement then fails at once, where it would
// have waited for a connection of the pool.
func (c *check) checkPool() {
	most := c.db.Stats().MaxOpenConnections
	allowed, err := strconv.Atoi(c.settings["max_connections"])
	const name = "MaxOpenConns"
	switch {
	case most == 0:
		c.unsafeAt("client", name, "unlimited", "under load the server refuses connections, or others get none")
	case err == nil && allowed > 0 && most > allowed: // zero means any number to TiDB
		c.unsafeAt("client", name, strconv.Itoa(most), fmt.Sprintf("the server allows %d connections", allowed))
	}
}

// askClock reports that SYSDATE is NOW, so that leases count from before a statement has waited. It also reports that the
// session has set the time of NOW.
func (c *check) askClock(ctx context.Context) error {
	var slept, stands, differs bool
	const query = "SELECT SLEEP(0.001), SYSDATE(6) = NOW(6), ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())) > 60 LIMIT 1"
	if err := c.conn.QueryRowContext(ctx, query).Scan(&slept, &stands, &differs); err != nil {
		return err
	}
	if differs {
		c.unsafe("timestamp", "set", "the clock of the session stands still: leases do not lapse, and records do not expire")
	}
	if stands {
		c.unsafe("sysdate_is_now", "ON", "a wait for another transaction makes a lease shorter")
	}
	return nil
}

// askReplicas reports that no commit waits for the replicas that there are. A user without the privilege PROCESS does
// not see them.
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
		c.unsafe("replication", "asynchronous", "a failover forgets the last records that were acknowledged")
	}
	return nil
}

// askTable reports a table that is missing or differs from what Migrate makes, or whose engine has no transactions.
func (c *check) askTable(ctx context.Context) error {
	table, err := c.describe(ctx, c.conn)
	c.unready = table.engine == "" || table.differs != nil
	switch {
	case err != nil:
		return err
	case table.engine == "":
		return fmt.Errorf("there is no table %s: call Migrate", c.opts.name())
	case table.engine != "InnoDB":
		c.unsafe("ENGINE of table "+c.opts.name(), table.engine, "a crash of the server loses records or damages them")
	}
	return table.differs
}

// askIndex reports that there is no index to find what has expired, or another primary key than the digest, as a table
// with partitions has it.
func (c *check) askIndex(ctx context.Context) error {
	var primary, digest, expires sql.NullInt64
	query := forAnySession(`SELECT SUM(INDEX_NAME = 'PRIMARY'), SUM(INDEX_NAME = 'PRIMARY' AND COLUMN_NAME = 'digest'),
    SUM(COLUMN_NAME = 'expires' AND SEQ_IN_INDEX = 1)
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? LIMIT 1`)
	err := c.conn.QueryRowContext(ctx, query, c.opts.table()).Scan(&primary, &digest, &expires)
	if err != nil || c.unready {
		return err
	}
	if primary.Int64 != 1 || digest.Int64 != 1 {
		c.unsafe("PRIMARY KEY of table "+c.opts.name(), "not (digest)", "a key may have several records")
	}
	if expires.Int64 == 0 {
		c.unsafe("index of table "+c.opts.name(), "missing on expires", "Maintain reads the whole table each time")
	}
	return nil
}

// askStatements prepares all statements, which tells what the table or the user lacks for them.
func (c *check) askStatements(ctx context.Context) error {
	if c.unready {
		return nil
	}
	var faults []error
	for _, file := range []string{
		"read", "insert", "replace", "extend", "complete", "release", "free", "checkpoint", "checkpoints", "lock",
		"forget", "resolve", "find_expired", lockExpired(c.says), "delete_expired",
	} {
		stmt, err := c.conn.PrepareContext(ctx, c.opts.statement(file))
		switch {
		case err == nil:
			_ = stmt.Close()
		case !refusesWrites(err): // which askServer has reported
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(faults...)
}

// ErrEngine says that a store cannot be used on the server: the server is older than MySQL 8.0 or MariaDB 10.6, or is
// another engine, of which it is not known that the store keeps its promise there. Or its sessions cannot be used, because
// autocommit is off, or because character_set_results is UTF-16, say. Nothing is claimed, and no handler
// runs, also with FailOpen: it wraps [errors.ErrUnsupported]. The README lists the engines.
var ErrEngine = fmt.Errorf("mysqlstore: the server cannot be used: %w", errors.ErrUnsupported)

// Who uses a feature.
const (
	byStore     = "New"
	bySteps     = "DoTx and DoInTx"
	byOperators = "Inspect, Forget and Resolve"
	byExpiry    = "Maintain" // which also works without
)

// engine is how a [sqlstore.Engine] tells what it is.
type engine struct {
	sqlstore.Engine
	is *regexp.Regexp // of what VERSION() returns; the first group is the version
}

var engines = []engine{
	{sqlstore.Engine{Name: "TiDB", Versions: []string{"7.5", "8.1", "8.5"}}, regexp.MustCompile(`(?i)-TiDB-?v?([\d.]*)`)},
	{sqlstore.Engine{Name: "PlanetScale"}, regexp.MustCompile(`(?i)PlanetScale()`)},
	{sqlstore.Engine{Name: "Vitess"}, regexp.MustCompile(`(?i)Vitess()`)},
}

// features are what the statements use beyond what every engine has. A test compares them with the statements.
var features = []sqlstore.Feature{
	{
		Name: "keys that are unique in the whole table, also where it is divided", Uses: []string{byStore, bySteps}, Words: "primary",
		Has:   map[string]string{"TiDB": tidb + "constraints"},
		Lacks: map[string]string{"PlanetScale": planetscale, "Vitess": vitess},
	},
	{
		Name: "the time of the statement and of the moment, in microseconds", Uses: []string{byStore, bySteps},
		Words: "now sysdate utc_timestamp timestampdiff microsecond timestamp",
		Has:   map[string]string{"TiDB": tidb + "date-and-time-functions"},
	},
	{
		Name: "errors for conflicts, which are repeated", Uses: []string{byStore, bySteps},
		Has: map[string]string{"TiDB": tidb + "error-codes"},
	},
	{
		Name: "SELECT ... FOR UPDATE that waits, also outside of a transaction", Uses: []string{bySteps}, Words: "for",
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

// Where documentation is, or begins.
const (
	tidb        = "https://docs.pingcap.com/tidb/stable/"
	planetscale = "https://planetscale.com/docs/vitess/sharding/vindexes"
	vitess      = "https://vitess.io/docs/22.0/reference/features/vindexes/"
)

// engineOf returns the engine that says so of itself, and its version; nil for MySQL and MariaDB.
func engineOf(says string) (*engine, string) {
	for i := range engines {
		if said := engines[i].is.FindStringSubmatch(says); said != nil {
			return &engines[i], said[1]
		}
	}
	return nil, ""
}

var (
	numbers = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)(?:.*(MariaDB))?`) // 5.5.5 stands in front of MariaDB 10
	foreign = regexp.MustCompile(`-[A-Za-z_]+-v\d`)                            // as "8.0.30-Name-v1.0" has it, and MySQL never
)

// isOld reports whether a version is that of a MySQL before 8.0, or a MariaDB before 10.6.
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

// refusal returns an error if the store cannot be used on a server that says so of itself. A server that is newer than this
// module is not refused, nor is an engine that nobody has heard of: [Table.Check] reports that.
func refusal(says string) error {
	e, version := engineOf(says)
	switch {
	case strings.Contains(says, "\x00"):
		return fmt.Errorf("%w: character_set_results of the session has several bytes for each character", ErrEngine)
	case e == nil && isOld(says):
		return fmt.Errorf("%w: version %q is older than MySQL 8.0 or MariaDB 10.6", ErrEngine, says)
	case e == nil:
		return nil
	}
	return e.refusal(version, byStore)
}

func (e *engine) refusal(version string, uses ...string) error {
	if why := e.Refusal(features, version, uses...); why != "" {
		return fmt.Errorf("%w: %s: %s", ErrEngine, e.Name, why)
	}
	return nil
}

// refusalOfSteps returns an error if the server, which was admitted, cannot run steps in transactions.
func (t *Table) refusalOfSteps() error {
	if e, version := engineOf(*t.says.Load()); e != nil {
		return e.refusal(version, byStore, bySteps)
	}
	return nil
}

// admit returns an error if the server cannot be used. It asks once: later, what the server says is known.
func (t *Table) admit(ctx context.Context) error {
	if t.says.Load() != nil {
		return nil
	}
	var says string
	err := t.retry(ctx, func() error { return t.db.QueryRowContext(ctx, askVersion).Scan(&says) })
	if err == nil {
		err = refusal(says)
	}
	if err == nil {
		t.says.Store(&says)
	}
	return err
}

const askVersion = "SELECT VERSION() LIMIT 1" // sql_select_limit may be 0

// lockExpired returns the statement that locks records for Maintain. An engine without SKIP LOCKED has to wait for records that
// others have locked. It waits for no longer than a statement takes, because steps in transactions are refused on such an engine.
func lockExpired(says string) string {
	if e, _ := engineOf(says); e != nil && len(e.Missing(features, byExpiry)) > 0 {
		return "lock_expired" + waiting
	}
	return "lock_expired"
}
