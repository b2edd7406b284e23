package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// A tampered row is neither replayed nor claimed, and stays unchanged until it expires.
func TestTamperedRows(t *testing.T) {
	t.Parallel()
	rowtest.TamperedRows(t, newSubject, map[string]rowtest.Tampering{
		"user":                   {"completed", "user_id = 'user 43'"},
		"endpoint":               {"completed", "endpoint = ''"},
		"key":                    {"running", "key = 'another'"},
		"NUL in the key":         {"running", "key = key || char(0)"},
		"attempt 0":              {"running", "attempt = 0"},
		"negative attempt":       {"completed", "attempt = -1"},
		"last attempt":           {"released", "attempt = 2147483647"},
		"huge attempt":           {"released", "attempt = 9223372036854775807"},
		"short fingerprint":      {"released", "fingerprint = x''"},
		"long fingerprint":       {"completed", "fingerprint = zeroblob(33)"},
		"no fingerprint":         {"released", "fingerprint = zeroblob(32)"},
		"lease without end":      {"running", "lease = 9223372036854775807"},
		"completed with a lease": {"completed", "lease = 0"},
		"running with an answer": {"running", "response = (SELECT response FROM idempotency_records WHERE key = 'completed')"},
		"empty response":         {"completed", "response = x''"},
		"invalid response":       {"completed", "response = CAST('hello' AS BLOB)"},
		"cut response":           {"completed", "response = substr(response, 1, length(response) - 1)"},
		"status":                 {"completed", "response = CAST(replace(CAST(response AS TEXT), ' 201 ', ' 200 ') AS BLOB)"},
		"huge response":          {"completed", "response = zeroblob(1000000)"},
	}, func(testing.TB, rowtest.Subject, string) {})
}

// net/http would panic for these statuses, so a record with such an answer is invalid.
func TestImpossibleStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 1, 99, 100, 199, 1000} {
		store := openStore(t, newPath(t), sqlitestore.Options{})
		_, claim := claimKey(t, store, "key")
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: status}, time.Hour))
		_, _, err := store.Begin(t.Context(), keyOf("key"), request)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Nil(t, testservice.InDoubt(err))
	}
}

func TestTamperedTimes(t *testing.T) {
	t.Parallel()
	rowtest.TamperedTimes(t, newSubject)
}

// If the table is not strict, a column may have a value of any type.
func TestForeignTypes(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"attempt = 'many'", "attempt = 1.5", "attempt = NULL", "created = x'00'", "expires = 'never'", "user_id = NULL",
		"lease = 'long'", "fingerprint = 'abc'", "response = 12",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			execStatement(t, openConn(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
				operation PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved, ended)`)
			store := openStore(t, path, sqlitestore.Options{})
			_, owner := claimKey(t, store, "key")
			execStatement(t, openConn(t, path), "UPDATE idempotency_records SET "+set)
			_, _, err := store.Begin(t.Context(), keyOf("key"), request)
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			require.Nil(t, testservice.InDoubt(err))
			_ = owner.Complete(t.Context(), answer, time.Hour) // the owner may complete the record, or find it lost
		})
	}
}

// The store refuses steps of another type than BLOB. The writer does not retry forever because of them.
func TestForeignSteps(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	execStatement(t, openConn(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
		operation PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved, ended)`)
	store := openStore(t, path, sqlitestore.Options{})
	claim := claimWithStep(t, store, "key")
	execStatement(t, openConn(t, path), "UPDATE idempotency_records SET steps = CAST(x'02c3a900' AS TEXT)")
	_, err := claim.Checkpoint(t.Context(), "ship", []byte("2"))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}
