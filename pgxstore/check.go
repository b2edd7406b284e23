package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
)

// Check reports what would break the promise of the store, or keep it from working. Call it when the program starts. It
// returns all findings joined. Each has one of these types, for [errors.AsType] to find:
//
//   - [*idempotency.UnsafeSetting]: the server is a standby or older than PostgreSQL 14, it or its standbys may forget what
//     was acknowledged, the table is not logged, or a pooler refuses transactions.
//   - [*UnreadyTable]: the table is missing, out of date, newer than this package, or made with another PartitionDays;
//     somebody has changed its columns; or nobody creates its partitions.
//   - [*MissingPrivilege]: the role may not do what the stores or Maintain do.
//
// Any other error says that the options are wrong, or that the server could not be asked. [idempotency.Findings]
// returns the findings one by one.
func (t *Table) Check(ctx context.Context) error {
	if t.faults != nil {
		return errors.Join(t.faults)
	}
	var findings []error
	err := t.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		findings, err = t.checkOn(ctx, conn)
		return err
	})
	if err != nil {
		findings = append(findings, fmt.Errorf("pgxstore: check: %w", err))
	}
	return errors.Join(findings...)
}

// checkOn returns what it has found so far if there is an error.
func (t *Table) checkOn(ctx context.Context, conn *pgxpool.Conn) ([]error, error) {
	findings, err := checkServer(ctx, conn)
	if err != nil || isTooOld(findings) { // the other questions need what it does not have
		return findings, err
	}
	for _, check := range []func(context.Context, *pgxpool.Conn) ([]error, error){
		t.checkTable, t.checkLogged, t.checkPrivileges, t.checkRowSecurity, checkStandbys,
		checkTransactions, // last, because a pooler that refuses them closes the connection
	} {
		found, err := check(ctx, conn)
		findings = append(findings, found...)
		if err != nil {
			return findings, err
		}
	}
	return findings, nil
}

const (
	versionSetting = "server_version_num"
	standbySetting = "synchronous_standby_names"
)

// hazards are the settings that the promise rests on.
var hazards = []struct {
	name   string
	unsafe func(value string, all settings) bool
	risk   string
}{
	{versionSetting, isBefore14, "the statements need PostgreSQL 14 or newer"},
	{"in_hot_standby", is("on"), "a standby can neither claim nor know the last records"},
	{"default_transaction_read_only", is("on"), "nothing can be claimed or recorded"},
	{"synchronous_commit", is("off"), "a crash loses the last records"},
	{"synchronous_commit", withStandby("local"), "commits do not wait for the standby: a failover loses the last records"},
	{"synchronous_commit", withStandby("remote_write"),
		"a failover loses the last records if the system of the standby crashes, too"},
	{"fsync", is("off"), "a crash of the machine loses records"},
	{"full_page_writes", is("off"), "a crash of the machine may damage records"},
}

// settings are those of the session.
type settings map[string]string

func is(unsafe string) func(string, settings) bool {
	return func(value string, _ settings) bool { return value == unsafe }
}

// withStandby is for what makes a difference only if commits are to wait for a standby.
func withStandby(unsafe string) func(string, settings) bool {
	return func(value string, all settings) bool { return value == unsafe && all[standbySetting] != "" }
}

// isBefore14 reports whether a server lacks date_bin and DETACH PARTITION CONCURRENTLY.
func isBefore14(value string, _ settings) bool {
	version, err := strconv.Atoi(value)
	return err == nil && version < 14_00_00
}

func isTooOld(findings []error) bool {
	return slices.ContainsFunc(findings, func(err error) bool {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](err)
		return ok && unsafe.Setting == versionSetting
	})
}

// checkServer reports settings as the session has them.
func checkServer(ctx context.Context, conn *pgxpool.Conn) (findings []error, err error) {
	rows, err := conn.Query(ctx, "SELECT name, setting FROM pg_settings")
	if err != nil {
		return nil, err
	}
	all := make(settings)
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		all[name] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, h := range hazards {
		if value := all[h.name]; h.unsafe(value, all) {
			findings = append(findings, &idempotency.UnsafeSetting{Node: node(conn), Setting: h.name, Value: value, Risk: h.risk})
		}
	}
	return findings, nil
}

// node returns the address of the server, or of the pooler in front of it.
func node(conn *pgxpool.Conn) string { return conn.Conn().PgConn().Conn().RemoteAddr().String() }

