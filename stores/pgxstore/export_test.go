package pgxstore

import (
	"strings"

	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
)

// WithClock returns the options with a clock of the test: now is SQL for the time.
func (o Options) WithClock(now string) Options { return o.withNow(now) }

// Statement returns a statement in the form that a store sends.
func (o Options) Statement(file string) string { return byPlace.Replace(o.readStatement(file)) }

// Statements returns all statements of stores by the names of their files.
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

// Features are the features that the statements use beyond plain SQL.
var Features = features

// These are the uses of features.
const (
	ByStore  = byStore
	BySteps  = bySteps
	ByExpiry = byExpiry
	ByQuota  = byQuota
)

// EngineRows returns the rows of the README's table.
func EngineRows() (rows []string) {
	for _, e := range engines {
		rows = append(rows, enginetest.ReadmeRow(e.Engine, features, byStore, bySteps))
	}
	return rows
}
