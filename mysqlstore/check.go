package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency"
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
