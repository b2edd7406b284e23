package sqlitestore

import (
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"

	"modernc.org/sqlite"
)

// guard stops the function of a step from ending its transaction, from changing the table of records, and from leaving
// traces on the connection. SQLite calls guard for each prepared statement, including every statement after the first
// in a string.
type guard struct {
	inStep    atomic.Bool // the connection is running the function of a step
	hasEnded  atomic.Bool // SQLite has rolled back the transaction, for example after an error
	hasTraces atomic.Bool // the connection has state that outlasts the transaction
}

// registerHooks registers guard on conn.
func (g *guard) registerHooks(conn *sql.Conn) error {
	return conn.Raw(func(driven any) error {
		hooks, isHooked := driven.(sqlite.HookRegisterer)
		statements, isAsked := driven.(sqlite.AuthorizerRegisterer)
		if !isHooked || !isAsked {
			return fmt.Errorf("the driver's connection, a %T, lacks the hooks of modernc.org/sqlite", driven)
		}
		hooks.RegisterCommitHook(g.onCommit)
		hooks.RegisterRollbackHook(g.onRollback)
		return statements.RegisterAuthorizer(g.authorizeStatement)
	})
}

// onCommit refuses a commit by the function of a step. After a rollback by SQLite, each statement of the function would
// otherwise commit by itself.
func (g *guard) onCommit() int32 {
	if g.inStep.Load() {
		return 1
	}
	return 0
}

func (g *guard) onRollback() { g.hasEnded.Store(true) }

// authorizeStatement denies the actions forbidden to the function of a step.
func (g *guard) authorizeStatement(
	action sqlite.AuthorizerActionCode, first, second, database, _ string,
) sqlite.AuthorizerReturnCode {
	if !g.inStep.Load() {
		return sqlite.AuthorizerOK
	}
	if database == "temp" {
		g.hasTraces.Store(true)
	}
	switch action {
	case sqlite.AuthTransaction, sqlite.AuthAttach, sqlite.AuthDetach:
		return sqlite.AuthorizerDeny
	case sqlite.AuthInsert, sqlite.AuthUpdate, sqlite.AuthDelete, sqlite.AuthDropTable:
		if isRecordsTable(first) {
			return sqlite.AuthorizerDeny
		}
	case sqlite.AuthAlterTable, sqlite.AuthCreateIndex, sqlite.AuthDropIndex, sqlite.AuthCreateTrigger,
		sqlite.AuthCreateTempTrigger, sqlite.AuthDropTrigger:
		if isRecordsTable(second) {
			return sqlite.AuthorizerDeny
		}
	case sqlite.AuthPragma:
		if allowedPragmas[strings.ToLower(first)] {
			break
		}
		if second != "" {
			return sqlite.AuthorizerDeny
		}
		g.hasTraces.Store(true) // the PRAGMA reads, or has the argument ''
	}
	if g.hasEnded.Load() {
		return sqlite.AuthorizerDeny
	}
	return sqlite.AuthorizerOK
}

// isRecordsTable reports whether table is the table of records, which only the store may change.
func isRecordsTable(table string) bool { return strings.EqualFold(table, "idempotency_records") }

// allowedPragmas are the PRAGMAs that may have an argument, because they read, end with the transaction, or are a part
// of the transaction.
var allowedPragmas = map[string]bool{
	"application_id": true, "defer_foreign_keys": true, "foreign_key_check": true, "foreign_key_list": true,
	"index_info": true, "index_list": true, "index_xinfo": true, "integrity_check": true, "quick_check": true,
	"table_info": true, "table_list": true, "table_xinfo": true, "user_version": true,
}
