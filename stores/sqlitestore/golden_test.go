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

// goldenRows has what this version writes, and every later one reads.
const goldenRows = "testdata/rows_v1.sql"

// atGolden are options with a clock that stands still, so long after the rows were made.
func atGolden(since time.Duration) sqlitestore.Options {
	return sqlitestore.Options{}.At(func() time.Time { return time.Date(2030, 1, 10, 12, 0, 0, 0, time.UTC).Add(since) })
}

const goldenColumns = "digest, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps"

// dumped returns the rows of a file as SQL.
func dumped(t *testing.T, path string) string {
	t.Helper()
	quoted := "quote(" + strings.ReplaceAll(goldenColumns, ", ", ") || ', ' || quote(") + ")"
	return one[string](t, foreign(t, path), "SELECT group_concat('INSERT INTO idempotency_records ("+goldenColumns+")' || char(10) ||"+
		" 'VALUES (' || "+quoted+" || ');' || char(10), '') FROM (SELECT * FROM idempotency_records ORDER BY digest)")
}

func TestGoldenRowsAreWritten(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	golden.MakeRows(t, open(t, path, atGolden(0)))
	execute(t, foreign(t, path), "UPDATE idempotency_records SET token = substr(digest, 1, 16)") // all that differs each time
	golden.RequireFile(t, goldenRows, dumped(t, path))
}

func TestGoldenRowsAreRead(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, atGolden(0))
	rows, err := os.ReadFile(goldenRows)
	require.NoError(t, err)
	execute(t, foreign(t, path), string(rows))
	golden.RequireHeld(t, store)
	require.Equal(t, string(rows), dumped(t, path), "who reads changes nothing")
	golden.RequireAttempts(t, open(t, path, atGolden(2*time.Minute)))
}
