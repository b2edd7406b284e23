package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// The front page has the abandoned operations, the oldest first, and how many there are of each state.
func TestFrontPage(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, numbered(1), numbered(2))
	complete(t, store, numbered(3), receipt)
	begin(t, store, numbered(4), request.Lease)
	require.NoError(t, begin(t, store, numbered(5), request.Lease).Release(t.Context(), idempotency.Release{TTL: request.TTL}))
	d := newDesk(t, store)
	front := d.get("")
	require.Contains(t, front.text(), "abandoned 2 released 1 running 1 completed 1 all 5")
	require.Equal(t, []string{addressOf(numbered(1)), addressOf(numbered(2))}, front.links(`operation[^"]*`))
	require.Regexp(t, `alice POST /payments order-1 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC (just now|\d+ s ago)`, front.text())
	for i, state := range []string{"running", "released", "completed"} {
		require.Equal(t, []string{addressOf(numbered([]int{4, 5, 3}[i]))}, d.get("?state="+state).links(`operation[^"]*`))
	}
	all := d.get("?state=all")
	require.Len(t, all.links(`operation[^"]*`), 5)
	require.Contains(t, all.text(), "completed "+numbered(3).OperationID().String())
	require.Contains(t, all.page, `<a href="?state=all" aria-current="page">`)
}

// A list without operations says why, and what to do. The links lead to the form for searches, and to the first page.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	empty, full := newDesk(t, newStore()), newDesk(t, newStoreWith(t, order))
	last := "after=" + numbered(99).OperationID().String() + "&created=2100-01-01T00:00:00Z"
	for _, test := range []struct {
		desk    *desk
		address string
		says    string
		link    string
	}{
		{empty, "", "Nothing waits for an operator. No operation was abandoned. If a customer misses an answer, take", "#operation"},
		{empty, "?user=%3Cb%3E", "No operation of <b> was abandoned.", "#operation"},
		{empty, "?state=all", "There are no records. A record appears with the first request that has a key", "./#operation"},
		{empty, "?state=all&user=bob", "There are no records of bob. A record appears", "./#operation"},
		{full, "?state=running", "No operation is running now. Choose another state above", "#operation"},
		{full, "?state=released&user=alice", "No operation of alice is released now.", "#operation"},
		{full, "?" + last, "No more of them. The rest was ended or has expired", "?state=abandoned"},
	} {
		got := test.desk.get(test.address)
		require.Contains(t, got.text(), test.says, test.address)
		require.NotEmpty(t, got.links(regexp.QuoteMeta(test.link)), test.address)
		require.Contains(t, got.page, `<input id="operation"`)
	}
}

// Whoever follows the links sees each operation once, in order. Those that are resolved meanwhile are missing, and no others.
func TestPages(t *testing.T) {
	t.Parallel()
	store := newStore()
	const operations = 120
	for i := range operations {
		abandon(t, store, numbered(i))
	}
	d := newDesk(t, store)
	var seen []string
	sizes := []int{}
	for address := "?user=alice"; address != "" && len(sizes) < 10; {
		page := d.get(address)
		require.Equal(t, http.StatusOK, page.status)
		links := page.links(`operation[^"]*`)
		seen, sizes = append(seen, links...), append(sizes, len(links))
		next := page.links(`[^"]*after=[^"]*`)
		address = strings.Join(next, " ")
		if len(sizes) == 1 {
			form := d.form(d.get(links[0]).page, "not-happened", "reason", "because")
			require.Equal(t, http.StatusOK, d.post("change", form).status)
			require.Contains(t, page.text(), fmt.Sprintf("abandoned %d", operations))
		}
	}
	require.Equal(t, []int{50, 50, 20}, sizes)
	for i := range operations {
		require.Equal(t, addressOf(numbered(i)), seen[i])
	}
}

func TestOperationsOfAUser(t *testing.T) {
	t.Parallel()
	odd := idempotency.Key{User: `a&b="<x>` + "\u202e", Endpoint: "POST /payments", ID: "1"}
	store := newStoreWith(t, order, odd)
	d := newDesk(t, store)
	got := d.post("search", url.Values{"user": {odd.User}})
	require.Equal(t, []string{addressOf(odd)}, got.links(`operation[^"]*`))
	require.Contains(t, got.text(), `Operations: all of a&b="<x>\u202e`)
	require.Contains(t, got.text(), "abandoned 1")
	abandoned := d.get(got.links(`\?state=abandoned[^"]*`)[0])
	require.Contains(t, abandoned.text(), "abandoned 1 released 0 running 0 completed 0 all 1")
	for _, link := range got.links(`\?[^"]*`) { // all of them stay with that user
		require.NotContains(t, d.get(link).page, addressOf(order))
	}
}

func TestAddressesThatNobodyHasMade(t *testing.T) {
	t.Parallel()
	d := newDesk(t, newStoreWith(t, order))
	id := "b24d9d95-4c46-8928-9469-3b1c939f4f3f"
	for _, address := range []string{
		"?state=Abandoned", "?state=%00", "?after=", "?after=abc", "?after=" + id, "?after=" + id + "&created=yesterday",
		"?after=" + id + "00&created=2026-01-01T00:00:00Z", "operation", "operation?id=", "operation?id=" + id[1:],
		"operation?id=z" + id[1:], "operation?id=" + id + "00",
	} {
		require.Equal(t, http.StatusBadRequest, d.get(address).status, address)
	}
	require.Equal(t, http.StatusOK, d.get("?after="+id+"&created=2026-01-01T00:00:00Z").status)
}

