package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

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
