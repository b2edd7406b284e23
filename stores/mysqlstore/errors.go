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

// hasNumber reports whether err is an error of the server with one of the numbers.
func hasNumber(err error, numbers ...uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && slices.Contains(numbers, e.Number)
}

func isDuplicate(err error) bool { return hasNumber(err, 1062) }

// isConflict reports whether the statement has had no effect because of another transaction, so that a retry is safe: a deadlock, a
// lock wait timeout, a refused lock wait (NOWAIT), a record changed since the read, an altered table, a Galera node that is not
// ready, a conflict in a replication group, or a rollback that TiDB reports as retryable.
func isConflict(err error) bool {
	return hasNumber(err, 1213, 1205, 3572, 1020, 1615, 1047, 3101, 8002, 8005, 8022, 8028, 9007)
}

// isCrowded reports whether the server has refused a connection because the server or the user has too many connections.
func isCrowded(err error) bool { return hasNumber(err, 1040, 1203, 1226) }

// isFull reports whether the server lacks space for a write: the table or the disk is full, or the response is too large for a
// packet, for the redo log, or for a transaction or a row of TiDB.
func isFull(err error) bool {
	return hasNumber(err, 1114, 1021, 1041, 1153, 1118, 8004, 8025) || errors.Is(err, mysql.ErrPktTooLarge)
}

// refusesWrites reports whether the server is read-only, as during a failover.
func refusesWrites(err error) bool { return hasNumber(err, 1290, 1836, 1792) }

// isBroken reports whether the connection has failed, the server was shutting down (1053), or an operator has killed the session
// (1927 and 3169).
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

// isAnswer reports whether the statement has certainly had no effect, or no error. Package database/sql returns ErrBadConn for a
// statement that was not sent. The outcome is unknown after a failed commit (1180) and in a killed session (1927 and 3169).
func isAnswer(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return true
	}
	_, answered := errors.AsType[*mysql.MySQLError](err)
	return err == nil || errors.Is(err, driver.ErrBadConn) || answered && !hasNumber(err, 1180, 1927, 3169)
}

// isLate reports whether a context has ended.
func isLate(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// wrapFailure wraps the error of a step with the name of the step, and with the sentinel of package idempotency that fits.
func wrapFailure(step string, err error) error {
	switch {
	case err == nil:
		return nil
	case hasNumber(err, 1146):
		err = fmt.Errorf("there is no table of records: call Migrate: %w", err)
	case hasNumber(err, 1176):
		err = fmt.Errorf("the table has no index for MaxUserRecords: call Migrate: %w", err)
	case isFull(err):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreFull, err)
	case isCrowded(err) && !errors.Is(err, idempotency.ErrStoreBusy):
		err = fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, err)
	}
	return fmt.Errorf("mysqlstore: %s: %w", step, err)
}
