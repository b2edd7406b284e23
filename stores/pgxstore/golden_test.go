package pgxstore_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/golden"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// goldenVersion is the version of the rows that this package writes. The README in the root's testdata explains the
// steps for a new version.
const goldenVersion = 1

// goldenTime is the time at which the golden rows were made, and are read.
const goldenTime = "2030-01-10 12:00:00+00"

// goldenForms are the forms of a table.
var goldenForms = map[string]pgxstore.Options{"plain": {}, "divided": {PartitionDays: 1}}

// goldenRow is an operation that leaves a row behind. The ID of its key is the name of the row.
type goldenRow struct {
	id        string
	store     func(*pgxpool.Pool, pgxstore.Options) idempotency.Store
	steps     func(*testing.T, idempotency.Claim)
	attempts  int // released attempts before the attempt of steps
	response  *idempotency.Response
	leaseLeft time.Duration
}

func newStore(pool *pgxpool.Pool, opts pgxstore.Options) idempotency.Store {
	return pgxstore.New(pool, opts)
}

func newDigested(pool *pgxpool.Pool, opts pgxstore.Options) idempotency.Store {
	return pgxstore.New(pool, withDigests(opts, true))
}

// goldenRows returns the rows in the order of their IDs.
func goldenRows() (rows []goldenRow) {
	header := strings.Repeat("X-Large: "+strings.Repeat("v", 90)+"\n", 40)
	answers := maps.Clone(golden.Responses)
	answers["done"] = &answer
	answers["done-header"] = &idempotency.Response{Status: http.StatusAccepted, Header: idempotency.Fields(header),
		Body: []byte("body")}
	for id, resp := range answers {
		complete := func(t *testing.T, claim idempotency.Claim) {
			require.NoError(t, claim.Complete(t.Context(), *resp, time.Hour))
		}
		rows = append(rows, goldenRow{id: id, store: newStore, steps: complete, response: resp})
		if id == "done" {
			rows = append(rows, goldenRow{id: "done-digested", store: newDigested, steps: complete, response: resp},
				goldenRow{id: "done-third", store: newStore, steps: complete, response: resp, attempts: 2})
		}
	}
	keep := func(t *testing.T, claim idempotency.Claim) {
		for i := 0; i < len(golden.Steps); i += 2 {
			requireStep(t, claim.(idempotency.Checkpointer), golden.Steps[i], golden.Steps[i+1])
		}
	}
	return append(rows,
		goldenRow{id: "running", store: newStore, steps: func(*testing.T, idempotency.Claim) {}, leaseLeft: time.Minute},
		goldenRow{id: "running-extended", store: newStore, leaseLeft: 2 * time.Hour,
			steps: func(t *testing.T, claim idempotency.Claim) {
				require.NoError(t, claim.Extend(t.Context(), 2*time.Hour))
			}},
		goldenRow{id: "running-steps", store: newStore, steps: keep, leaseLeft: time.Minute},
		goldenRow{id: "released-steps", store: newStore, steps: func(t *testing.T, claim idempotency.Claim) {
			keep(t, claim)
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}},
		goldenRow{id: "released", store: newStore, steps: func(t *testing.T, claim idempotency.Claim) {
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}})
}

// makeGoldenRows makes each row with its store, and returns the rows as SQL.
func makeGoldenRows(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options) string {
	t.Helper()
	for _, row := range goldenRows() {
		for range row.attempts {
			_, claim, err := pgxstore.New(pool, opts).Begin(t.Context(), keyOf(row.id), attempt)
			require.NoError(t, err)
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}
		_, claim, err := row.store(pool, opts).Begin(t.Context(), keyOf(row.id), attempt)
		require.NoError(t, err)
		row.steps(t, claim)
	}
	// Only these columns differ in each run.
	execStatement(t, pool, "UPDATE "+tableName(opts)+` SET
		token = operation, created_at = $1::text::timestamptz`, goldenTime)
	return dumpRows(t, pool, opts)
}

var goldenColumns = "operation, user_id, endpoint, key, attempt, fingerprint, token, created_at, lease_until, " +
	"expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays, step_names, step_results"

