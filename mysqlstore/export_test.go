package mysqlstore

import (
	"strings"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Now is the time as the statements have it.
var Now = sqlstore.Statement(files, "now")

// Waited returns a query for how long a statement has waited, in seconds, that began at a local time, and has the
// record at another one.
func Waited(now, sysdate string) string {
	literal := func(s string) string { return "TIMESTAMP'" + s + "'" }
	began := "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
	waited := strings.NewReplacer("NOW(6)", literal(now), "SYSDATE(6)", literal(sysdate), began, "0").Replace(Now)
	return "SELECT (" + waited + ") / 1e6"
}
