package rowtest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// hostileNames are names that a statement or an expression must not confuse with other names, or with its own text.
var hostileNames = []string{
	"a", "A", "ä", "a ", "a%", "%", "_", "\x00", "\xff\xfe", "\u202e", "😀", `\`, `\x00`, `\'`, "'", "''", `"`, "`",
	"?", "?1", "$1", ":user",
	"{state}", "{operation}", "{asked_user}", "' OR ''='", "'; DROP TABLE idempotency_records; --", "/*", "NULL",
	strings.Repeat("n", 254) + "'",
}

// ListByNames checks that List finds exactly the records of a user, of an endpoint and of a client's key, for any characters in
// the names. The parameter name is the package name of the store, for error texts.
func ListByNames(t *testing.T, store Store, name string) {
	t.Helper()
	parts := map[string]func(key *idempotency.Key, request *idempotency.ListRequest, name string){
		"user":     func(k *idempotency.Key, r *idempotency.ListRequest, name string) { k.User, r.User = name, name },
		"endpoint": func(k *idempotency.Key, r *idempotency.ListRequest, name string) { k.Endpoint, r.Endpoint = name, name },
		"key":      func(k *idempotency.Key, r *idempotency.ListRequest, name string) { k.ID, r.ID = name, name },
	}
	for part, set := range parts {
		for _, name := range hostileNames {
			key := idempotency.Key{User: "of " + part, Endpoint: "of " + part, ID: "of " + part}
			set(&key, new(idempotency.ListRequest), name)
			mustCompleteKey(t, store, key)
		}
	}
	for part, set := range parts {
		for _, name := range hostileNames {
			key := idempotency.Key{User: "of " + part, Endpoint: "of " + part, ID: "of " + part}
			var request idempotency.ListRequest
			set(&key, &request, name)
			requireListed(t, store, request, key)
			entry, err := store.InspectOperation(t.Context(), key.OperationID())
			require.NoError(t, err)
			require.Equal(t, key, entry.Key)
		}
	}
	long := idempotency.Key{User: strings.Repeat("é", 300), Endpoint: strings.Repeat("%", 300), ID: strings.Repeat("'", 300)}.Bounded()
	mustCompleteKey(t, store, long)
	requireListed(t, store, idempotency.ListRequest{User: long.User}, long)
	requireListed(t, store, idempotency.ListRequest{User: long.User, Endpoint: long.Endpoint, ID: long.ID}, long)
	requireListed(t, store, idempotency.ListRequest{User: long.User, Endpoint: "of user"})
	requireListed(t, store, idempotency.ListRequest{States: []idempotency.State{"') OR ('' = '"}})
	_, err := store.List(t.Context(), idempotency.ListRequest{Limit: -1, Scan: -2, Order: "by name"})
	require.ErrorContains(t, err, name+": list: idempotency: list: Limit -1 is negative")
	require.ErrorContains(t, err, "Scan -2 is negative")
	require.ErrorContains(t, err, `Order "by name" is unknown`)
}

// mustCompleteKey claims key and completes the record with Answer.
func mustCompleteKey(t *testing.T, store Store, key idempotency.Key) {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, Request)
	require.NoError(t, err, "%q", []string{key.User, key.Endpoint, key.ID})
	require.NoError(t, claim.Complete(t.Context(), Answer, time.Hour))
}

// requireListed requires that List and Each return the records of want, in this order, and no others.
func requireListed(t *testing.T, store Store, request idempotency.ListRequest, want ...idempotency.Key) {
	t.Helper()
	listing, err := store.List(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, want, keysOf(listing.Entries), "%q", []string{request.User, request.Endpoint, request.ID})
	require.False(t, listing.Partial)
	require.Zero(t, listing.Unreadable)
	entries, streamed := collectEach(t, store, request)
	require.ElementsMatch(t, want, keysOf(entries))
	require.Equal(t, listing.Totals, streamed.Totals)
}

func keysOf(entries []idempotency.Entry) (keys []idempotency.Key) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

// collectEach returns what List passes to request.Each, and the listing.
func collectEach(t testing.TB, store Store, request idempotency.ListRequest) (entries []idempotency.Entry, _ idempotency.Listing) {
	t.Helper()
	request.Each = func(e idempotency.Entry) error {
		entries = append(entries, e)
		return nil
	}
	listing, err := store.List(t.Context(), request)
	require.NoError(t, err)
	require.Empty(t, listing.Entries)
	require.False(t, listing.Partial)
	return entries, listing
}

