package pgxstore

// At returns the options with a clock of the test's own: now is SQL for the time.
func (o Options) At(now string) Options { return o.at(now) }

// Statement returns a statement as a store sends it.
func (o Options) Statement(file string) string { return o.statement(file) }

// Commits reports whether a transaction refuses sql as a commit.
func Commits(sql string) bool { return commits(sql) }
