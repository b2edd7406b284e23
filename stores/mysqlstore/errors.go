package mysqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/idempotency-go/idempotency"
)

// hasNumber reports whether err is one of the server's, with one of the numbers.
func hasNumber(err error, numbers ...uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains(numbers, e.Number)
}

func isDuplicate(err error) bool { return hasNumber(err, 1062) }

// isConflict reports whether another transaction was in the way, so that the statement has had no effect: a deadlock, a
// wait for a lock that took too long or must not begin, a record that was changed since it was read, a table that was altered, a node of
// a Galera cluster that is not ready, a conflict with another member of a replication group, or one of those by which TiDB says
// that it has rolled back, and that a retry is safe.
func isConflict(err error) bool {
	return hasNumber(err, 1213, 1205, 3572, 1020, 1615, 1047, 3101, 8002, 8005, 8022, 8028, 9007)
}

// isCrowded reports whether the server has refused a connection because it, or the user, has too many.
func isCrowded(err error) bool { return hasNumber(err, 1040, 1203, 1226) }

// isFull reports whether there is no room for what was to be written: in the table, on the disk, or, for a response that
// is too large, in a packet, in the redo log, or in a transaction or a row of TiDB.
func isFull(err error) bool {
	return hasNumber(err, 1114, 1021, 1041, 1153, 1118, 8004, 8025) || errors.Is(err, mysql.ErrPktTooLarge)
}

// refusesWrites reports whether the server was made read-only, as before it is replaced by another one.
func refusesWrites(err error) bool { return hasNumber(err, 1290, 1836, 1792) }

// isBroken reports whether it was the connection that failed, or the server as it went down: 1053 says so, and 1927 and
// 3169 that somebody has ended the session.
func isBroken(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, broken := range []error{driver.ErrBadConn, mysql.ErrInvalidConn, mysql.ErrMalformPkt, mysql.ErrPktSync,
		io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return hasNumber(err, 1053, 1927, 3169)
}

// isAnswer reports whether err says that the statement has had no effect. Package database/sql returns ErrBadConn for
// what it has not sent. An error of a commit (1180), or of a session that somebody has ended, does not say so.
func isAnswer(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return true
	}
	_, answered := errors.AsType[*mysql.MySQLError](err)
	return err == nil || errors.Is(err, driver.ErrBadConn) || answered && !hasNumber(err, 1180, 1927, 3169)
}

// isLate reports whether a context has ended. The driver may say it in its own words.
func isLate(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// failure returns the error of a step.
func failure(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case hasNumber(err, 1146):
		err = fmt.Errorf("there is no table of records: call Migrate: %w", err)
	case isFull(err):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreFull, err)
	case isCrowded(err) && !errors.Is(err, idempotency.ErrStoreBusy):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return fmt.Errorf("mysqlstore: %s: %w", step, err)
}