// ListPages checks the times of creation that List selects, and the pages of each order. Several records have the same size,
// and setEqualTimes must give several of the keys the same time of creation.
func ListPages(t *testing.T, store Store, setEqualTimes func(keys []string)) {
	t.Helper()
	var ids []string
	for i, size := range []int{350, 150, 150, 2000, 150, 350, 120} {
		ids = append(ids, strings.Repeat("x", 1+i))
		_, claim := MustBegin(t, store, ids[i])
		resp := idempotency.Response{Status: 200, Body: make([]byte, size-len(ids[i]))} // names are a part of the size
		require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
	}
	MustBegin(t, store, "running")
	all, totals := collectEach(t, store, idempotency.ListRequest{})
	require.Len(t, all, len(ids)+1)
	requireTimes(t, store, all)
	setEqualTimes(ids[2:5])
	all, _ = collectEach(t, store, idempotency.ListRequest{})
	for _, order := range []idempotency.ListOrder{
		"", idempotency.NewestFirst, idempotency.OldestFirst, idempotency.LargestFirst,
	} {
		request := idempotency.ListRequest{Order: order}
		want := slices.SortedFunc(slices.Values(all), request.Compare)
		for limit := 1; limit <= len(all); limit += 2 {
			requirePages(t, store, idempotency.ListRequest{Order: order, Limit: limit}, want, totals.Totals)
		}
		completed := []idempotency.State{idempotency.StateCompleted}
		want = slices.DeleteFunc(want, func(e idempotency.Entry) bool { return e.State != idempotency.StateCompleted })
		requirePages(t, store, idempotency.ListRequest{Order: order, Limit: 3, States: completed, User: "user 42"}, want,
			map[idempotency.State]idempotency.Total{idempotency.StateCompleted: totals.Totals[idempotency.StateCompleted]})
	}
}

// requirePages requires that the pages of request have the records of want in this order, and the totals on each page.
func requirePages(t *testing.T, store Store, request idempotency.ListRequest, want []idempotency.Entry,
	totals map[idempotency.State]idempotency.Total,
) {
	t.Helper()
	var got []idempotency.Entry
	for {
		page, err := store.List(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, totals, page.Totals)
		got = append(got, page.Entries...)
		require.LessOrEqual(t, len(got), len(want), "a page repeats a record")
		if len(page.Entries) < request.Limit {
			break
		}
		request.After = &got[len(got)-1]
	}
	require.Equal(t, keysOf(want), keysOf(got), "order %q, limit %d", request.Order, request.Limit)
}

// requireTimes requires that Since includes its time, and that Before excludes its time, even between two microseconds.
func requireTimes(t *testing.T, store Store, all []idempotency.Entry) {
	t.Helper()
	oldest := slices.SortedFunc(slices.Values(all), idempotency.ListRequest{Order: idempotency.OldestFirst}.Compare)
	second, fourth := oldest[1].Created, oldest[3].Created
	for _, c := range []struct {
		since, before time.Time
		want          []idempotency.Entry
	}{
		{second, time.Time{}, oldest[1:]},
		{second.Add(time.Nanosecond), time.Time{}, oldest[2:]},
		{time.Time{}, fourth, oldest[:3]},
		{time.Time{}, fourth.Add(time.Nanosecond), oldest[:4]},
		{second, fourth, oldest[1:3]},
		{second.Add(-time.Nanosecond), fourth.Add(-time.Nanosecond), oldest[1:3]},
		{fourth, second, nil},
	} {
		request := idempotency.ListRequest{Since: c.since, Before: c.before, Order: idempotency.OldestFirst}
		requireListed(t, store, request, keysOf(c.want)...)
		request.User, request.Endpoint = "user 42", "POST /payments"
		requireListed(t, store, request, keysOf(c.want)...)
	}
}

// ListEach checks that List passes all records to ListRequest.Each, that an error or a panic of Each ends List at once, and that
// the store can be used afterwards.
func ListEach(t *testing.T, store Store) {
	t.Helper()
	const records = 50
	for i := range records {
		mustCompleteKey(t, store, idempotency.Key{User: "u", Endpoint: "e", ID: strings.Repeat("i", 1+i)})
	}
	listing, err := store.List(t.Context(), idempotency.ListRequest{})
	require.NoError(t, err)
	request := idempotency.ListRequest{Limit: 1, After: &listing.Entries[3], Order: idempotency.LargestFirst}
	entries, streamed := collectEach(t, store, request)
	require.Equal(t, listing.Totals, streamed.Totals)
	slices.SortFunc(entries, idempotency.ListRequest{}.Compare)
	for i := range entries {
		entries[i].Remaining = listing.Entries[i].Remaining
	}
	require.Equal(t, listing.Entries, entries)

	failure, calls := errors.New("the disk is full"), 0
	fail := idempotency.ListRequest{Each: func(idempotency.Entry) error {
		calls++
		return failure
	}}
	for range 3 {
		calls = 0
		got, err := store.List(t.Context(), fail)
		require.ErrorIs(t, err, failure)
		require.Zero(t, got)
		require.Equal(t, 1, calls, "a record is not passed again")
	}
	require.PanicsWithValue(t, "out of order", func() {
		_, _ = store.List(t.Context(), idempotency.ListRequest{Each: func(idempotency.Entry) error { panic("out of order") }})
	})
	entries, _ = collectEach(t, store, idempotency.ListRequest{})
	require.Len(t, entries, records)
}