// dumpRows returns the rows of a table as SQL.
func dumpRows(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options) string {
	t.Helper()
	values := regexp.MustCompile(`\w+`).ReplaceAllString(goldenColumns, "quote_nullable($0::text)")
	rows := queryColumn[string](t, pool, "SELECT concat_ws(', ', "+values+") FROM "+tableName(opts)+" ORDER BY operation")
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "INSERT INTO idempotency_records (%s)\nVALUES (%s);\n", goldenColumns, row)
	}
	return b.String()
}

// newGoldenTable creates a table whose clock stands still at goldenTime.
func newGoldenTable(t *testing.T, opts pgxstore.Options) (*pgxpool.Pool, pgxstore.Options) {
	t.Helper()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["timezone"] = "UTC" })
	opts, _ = newTableAt(t, pool, opts, goldenTime)
	return pool, opts
}

func goldenFile(version int, form string) string {
	return filepath.Join("testdata", "rows", fmt.Sprintf("v%d_%s.sql", version, form))
}

// The golden files of the current version have the rows that this version writes.
func TestGoldenRowsAreWritten(t *testing.T) {
	t.Parallel()
	for form, opts := range goldenForms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			pool, opts := newGoldenTable(t, opts)
			golden.RequireFile(t, goldenFile(goldenVersion, form), makeGoldenRows(t, pool, opts))
		})
	}
}

// This version reads the rows of every released version, with names in both forms, from a table that this version
// has created and migrated since.
func TestGoldenRowsAreRead(t *testing.T) {
	t.Parallel()
	t.Attr("golden-rows-read", strconv.Itoa(goldenVersion*len(goldenForms)*len(goldenRows())))
	for version := 1; version <= goldenVersion; version++ {
		for form, opts := range goldenForms {
			t.Run(form+"/v"+strconv.Itoa(version), func(t *testing.T) {
				t.Parallel()
				pool, opts := newGoldenTable(t, opts)
				require.Len(t, pgxstore.Migrations(opts), goldenVersion, "make the table of the older version first")
				rows, err := os.ReadFile(goldenFile(version, form))
				require.NoError(t, err)
				execStatement(t, pool, strings.ReplaceAll(string(rows), "idempotency_records", tableName(opts)))
				for _, digests := range []bool{false, true} {
					store := pgxstore.New(pool, withDigests(opts, digests))
					t.Run(fmt.Sprint("digests ", digests), func(t *testing.T) { requireGoldenRows(t, store) })
				}
				require.Equal(t, string(rows), dumpRows(t, pool, opts), "who reads changes nothing")
				requireAttempts(t, pool, opts)
			})
		}
	}
}

// requireGoldenRows requires all golden rows except those that can be claimed.
func requireGoldenRows(t *testing.T, store idempotency.Store) {
	t.Helper()
	for _, row := range goldenRows() {
		if strings.HasPrefix(row.id, "released") {
			continue
		}
		want := idempotency.Record{
			Attempt: row.attempts + 1, Fingerprint: attempt.Fingerprint, LeaseLeft: row.leaseLeft, Response: row.response,
		}
		if row.response != nil {
			want.Remaining = time.Hour
		}
		got, claim, err := store.Begin(t.Context(), keyOf(row.id), attempt)
		require.NoError(t, err, row.id)
		require.Nil(t, claim, row.id)
		require.Equal(t, goldenTime, got.Created.UTC().Format("2006-01-02 15:04:05-07"))
		got.Created = want.Created
		require.Equal(t, want, got, row.id)
	}
}

// requireAttempts requires that released and lapsed rows can be claimed.
func requireAttempts(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	request := attempt
	request.TakeOver = true
	execStatement(t, pool, "UPDATE "+tableName(opts)+" SET lease_until = $1::text::timestamptz WHERE lease_until IS NOT NULL",
		goldenTime)
	for id, steps := range map[string][]string{
		"released": nil, "running": nil, "running-extended": nil,
		"released-steps": golden.Steps, "running-steps": golden.Steps,
	} {
		record, claim, err := pgxstore.New(pool, opts).Begin(t.Context(), keyOf(id), request)
		require.NoError(t, err)
		require.NotNil(t, claim, id)
		require.Equal(t, 2, record.Attempt)
		requireSteps(t, claim.(idempotency.Checkpointer), steps...)
	}
}
