package mysqlstore

import (
	"strings"

	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Now is the expression for the current time in the statements.
var Now = sqlstore.Statement(files, "now")

// Waited returns a query for the seconds that a statement has waited, if it began at the local time now, and gets
// the record at the local time sysdate.
func Waited(now, sysdate string) string {
	literal := func(s string) string { return "TIMESTAMP'" + s + "'" }
	began := "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
	waited := strings.NewReplacer("NOW(6)", literal(now), "SYSDATE(6)", literal(sysdate), began, "0").Replace(Now)
	return "SELECT (" + waited + ") / 1e6"
}

// Features are the features that the statements use beyond plain SQL.
var Features = features

// These are the uses of features.
const (
	ByStore     = byStore
	BySteps     = bySteps
	ByOperators = byOperators
	ByExpiry    = byExpiry
)

// EngineRows returns the rows of the README's table.
func EngineRows() (rows []string) {
	for _, e := range engines {
		rows = append(rows, enginetest.ReadmeRow(e.Engine, features, byStore, bySteps))
	}
	return rows
}

// Statements returns all statements by the names of their files.
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
