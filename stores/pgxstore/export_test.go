package pgxstore

import (
	"strings"

	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
)

// At returns the options with a clock of the test's own: now is SQL for the time.
func (o Options) At(now string) Options { return o.withNow(now) }

// Statement returns a statement as a store sends it.
func (o Options) Statement(file string) string { return byPlace.Replace(o.readStatement(file)) }

// Statements returns all statements that stores send, by the names of their files.
func (o Options) Statements() map[string]string {
	statements := map[string]string{}
	entries, err := sqlFiles.ReadDir("sql")
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		name := strings.TrimSuffix(entry.Name(), ".sql")
		if !strings.HasPrefix(name, "0001_") {
			statements[name] = byPlace.Replace(o.readFile(name))
		}
	}
	return statements
}

// Features are what the statements use beyond what every engine has.
var Features = features

// Who uses a feature.
const (
	ByStore  = byStore
	BySteps  = bySteps
	ByExpiry = byExpiry
)

// EngineRows returns the table of the README.
func EngineRows() (rows []string) {
	for _, e := range engines {
		rows = append(rows, enginetest.ReadmeRow(e.Engine, features, byStore, bySteps))
	}
	return rows
}
