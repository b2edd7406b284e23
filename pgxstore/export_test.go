package pgxstore

import "strings"

// At returns the options with a clock of the test's own: now is SQL for the time.
func (o Options) At(now string) Options { return o.at(now) }

// Statement returns a statement as a store sends it.
func (o Options) Statement(file string) string { return o.statement(file) }

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
			statements[name] = o.read(name)
		}
	}
	statements["record_first"], statements["record_next"] = o.recordStatements()
	return statements
}
