package pgxstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency"
)

// wrapError adds the name of the failed operation to err. The result is nil if err is nil.
func wrapError(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pgxstore: %s: %w", operation, err)
}

// hasCode reports whether err is an error of the server whose SQLSTATE begins with one of codes. The first two characters
// of an SQLSTATE are its class.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(e.Code, code) })
}

// refusesWrites reports whether the server refuses writes: it is a standby, or was made read-only.
func refusesWrites(err error) bool { return hasCode(err, "25006") }

// isTooMany reports whether the server has refused a connection because all its connections are in use.
func isTooMany(err error) bool { return hasCode(err, "53300") }

// isStatementForgotten reports whether the session has lost a prepared statement, for example after a DEALLOCATE ALL by a
// pooler.
func isStatementForgotten(err error) bool { return hasCode(err, "26000") }

// isLockTimeout reports whether the wait for a lock exceeded lock_timeout.
func isLockTimeout(err error) bool { return hasCode(err, "55P03") }

// isUnreachable reports whether a connection could not be opened.
func isUnreachable(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// errOvertaken reports that a concurrent session has changed the record since the statement took its snapshot.
var errOvertaken = errors.New("pgxstore: overtaken by another claim")

// isLostRace reports whether a concurrent session has won: by a claim of the key, by a serialization failure, or in a
// deadlock. The statement must be repeated.
func isLostRace(err error) bool {
	return errors.Is(err, errOvertaken) || hasCode(err, "40001", "40P01")
}

// isRefused reports whether the server has refused a statement and keeps the session, so that the transaction is undone
// for certain. All other errors may come after the commit, even an error of the server that ends the session.
func isRefused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// isAnswer reports whether the server has replied: err is nil, or says that the statement had no effect.
func isAnswer(err error) bool {
	return err == nil || isLostRace(err) || isRefused(err) || errors.Is(err, idempotency.ErrUserQuota)
}

// isBroken reports whether a repetition on another connection may succeed: the connection has failed, the server was
// starting or stopping, or the session has lost a prepared statement.
func isBroken(err error) bool {
	if _, misread := errors.AsType[pgx.ScanArgError](err); misread {
		return false // the server has replied, but the table was altered
	}
	for _, reply := range []error{errUnconfirmed, ErrEngine, idempotency.ErrClaimLost, idempotency.ErrUserQuota} {
		if errors.Is(err, reply) {
			return false // the server has replied
		}
	}
	_, answered := errors.AsType[*pgconn.PgError](err)
	return !answered || hasCode(err, "08", "57P") || isStatementForgotten(err) || isTooMany(err)
}

// isMissingPartition reports whether the server has refused a record because no partition accepts it.
func (t *Table) isMissingPartition(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && t.opts.isPartitioned() && e.Code == "23514" && e.TableName == t.opts.tableName() && e.ConstraintName == ""
}

// explainMissing adds the remedy to an error about a missing table, function or schema.
func (t *Table) explainMissing(err error) error {
	if !hasCode(err, "42P01", "42883", "3F000") { // undefined table, undefined function, invalid schema name
		return err
	}
	return fmt.Errorf("%w: %w", t.unreadyError(callMigrate, "table %s or its function is missing", t.opts.quotedName("")), err)
}
