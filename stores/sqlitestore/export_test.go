package sqlitestore

import (
	"time"

	"modernc.org/sqlite"
)

// At returns the options with another clock.
func (o Options) At(now func() time.Time) Options {
	o.now = now
	return o
}

// OnCommit has SQLite call a function in front of each commit that writes something. Other than zero, what it returns
// makes the commit fail.
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

// Execute runs a statement on the connection that writes. No step may run at the same time.
func (s *Store) Execute(sql string) error {
	_, err := s.writer.conn.ExecContext(statementContext, sql)
	return err
}
