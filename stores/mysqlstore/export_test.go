package mysqlstore

import (
	"strings"

	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Now is the time as the statements have it.
var Now = sqlstore.Statement(files, "now")

// Waited returns a query for how long a statement has waited, in seconds, that began at a local time, and has the
// record at another one.
func Waited(now, sysdate string) string {
	literal := func(s string) string { return "TIMESTAMP'" + s + "'" }
	began := "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
	waited := strings.NewReplacer("NOW(6)", literal(now), "SYSDATE(6)", literal(sysdate), began, "0").Replace(Now)
	return "SELECT (" + waited + ") / 1e6"
}

// Features are what the statements use beyond what every engine has.
var Features = features

// Who uses a feature.
const (
	ByStore     = byStore
	BySteps     = bySteps
	ByOperators = byOperators
	ByExpiry    = byExpiry
)

// EngineRows returns the table of the README.
func EngineRows() (rows []string) {
	for _, e := range engines {
		rows = append(rows, enginetest.ReadmeRow(e.Engine, features, byStore, bySteps))
	}
	return rows
}

// Statements returns all statements, by the names of their files.
func (o Options) Statements() map[string]string {
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic(err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".sql")
		all[name] = o.statement(name)
	}
	return all
}
