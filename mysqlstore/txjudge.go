package mysqlstore

import (
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// judge says what the error of a statement means for its transaction. What is a constraint or in the data stands.
func judge(err error) sqlstore.Outcome {
	_, answered := errors.AsType[*mysql.MySQLError](err)
	switch {
	case !answered && !isBroken(err) && !isLate(err), isTooLarge(err):
		return sqlstore.Stands
	case !answered || hasNumber(err, ending...):
		return sqlstore.Ended
	case hasNumber(err, passing...):
		return sqlstore.MayPass
	}
	return sqlstore.Stands
}

// isTooLarge reports whether a value is too large for a row, a log, or the packet of a client.
func isTooLarge(err error) bool {
	return hasNumber(err, 1118, 1197, 1301, 1406) || errors.Is(err, mysql.ErrPktTooLarge)
}

// ending are errors by which the server says that it has rolled back the transaction, or that it ends the session.
var ending = []uint16{
	1020, // a record was changed since the snapshot
	1053, // shutdown
	1152, // the connection was aborted
	1153, // a packet was too large
	1180, // during a commit
	1184, // the connection was aborted
	1206, // more locks than there is room for
	1213, // deadlock
	1927, // the session was killed
	3101, // a conflict in a replication group
	3169, // the session was killed
	4031, // the session was idle
}

// passing are errors of a statement for a reason that is neither in it nor in the data.
var passing = []uint16{
	1015, 1030, // the engine cannot lock, or has failed
	1021, 1037, 1038, 1041, 1114, // no room on the disk or in memory
	1040, 1203, 1226, // too many connections, or too much used by this user
	1047,             // the node of a cluster is not ready
	1099, 1100, 1223, // a lock of tables
	1205, 1689, 3058, 3572, // a wait for a lock
	1290, 1792, 1836, // read-only
	1317, 1969, 3024, // interrupted
	1412, 1615, // a table was altered
}
