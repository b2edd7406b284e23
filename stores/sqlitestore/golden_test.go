package sqlitestore_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/golden"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// goldenRows is a file with the rows that this version writes. Every later version must read them.
const goldenRows = "testdata/rows_v1.sql"

// goldenOptions returns options with a clock that stands still, at the given time after the creation of the golden
// rows.
func goldenOptions(since time.Duration) sqlitestore.Options {
	return sqlitestore.Options{}.WithClock(func() time.Time { return time.Date(2030, 1, 10, 12, 0, 0, 0, time.UTC).Add(since) })
}

const goldenColumns = "operation, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps"

// dumpRows returns the rows of a file as SQL.
func dumpRows(t *testing.T, path string) string {
	t.Helper()
	quoted := "quote(" + strings.ReplaceAll(goldenColumns, ", ", ") || ', ' || quote(") + ")"
	return queryValue[string](t, openConn(t, path),
		"SELECT group_concat('INSERT INTO idempotency_records ("+goldenColumns+")' || char(10) ||"+
			" 'VALUES (' || "+quoted+" || ');' || char(10), '') FROM (SELECT * FROM idempotency_records ORDER BY operation)")
}

func TestGoldenRowsAreWritten(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	golden.MakeRows(t, openStore(t, path, goldenOptions(0)))
	// Only the token differs in each run.
	execStatement(t, openConn(t, path), "UPDATE idempotency_records SET token = operation")
	golden.RequireFile(t, goldenRows, dumpRows(t, path))
}

func TestGoldenRowsAreRead(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, goldenOptions(0))
	rows, err := os.ReadFile(goldenRows)
	require.NoError(t, err)
	execStatement(t, openConn(t, path), string(rows))
	golden.RequireHeld(t, store)
	require.Equal(t, string(rows), dumpRows(t, path), "who reads changes nothing")
	golden.RequireAttempts(t, openStore(t, path, goldenOptions(2*time.Minute)))
}
