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

// failure returns the error of a step.
func wrapError(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pgxstore: %s: %w", step, err)
}

// hasCode reports whether err is one of the server's, with a code that is among those given, or begins with one of them:
// the first two characters of a code are its class.
func hasCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(e.Code, code) })
}

// refusesWrites reports whether the session is one of a standby, or of a server that was made read-only.
func refusesWrites(err error) bool { return hasCode(err, "25006") }

// isTooMany reports whether the server has refused a connection because it has as many as it may have.
func isTooMany(err error) bool { return hasCode(err, "53300") }

// isForgotten reports whether a session does not know a prepared statement, as after DEALLOCATE ALL by somebody else.
func isStatementForgotten(err error) bool { return hasCode(err, "26000") }

// isLockTimeout reports whether others have had a lock for too long.
func isLockTimeout(err error) bool { return hasCode(err, "55P03") }

// isUnreachable reports whether no connection could be made.
func isUnreachable(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// errOvertaken says that another session has claimed the key since it was looked at.
var errOvertaken = errors.New("pgxstore: overtaken by another claim")

// lostRace reports whether another session was faster, so that the step has to be judged anew: that session has claimed
// the key, there was a failure to serialize the two, or a deadlock.
func isLostRace(err error) bool {
	return errors.Is(err, errOvertaken) || hasCode(err, "40001", "40P01")
}

// isRefused reports whether the server has refused a statement and lives on, so that nothing of the transaction is
// left. Any other error, also that of a server as it ends the session, may come after the commit.
func isRefused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// isAnswer reports whether err is what the server has answered: that it has not done the step, unless err is nil.
func isAnswer(err error) bool { return err == nil || isLostRace(err) || isRefused(err) }

// isBroken reports whether it was the connection that failed, or the server as it went down or came up, or has forgotten
// what the connection has prepared.
func isBroken(err error) bool {
	if _, misread := errors.AsType[pgx.ScanArgError](err); misread {
		return false // the answer came, from a table that is not as it was made
	}
	if errors.Is(err, errUnconfirmed) || errors.Is(err, ErrEngine) || errors.Is(err, idempotency.ErrClaimLost) {
		return false // the answer came, perhaps from another server than the one before
	}
	_, answered := errors.AsType[*pgconn.PgError](err)
	return !answered || hasCode(err, "08", "57P") || isStatementForgotten(err) || isTooMany(err)
}

// isWithoutDay reports whether the server has refused a record because there is no partition for it.
func (t *Table) isMissingPartition(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && t.opts.isPartitioned() && e.Code == "23514" && e.TableName == t.opts.tableName() && e.ConstraintName == ""
}

// explain adds to an error of the server that the table is missing, or what is beside it, and what is to be done about it.
func (t *Table) explainMissing(err error) error {
	if !hasCode(err, "42P01", "42883", "3F000") { // no such table, function or schema
		return err
	}
	return fmt.Errorf("%w: %w", t.unreadyError(callMigrate, "table %s, or its function, is missing", t.opts.quotedName("")), err)
}