// checkStandbys reports that no commit waits for the standbys that there are. A subscriber of logical replication is none.
// A role without the privileges of pg_monitor sees that there is a standby, but not its state.
func checkStandbys(ctx context.Context, conn *pgxpool.Conn) ([]error, error) {
	var asynchronous bool
	err := conn.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names') = '' AND EXISTS (
    SELECT FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
    WHERE s.slot_type IS DISTINCT FROM 'logical'
        AND coalesce(r.state, 'hidden') IN ('streaming', 'catchup', 'hidden'))`).Scan(&asynchronous)
	if err != nil || !asynchronous {
		return nil, err
	}
	return []error{&idempotency.UnsafeSetting{
		Node: node(conn), Setting: standbySetting, Value: "empty",
		Risk: "replication is asynchronous: a failover loses the last records that were acknowledged",
	}}, nil
}

// checkTransactions reports a pooler that allows none, as PgBouncer does in statement mode.
func checkTransactions(ctx context.Context, conn *pgxpool.Conn) ([]error, error) {
	_, err := conn.Exec(ctx, "BEGIN")
	if err == nil {
		_, err = conn.Exec(ctx, "ROLLBACK")
		return nil, err
	}
	refusal, refused := errors.AsType[*pgconn.PgError](err)
	if !refused {
		return nil, err
	}
	return []error{&idempotency.UnsafeSetting{
		Node: node(conn), Setting: "BEGIN", Value: "refused (" + refusal.Message + ")",
		Risk: "TxStore and Maintain need transactions",
	}}, nil
}

// checkTable reports what is wrong with the table, and with its partitions if it is otherwise as it should be.
func (t *Table) checkTable(ctx context.Context, conn *pgxpool.Conn) ([]error, error) {
	err := t.checkVersion(ctx, conn)
	if err == nil && t.opts.divided() {
		err = t.checkPartitions(ctx, conn)
	}
	if unready, ok := errors.AsType[*UnreadyTable](err); ok {
		return []error{unready}, nil
	}
	return nil, err
}

func (t *Table) checkVersion(ctx context.Context, conn *pgxpool.Conn) error {
	have, err := t.version(ctx, conn)
	if err != nil {
		return err
	}
	if want := t.newest(); have < want {
		return t.unready(callMigrate, "table %s has version %d, not %d", t.opts.name(""), have, want)
	}
	return nil
}

// checkPartitions reports that from today on, in a row, no more than half of the spare days are ready, or that there are
// records which the stores do not look for.
func (t *Table) checkPartitions(ctx context.Context, conn *pgxpool.Conn) error {
	now, partitions, err := t.partitions(ctx, conn)
	if err != nil {
		return err
	}
	var beyond bool
	err = conn.QueryRow(ctx, t.opts.expand("SELECT EXISTS (SELECT FROM {records} WHERE NOT "+expiresBefore+")")).Scan(&beyond)
	if err != nil {
		return err
	}
	if beyond {
		return t.unready("set PartitionDays to the longest TTL", "table %s has records that expire in more than %d days",
			t.opts.name(""), t.opts.PartitionDays)
	}
	ready := 0
	for has(partitions, dayOf(now).AddDate(0, 0, ready), attached) {
		ready++
	}
	if spare := ready - t.opts.PartitionDays - 1; spare <= t.opts.spareDays()/2 {
		return t.unready(callMaintain, "only %d partitions are ready of table %s", ready, t.opts.name(""))
	}
	return nil
}

// checkLogged reports tables that are not in the write-ahead log: the table or its partitions.
func (t *Table) checkLogged(ctx context.Context, conn *pgxpool.Conn) (findings []error, err error) {
	rows, err := conn.Query(ctx, `SELECT c.oid::regclass::text FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relpersistence <> 'p' AND (c.oid = to_regclass($1::text) OR i.inhparent = to_regclass($1::text))`, t.opts.name(""))
	if err != nil {
		return nil, err
	}
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error {
		findings = append(findings, &idempotency.UnsafeSetting{
			Node: node(conn), Setting: "table " + name, Value: "unlogged", Risk: "a crash empties it",
		})
		return nil
	})
	return findings, err
}

// checkPrivileges reports what the role may not do with the table, as far as there is one.
func (t *Table) checkPrivileges(ctx context.Context, conn *pgxpool.Conn) (findings []error, err error) {
	rows, err := conn.Query(ctx, `
SELECT current_user::text, needed.privilege, needed.object, needed.use
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
    SELECT p, 'table ' || c.oid::regclass, CASE WHEN p <> 'DELETE' THEN 'the stores'
        WHEN c.relkind = 'p' THEN 'TxStore' ELSE 'TxStore and Maintain' END,
        has_table_privilege(c.oid, p)
    FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
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
WHERE c.oid = to_regclass($1::text) AND NOT needed.granted`, t.opts.name(""), t.opts.claimFunction())
	if err != nil {
		return nil, err
	}
	var lack MissingPrivilege
	_, err = pgx.ForEachRow(rows, []any{&lack.Role, &lack.Privilege, &lack.Object, &lack.For}, func() error {
		found := lack
		findings = append(findings, &found)
		return nil
	})
	return findings, err
}

// checkRowSecurity reports that policies decide which records the role sees.
func (t *Table) checkRowSecurity(ctx context.Context, conn *pgxpool.Conn) ([]error, error) {
	var active bool
	err := conn.QueryRow(ctx, "SELECT coalesce(row_security_active(to_regclass($1::text)), false)", t.opts.name("")).Scan(&active)
	if err != nil || !active {
		return nil, err
	}
	return []error{t.unready("give the role BYPASSRLS, or the table no row security",
		"row security is active on table %s: where a policy hides a record, its key can be neither claimed nor replayed",
		t.opts.name(""))}, nil
}
