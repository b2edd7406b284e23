package sqlitestore

import (
	"database/sql"
	"embed"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

//go:embed sql
var files embed.FS

// statement returns the statement in a file of the directory sql.
func statement(file string) string { return sqlstore.Statement(files, file) }

// statements are the prepared statements of the writing connection.
type statements struct {
	begin, commit, rollback                                         *sql.Stmt
	read, put, extend, complete, release, abandon, free, trim, used *sql.Stmt
	checkpoint, checkpoints, see, forget, resolve, userFull         *sql.Stmt
}

// statementTargets returns the variable for each prepared statement, by its text.
func (s *statements) statementTargets() map[string]**sql.Stmt {
	return map[string]**sql.Stmt{
		"BEGIN IMMEDIATE": &s.begin, "COMMIT": &s.commit, "ROLLBACK": &s.rollback,
		statement("read"): &s.read, statement("put"): &s.put, statement("extend"): &s.extend,
		statement("complete"): &s.complete, statement("release"): &s.release, statement("free"): &s.free, statement("abandon"): &s.abandon,
		statement("trim"): &s.trim, statement("used"): &s.used, statement("checkpoint"): &s.checkpoint, statement("checkpoints"): &s.checkpoints,
		statement("see"): &s.see, statement("forget"): &s.forget, statement("resolve"): &s.resolve,
		statement("user_full"): &s.userFull,
	}
}
