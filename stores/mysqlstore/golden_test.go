package mysqlstore_test

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/golden"
)

// goldenRows is a file with the rows that this version writes. Every later version must read them. All rows have the
// same creation time. Rows and leases expire after an hour.
const goldenRows = "testdata/rows_v1.sql"

const goldenTimes = "created = 1894276800000000, lease = IF(lease IS NULL, NULL, 1894280400000000), expires = 1894280400000000"

const goldenColumns = "operation, user_id, endpoint, `key`, attempt, fingerprint, token, " +
	"created, lease, expires, response, answer_size, steps"

// dumpRows returns the rows of a table as SQL.
func dumpRows(t *testing.T, db *sql.DB, table string) string {
	t.Helper()
	var quoted []string
	for column := range strings.SplitSeq(goldenColumns, ", ") {
		switch column {
		case "operation", "fingerprint", "token", "response", "steps":
			column = "CONCAT('x''', HEX(" + column + "), '''')"
		case "user_id", "endpoint", "`key`":
			column = "QUOTE(" + column + ")"
		}
		quoted = append(quoted, "COALESCE("+column+", 'NULL')")
	}
	rows, err := db.QueryContext(context.Background(), "SELECT CONCAT_WS(', ', "+strings.Join(quoted, ", ")+") FROM "+table+
		" ORDER BY operation")
	require.NoError(t, err)
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var row string
		require.NoError(t, rows.Scan(&row))
		b.WriteString("INSERT INTO idempotency_records (" + goldenColumns + ")\nVALUES (" + row + ");\n")
	}
	require.NoError(t, rows.Err())
	return b.String()
}

func TestGoldenRowsAreWritten(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, table := newStore(t, db)
	golden.MakeRows(t, store)
	const now = "UNIX_TIMESTAMP() * 1000000 - "
	require.Zero(t, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table+" WHERE ABS("+now+"created) > 60000000"+
		" OR ABS("+now+"expires + 3600000000) > 60000000 OR ABS("+now+"lease + 60000000) > 60000000"), "times are in microseconds")
	// only these columns differ in each run
	execStatement(t, db, "UPDATE "+table+" SET token = operation, "+goldenTimes)
	golden.RequireFile(t, goldenRows, dumpRows(t, db, table))
}

func TestGoldenRowsAreRead(t *testing.T) {
	t.Parallel()
	w := newTableStore(t, "multiStatements=true")
	rows, err := os.ReadFile(goldenRows)
	require.NoError(t, err)
	execStatement(t, w.db, strings.ReplaceAll(string(rows), "idempotency_records", w.table))
	execStatement(t, w.db, "SET @since = (SELECT UNIX_TIMESTAMP() * 1000000 - 1894276800000000); UPDATE "+w.table+
		" SET created = created + @since, lease = lease + @since, expires = expires + @since")
	golden.RequireHeld(t, w.store)
	execStatement(t, w.db, "UPDATE "+w.table+" SET "+goldenTimes)
	require.Equal(t, string(rows), dumpRows(t, w.db, w.table), "who reads changes nothing")
	execStatement(t, w.db, "UPDATE "+w.table+
		" SET expires = UNIX_TIMESTAMP() * 1000000 + 3600000000, lease = IF(lease IS NULL, NULL, 1)")
	golden.RequireAttempts(t, w.store)
}
