package sqlitestore

import (
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"

	"modernc.org/sqlite"
)

// guard keeps the function of a step from ending its transaction, from changing the table of the records, and from leaving
// anything behind on the connection. SQLite asks guard about each statement that is prepared, also about each further statement
// in one string.
type guard struct {
	inStep   atomic.Bool // statements are those of the function of a step
	hasEnded atomic.Bool // SQLite has rolled back the transaction, as after some errors
	isMarked atomic.Bool // the connection has something that outlasts the transaction
}

func (g *guard) watch(conn *sql.Conn) error {
	return conn.Raw(func(driven any) error {
		hooks, isHooked := driven.(sqlite.HookRegisterer)
		statements, isAsked := driven.(sqlite.AuthorizerRegisterer)
		if !isHooked || !isAsked {
			return fmt.Errorf("the driver %T has no hooks", driven)
		}
		hooks.RegisterCommitHook(g.onCommit)
		hooks.RegisterRollbackHook(g.onRollback)
		return statements.RegisterAuthorizer(g.authorize)
	})
}

// onCommit refuses a commit by the function: after a rollback by SQLite, each statement would commit by itself.
func (g *guard) onCommit() int32 {
	if g.inStep.Load() {
		return 1
	}
	return 0
}

func (g *guard) onRollback() { g.hasEnded.Store(true) }

func (g *guard) authorize(
	action sqlite.AuthorizerActionCode, first, second, database, _ string,
) sqlite.AuthorizerReturnCode {
	if !g.inStep.Load() {
		return sqlite.AuthorizerOK
	}
	if database == "temp" {
		g.isMarked.Store(true)
	}
	switch action {
	case sqlite.AuthTransaction, sqlite.AuthAttach, sqlite.AuthDetach:
		return sqlite.AuthorizerDeny
	case sqlite.AuthInsert, sqlite.AuthUpdate, sqlite.AuthDelete, sqlite.AuthDropTable:
		if isRecords(first) {
			return sqlite.AuthorizerDeny
		}
	case sqlite.AuthAlterTable, sqlite.AuthCreateIndex, sqlite.AuthDropIndex, sqlite.AuthCreateTrigger,
		sqlite.AuthCreateTempTrigger, sqlite.AuthDropTrigger:
		if isRecords(second) {
			return sqlite.AuthorizerDeny
		}
	case sqlite.AuthPragma:
		if passing[strings.ToLower(first)] {
			break
		}
		if second != "" {
			return sqlite.AuthorizerDeny
		}
		g.isMarked.Store(true) // it reads, or has the argument ''
	}
	if g.hasEnded.Load() {
		return sqlite.AuthorizerDeny
	}
	return sqlite.AuthorizerOK
}

// isRecords reports whether a table is that of the records, which only the store changes.
func isRecords(table string) bool { return strings.EqualFold(table, "idempotency_records") }

// passing are the PRAGMAs that may have an argument: they read, or end with the transaction, or are a part of it.
var passing = map[string]bool{
	"application_id": true, "defer_foreign_keys": true, "foreign_key_check": true, "foreign_key_list": true,
	"index_info": true, "index_list": true, "index_xinfo": true, "integrity_check": true, "quick_check": true,
	"table_info": true, "table_list": true, "table_xinfo": true, "user_version": true,
}
