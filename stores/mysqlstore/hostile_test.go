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

// loosenTable alters the table of Migrate so that columns take more values.
const loosenTable = `ALTER TABLE {table} MODIFY attempt TEXT NULL, MODIFY fingerprint VARBINARY(99) NULL,
	MODIFY user_id TEXT NULL, MODIFY created TEXT NULL, MODIFY token VARBINARY(99) NULL`

// newLooseSubject returns a store whose table is loosened before a row is changed.
func newLooseSubject(t testing.TB) rowtest.Subject {
	t.Helper()
	w := newTableStore(t)
	s := w.newRowSubject()
	set := s.Set
	s.Set = func(t testing.TB, key, to string) {
		execStatement(t, w.db, strings.ReplaceAll(loosenTable, "{table}", w.table))
		set(t, key, to)
	}
	return s
}

// A tampered row is neither replayed nor claimed, and stays unchanged until it expires.
func TestTamperedRows(t *testing.T) {
	t.Parallel()
	rowtest.TamperedRows(t, newLooseSubject, map[string]rowtest.Tampering{
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
		"creation in words":      {"completed", "created = 'once'"},
		"short fingerprint":      {"released", "fingerprint = ''"},
		"long fingerprint":       {"completed", "fingerprint = repeat(x'00', 33)"},
		"zero fingerprint":       {"released", "fingerprint = repeat(x'00', 32)"},
		"lease without end":      {"running", "lease = 9223372036854775807"},
		"completed with a lease": {"completed", "lease = 0"},
		"empty response":         {"completed", "response = ''"},
		"invalid response":       {"completed", "response = 'hello'"},
		"cut response":           {"completed", "response = substr(response, 1, length(response) - 1)"},
		"status":                 {"completed", "response = replace(response, ' 201 ', ' 200 ')"},
		"impossible status":      {"completed", "response = '" + encodeResponse(t, idempotency.Response{Status: 99}) + "'"},
		"huge response":          {"completed", "response = repeat('x', 1000000)"},
	}, func(t testing.TB, s rowtest.Subject, set string) {
		if isUnreadable(set) {
			require.NoError(t, s.Store.(*mysqlstore.Store).Maintain(t.Context()))
		}
	})
}

// isUnreadable reports whether set gives a column a value of another type. Such a record counts until it is deleted.
func isUnreadable(set string) bool {
	return slices.Contains([]string{"user_id = NULL", "attempt = '9223372036854775808'", "attempt = 'many'",
		"attempt = NULL", "created = 'once'"}, set)
}

func encodeResponse(t *testing.T, resp idempotency.Response) string {
	t.Helper()
	stored, err := resp.MarshalBinary()
	require.NoError(t, err)
	return string(stored)
}

func TestTamperedTimes(t *testing.T) {
	t.Parallel()
	rowtest.TamperedTimes(t, func(t testing.TB) rowtest.Subject {
		w := newTableStore(t)
		t.Cleanup(func() { require.NoError(t, w.store.Maintain(context.Background())) })
		return w.newRowSubject()
	})
}

// A record with an omitted answer is completed. Such a marker stands for the effects of a handler that has committed
// by itself, before there was an answer.
func TestOmittedAnswerIsCompleted(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, table := newStore(t, db)
	_, claim := claimKey(t, store, "key")
	marker := encodeResponse(t, idempotency.Response{Omitted: true})
	execStatement(t, db, "UPDATE "+table+" SET lease = NULL, response = ?", marker)
	asked := request
	asked.TakeOver = true
	record, other, err := store.Begin(t.Context(), keyOf("key"), asked)
	require.NoError(t, err)
	require.Nil(t, other)
	require.Equal(t, &idempotency.Response{Omitted: true}, record.Response)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// A key may have any content: text that no column takes, and names that a collation takes for equal.
func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"charset=latin1"}, {"interpolateParams=true"}, {"charset=utf8mb4"}} {
		store, _ := newStore(t, openPool(t, sharedServer(t).DSN(), settings...))
		long := strings.Repeat("\xff", 4096)
		for _, id := range []string{"a", "A", "ä", "a ", "", "\x00", "\xff", "😀", `\`, "'", "?", "`", long} {
			completeKey(t, store, id)
			requireReplay(t, store, id)
		}
	}
}

// Every call and the middleware report faulty options.
func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewRunner(mysqlstore.New(nil, mysqlstore.Options{}), idempotency.RunnerOptions{})
	require.ErrorContains(t, err, "the *sql.DB is nil")
	db := openPool(t, "nobody@tcp(127.0.0.1:1)/test")
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
