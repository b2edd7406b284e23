package pgxstore

import (
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/enginetest"
)

// At returns the options with a clock of the test's own: now is SQL for the time.
func (o Options) At(now string) Options { return o.at(now) }

// Statement returns a statement as a store sends it.
func (o Options) Statement(file string) string { return byPlace.Replace(o.statement(file)) }

// Commits reports whether a transaction refuses sql as a commit.
func Commits(sql string) bool { return commits(sql) }

// Statements returns all statements that stores send, by the names of their files.
func (o Options) Statements() map[string]string {
	statements := map[string]string{}
	entries, err := files.ReadDir("sql")
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".sql")
		if !strings.HasPrefix(name, "0001_") && name != "record" {
			statements[name] = byPlace.Replace(o.read(name))
		}
	}
	for _, name := range []string{"record_first", "record_next"} {
		statements[name] = o.statements()[name] + "\n"
	}
	return statements
}

// LockNumber returns what advisory locks call a key.
func LockNumber(o Options, key idempotency.Key) int64 {
	return NewTable(nil, o).lockNumber(key.Digest())
}

// Features are what the statements use beyond what every engine has.
var Features = features

// Who uses a feature.
const (
	ByStore     = byStore
	ByTxStore   = byTxStore
	BySteps     = bySteps
	ByOperators = byOperators
	ByExpiry    = byExpiry
)

// EngineRows returns the table of the README.
func EngineRows() (rows []string) {
	for _, e := range engines {
		rows = append(rows, enginetest.Row(e.Engine, features, byStore, byTxStore))
	}
	return rows
}
