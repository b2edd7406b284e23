package sqlitestore

import (
	"time"

	"modernc.org/sqlite"
)

// WithClock returns the options with now as the clock.
func (o Options) WithClock(now func() time.Time) Options {
	o.now = now
	return o
}

// UserFull is the statement that counts the records of a user.
var UserFull = statement("user_full")

// OnCommit registers a function that SQLite calls before each commit that writes. If do returns a number other than
// zero, the commit fails.
func (s *Store) OnCommit(do func() int32) error {
	guard := s.writer.guard
	hook := func() int32 {
		if refusal := guard.onCommit(); refusal != 0 || do == nil {
			return refusal
		}
		return do()
	}
	return s.writer.conn.Raw(func(conn any) error {
		conn.(sqlite.HookRegisterer).RegisterCommitHook(hook)
		return nil
	})
}

// ExecOnWriter runs a statement on the writer's connection. The store must be idle meanwhile.
func (s *Store) ExecOnWriter(sql string) error {
	_, err := s.writer.conn.ExecContext(statementContext, sql)
	return err
}
