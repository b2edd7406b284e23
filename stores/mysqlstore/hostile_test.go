package mysqlstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// looseTable holds more than the one that Migrate makes.
const looseTable = `ALTER TABLE {table} MODIFY attempt TEXT NULL, MODIFY fingerprint VARBINARY(99) NULL,
	MODIFY user_id TEXT NULL, MODIFY created TEXT NULL, MODIFY token VARBINARY(99) NULL`

// newLoose returns a store whose table is made loose before a row is changed.
func newLoose(t testing.TB) rowtest.Subject {
	t.Helper()
	w := newWorld(t)
	s := w.subject()
	set := s.Set
	s.Set = func(t testing.TB, key, to string) {
		execute(t, w.db, strings.ReplaceAll(looseTable, "{table}", w.table))
		set(t, key, to)
	}
	return s
}

// A row that no store has written is neither replayed nor claimed, and stays as it is until it expires.
func TestTamperedRows(t *testing.T) {
	t.Parallel()
	rowtest.TamperedRows(t, newLoose, map[string]rowtest.Tampering{
		"user":                   {"completed", "user_id = 'user 43'"},
		"case of the user":       {"completed", "user_id = 'USER 42'"},
		"space after the user":   {"completed", "user_id = 'user 42 '"},
		"no user":                {"completed", "user_id = NULL"},
		"endpoint":               {"completed", "endpoint = ''"},
		"attempt 0":              {"running", "attempt = 0"},
		"negative attempt":       {"completed", "attempt = -1"},
		"last attempt":           {"released", "attempt = 2147483647"},
		"huge attempt":           {"released", "attempt = '9223372036854775808'"},
		"attempt in words":       {"completed", "attempt = 'many'"},
		"no attempt":             {"completed", "attempt = NULL"},
		"creation":               {"completed", "created = 'once'"},
		"short fingerprint":      {"released", "fingerprint = ''"},
		"long fingerprint":       {"completed", "fingerprint = repeat(x'00', 33)"},
		"zero fingerprint":       {"released", "fingerprint = repeat(x'00', 32)"},
		"lease without end":      {"running", "lease = 9223372036854775807"},
		"completed with a lease": {"completed", "lease = 0"},
		"empty response":         {"completed", "response = ''"},
		"other response":         {"completed", "response = 'hello'"},
		"cut response":           {"completed", "response = substr(response, 1, length(response) - 1)"},
		"status":                 {"completed", "response = replace(response, ' 201 ', ' 200 ')"},
		"impossible status":      {"completed", "response = '" + marshal(t, idempotency.Response{Status: 99}) + "'"},
		"huge response":          {"completed", "response = repeat('x', 1000000)"},
	}, func(t testing.TB, s rowtest.Subject, set string) {
		if isUnreadable(set) {
			require.NoError(t, s.Store.(*mysqlstore.Store).Maintain(t.Context()))
		}
	})
}

// isUnreadable reports whether a value is not of the type of its column, so that the record counts until it is deleted.
func isUnreadable(set string) bool {
	return slices.Contains([]string{"user_id = NULL", "attempt = '9223372036854775808'", "attempt = 'many'",
		"attempt = NULL", "created = 'once'"}, set)
}

func marshal(t *testing.T, resp idempotency.Response) string {
	t.Helper()
	stored, err := resp.MarshalBinary()
	require.NoError(t, err)
	return string(stored)
}

func TestTamperedTimes(t *testing.T) {
	t.Parallel()
	rowtest.TamperedTimes(t, func(t testing.TB) rowtest.Subject {
		w := newWorld(t)
		t.Cleanup(func() { require.NoError(t, w.store.Maintain(context.Background())) })
		return w.subject()
	})
}

// A record whose answer says that it was not kept is completed: so the effects of a transaction count that was
// committed under its handler, before there was an answer.
func TestOmittedAnswerIsCompleted(t *testing.T) {
	t.Parallel()
	db := pool(t, server(t).DSN())
	store, table := newStore(t, db)
	_, claim := begun(t, store, "key")
	marker := marshal(t, idempotency.Response{Omitted: true})
	execute(t, db, "UPDATE "+table+" SET lease = NULL, response = ?", marker)
	asked := request
	asked.TakeOver = true
	record, other, err := store.Begin(t.Context(), keyOf("key"), asked)
	require.NoError(t, err)
	require.Nil(t, other)
	require.Equal(t, &idempotency.Response{Omitted: true}, record.Response)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// What a key contains does not matter: text that no column takes, and names that are equal for a collation.
func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"charset=latin1"}, {"interpolateParams=true"}, {"charset=utf8mb4"}} {
		store, _ := newStore(t, pool(t, server(t).DSN(), settings...))
		long := strings.Repeat("\xff", 4096)
		for _, id := range []string{"a", "A", "ä", "a ", "", "\x00", "\xff", "😀", `\`, "'", "?", "`", long} {
			completed(t, store, id)
			requireReplay(t, store, id)
		}
	}
}

// The faults of options are those of every call, and of the middleware.
func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewRunner(mysqlstore.New(nil, mysqlstore.Options{}), idempotency.RunnerOptions{})
	require.ErrorContains(t, err, "the *sql.DB is nil")
	db := pool(t, "nobody@tcp(127.0.0.1:1)/test")
	for _, name := range []string{"`", "a b", "a.b", "ä", "a;", strings.Repeat("a", 65), "?", "'"} {
		opts := mysqlstore.Options{Table: name}
		store := mysqlstore.New(db, opts)
		_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
		require.Nil(t, claim)
		_, made := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
		for _, err := range []error{
			err, made, store.Check(t.Context()), store.Maintain(t.Context()), mysqlstore.Migrate(t.Context(), db, opts),
		} {
			require.ErrorContains(t, err, "mysqlstore: Table is ")
		}
	}
}
