package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// A row that no store has written is neither replayed nor claimed, and stays as it is until it expires.
func TestTamperedRows(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ of, set string }{
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
		"other response":         {"completed", "response = CAST('hello' AS BLOB)"},
		"cut response":           {"completed", "response = substr(response, 1, length(response) - 1)"},
		"status":                 {"completed", "response = CAST(replace(CAST(response AS TEXT), ' 201 ', ' 200 ') AS BLOB)"},
		"huge response":          {"completed", "response = zeroblob(1000000)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := open(t, path, sqlitestore.Options{})
			completed(t, store, "completed")
			begun(t, store, "running")
			_, claim := begun(t, store, "released")
			require.NoError(t, claim.Release(t.Context(), time.Hour))
			other := foreign(t, path)
			execute(t, other, "UPDATE idempotency_records SET "+tt.set+" WHERE key = '"+tt.of+"'")
			dump := `SELECT group_concat(quote(digest) || quote(token) || quote(lease) || quote(response))
				FROM idempotency_records`
			before := one[string](t, other, dump)
			for _, asked := range []idempotency.ClaimRequest{request, takeover} {
				_, _, err := store.Begin(t.Context(), keyOf(tt.of), asked)
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Nil(t, testservice.InDoubt(err))
			}
			require.Equal(t, before, one[string](t, other, dump))
			execute(t, other, "UPDATE idempotency_records SET expires = 0")
			requireFree(t, store, tt.of)
		})
	}
}

// No answer has such a status: net/http would panic.
func TestImpossibleStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 1, 99, 100, 199, 1000} {
		store := open(t, newPath(t), sqlitestore.Options{})
		_, claim := begun(t, store, "key")
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: status}, time.Hour))
		_, _, err := store.Begin(t.Context(), keyOf("key"), request)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Nil(t, testservice.InDoubt(err))
	}
}

// Times that no clock has are no reason to panic, nor to wait for ever.
func TestTamperedTimes(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"earliest":  "created = -9223372036854775808, lease = -9223372036854775808, expires = 9223372036854775807",
		"latest":    "created = 9223372036854775807, lease = 0, expires = 9223372036854775807",
		"long over": "created = 0, lease = 0, expires = -9223372036854775808",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := open(t, path, sqlitestore.Options{})
			_, owner := begun(t, store, "key")
			execute(t, foreign(t, path), "UPDATE idempotency_records SET "+set)
			asked := request
			asked.TakeOver = true
			_, claim, err := store.Begin(t.Context(), keyOf("key"), asked)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.ErrorIs(t, owner.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
		})
	}
}

// A table that is not strict may hold values of any type.
func TestForeignTypes(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"attempt = 'many'", "attempt = 1.5", "attempt = NULL", "created = x'00'", "expires = 'never'", "user_id = NULL",
		"lease = 'long'", "fingerprint = 'abc'", "response = 12",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			execute(t, foreign(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
				digest PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved)`)
			store := open(t, path, sqlitestore.Options{})
			_, owner := begun(t, store, "key")
			execute(t, foreign(t, path), "UPDATE idempotency_records SET "+set)
			_, _, err := store.Begin(t.Context(), keyOf("key"), request)
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			require.Nil(t, testservice.InDoubt(err))
			_ = owner.Complete(t.Context(), answer, time.Hour) // its own record may be completed or lost
		})
	}
}

// Steps of another type than a store writes are refused. No writer goes on for ever because of them.
func TestForeignSteps(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	execute(t, foreign(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
		digest PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved)`)
	store := open(t, path, sqlitestore.Options{})
	claim := checkpointed(t, store, "key")
	execute(t, foreign(t, path), "UPDATE idempotency_records SET steps = CAST(x'02c3a900' AS TEXT)")
	_, err := claim.Checkpoint(t.Context(), "ship", []byte("2"))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}