// Search leads to one operation, and keeps user and key out of the address.
func TestSearch(t *testing.T) {
	t.Parallel()
	quoted := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: `a"b`}
	long := idempotency.Key{User: "alice", Endpoint: "POST /" + strings.Repeat("a", 300), ID: "1"}
	store := newStoreWith(t, order, quoted, long.Bounded())
	complete(t, store, numbered(2), receipt)
	d := newDesk(t, store)
	byKey := func(key idempotency.Key, text string) url.Values {
		return url.Values{"user": {key.User}, "endpoint": {key.Endpoint}, "key": {text}}
	}
	id := order.OperationID().String()
	for name, found := range map[string]struct {
		form url.Values
		key  idempotency.Key
	}{
		"key":           {byKey(order, order.ID), order},
		"key in quotes": {byKey(order, `"order-1"`), order},
		"key of quotes": {byKey(quoted, `"a\"b"`), quoted},
		"long key":      {byKey(long, "1"), long.Bounded()},
		"ID":            {url.Values{"operation": {id}}, order},
		"capital ID":    {url.Values{"operation": {" " + strings.ToUpper(id) + " "}}, order},
		"instance":      {url.Values{"operation": {"urn:uuid:" + id}}, order},
		"completed":     {url.Values{"operation": {numbered(2).OperationID().String()}}, numbered(2)},
	} {
		t.Run(name, func(t *testing.T) {
			got := d.post("search", found.form)
			require.Equal(t, http.StatusOK, got.status)
			require.Equal(t, d.url+addressOf(found.key), got.url.String())
			require.Contains(t, got.page, found.key.OperationID().String())
		})
	}
}

// A part of a key, or a time, finds the newest records first. The key is not in an address.
func TestSearchByParts(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 60 {
		complete(t, store, idempotency.Key{User: "alice", Endpoint: "POST /refunds", ID: fmt.Sprint("refund-", i)}, receipt)
	}
	complete(t, store, order, receipt)
	bob := idempotency.Key{User: "bob", Endpoint: order.Endpoint, ID: order.ID}
	complete(t, store, bob, receipt)
	d := newDesk(t, store)
	day := func(days int) []string { return []string{time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly)} }
	for name, test := range map[string]struct {
		form  url.Values
		found int
		first idempotency.Key
		says  string
	}{
		"key":               {url.Values{"key": {order.ID}}, 2, bob, ""},
		"key in quotes":     {url.Values{"key": {`"` + order.ID + `"`}}, 2, bob, ""},
		"endpoint":          {url.Values{"endpoint": {order.Endpoint}, "user": {"alice"}}, 1, order, ""},
		"many":              {url.Values{"endpoint": {"POST /refunds"}}, 50, idempotency.Key{User: "alice", Endpoint: "POST /refunds", ID: "refund-59"}, "There are more."},
		"times":             {url.Values{"since": day(-1), "before": day(2), "key": {order.ID}}, 2, bob, ""},
		"before yesterday":  {url.Values{"before": day(-1)}, 0, idempotency.Key{}, "Nothing was found."},
		"user and tomorrow": {url.Values{"user": {"bob"}, "since": day(2)}, 0, idempotency.Key{}, "Nothing was found."},
	} {
		got := d.post("search", test.form)
		require.Equal(t, http.StatusOK, got.status, name)
		links := got.links(`operation\?[^"]*`)
		require.Len(t, links, test.found, name)
		if test.found > 0 {
			require.Equal(t, addressOf(test.first), links[0], name)
		}
		require.Contains(t, got.text(), test.says, name)
		require.Equal(t, d.url+"search", got.url.String(), name)
	}
}

// A search that finds nothing says so, and keeps what was typed in.
func TestSearchInVain(t *testing.T) {
	t.Parallel()
	d := newDesk(t, newStoreWith(t, order))
	absent := numbered(99)
	for name, vain := range map[string]struct {
		form   url.Values
		status int
		says   string
	}{
		"nothing":      {url.Values{}, 422, "Fill in an operation ID, or any of the other fields."},
		"no time":      {url.Values{"since": {"yesterday"}}, 422, "A time is a date, such as"},
		"no ID":        {url.Values{"operation": {`"><b>`}}, 422, "An operation ID is a UUID."},
		"another form": {url.Values{"operation": {"urn:uuid:" + absent.OperationID().String()}}, 404, "No record of this operation"},
		"absent ID":    {url.Values{"operation": {absent.OperationID().String()}}, 404, "No record of this operation"},
		"absent key":   {url.Values{"user": {"alice"}, "endpoint": {"x"}, "key": {"y"}}, 404, "No record of this operation"},
	} {
		got := d.post("search", vain.form)
		require.Equal(t, vain.status, got.status, name)
		require.Contains(t, got.fault(), vain.says, name)
	}
	require.Contains(t, d.post("search", url.Values{"operation": {`"><b>`}}).page, `value="&#34;&gt;&lt;b&gt;"`)
	for _, field := range []string{"key", "endpoint"} { // the page shows the fields that have a value
		got := d.post("search", url.Values{field: {"typed in"}}).page
		require.Contains(t, got, `<details open>`)
		require.Contains(t, got, `name="`+field+`" value="typed in"`)
	}
	require.NotContains(t, d.get("").page, `<details open>`)
}

// What a listing leaves out is said.
func TestListingThatIsNotWhole(t *testing.T) {
	t.Parallel()
	d := newDesk(t, partial{newStoreWith(t, order)})
	require.Contains(t, d.get("").text(), "The store has more records than were looked at.")
	require.Contains(t, d.get("").text(), "Records that cannot be read, and are not listed: 3.")
}
