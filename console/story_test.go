package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// partial is a store that has more records than it lists.
type partial struct{ *idempotency.MemoryStore }

func (s partial) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	listing, err := s.MemoryStore.List(ctx, request)
	listing.Partial, listing.Unreadable = true, 3
	return listing, err
}

// The story says what the state means, and offers what may be done about it.
func TestStoryOfEachState(t *testing.T) {
	t.Parallel()
	store := newStore()
	abandon(t, store, numbered(0), "reserve", "charge?", "mail", "mail?", idempotency.RecordLost)
	begin(t, store, numbered(1), request.Lease)
	require.NoError(t, begin(t, store, numbered(2), request.Lease).Release(t.Context(), idempotency.Release{TTL: request.TTL}))
	complete(t, store, numbered(3), receipt)
	complete(t, store, numbered(4), idempotency.Response{Status: 201, Omitted: true})
	for i, end := range []idempotency.Release{
		{TTL: request.TTL, Reason: idempotency.EndNotStorable}, {Abandoned: true, Reason: idempotency.EndPanicked},
	} {
		require.NoError(t, begin(t, store, numbered(5+i), request.Lease).Release(t.Context(), end))
	}
	d := newDesk(t, store)
	for i, story := range []struct {
		says            []string
		resolve, forget bool
	}{
		{[]string{
			"abandoned What it means", "Nobody knows what it has done.", "Ask the system that has the effect", "Lease has lapsed",
			"the store has lost the record once, so further steps may have begun", "charge begun, its outcome is not known", "reserve done, 15 B", "mail done, 15 B",
			"what they have done happens a second time", "Attempt 1", "Kept for 23 h 59 min",
		}, true, true},
		{[]string{"running What it means", "An attempt is running now.", "Lease left 59 min"}, false, false},
		{[]string{
			"released What it means", "The next request with the key runs the operation", "A retry is executed in any case",
		}, false, true},
		{[]string{
			"completed What it means", "A retry gets the stored answer", "Status 201 Created", "Note payment pay_1",
			"Content-Type: application/json X-Account: 4711", `{"receipt":"R-17"}`, "Trailer X-Sum: 12", "Completed 20",
			"its effects, such as a charge, happen a second time",
		}, false, true},
		{[]string{"Its answer was not kept", "409 not-replayable", "Only its status was kept.", "Status 201 Created"}, false, true},
		{[]string{"released What it means", "without an answer that counts: the service failed, so its answer is not stored."}, false, true},
		{[]string{"abandoned What it means", "ended without an answer: the handler panicked or exited."}, true, true},
	} {
		got := d.get(addressOf(numbered(i)))
		require.Equal(t, http.StatusOK, got.status)
		key := fmt.Sprintf("User alice Endpoint POST /payments Key order-%d", i)
		for _, says := range append(story.says, numbered(i).OperationID().String(), key) {
			require.Contains(t, got.text(), says)
		}
		require.NotContains(t, got.text(), "secret result")
		require.Equal(t, story.resolve, strings.Contains(got.page, `value="answer"`))
		require.Equal(t, story.resolve, strings.Contains(got.page, `value="tombstone"`))
		require.Equal(t, story.resolve, strings.Contains(got.page, `value="not-happened"`))
		require.Equal(t, story.forget, strings.Contains(got.page, `value="forget"`))
	}
	require.NotContains(t, d.get(addressOf(numbered(0))).text(), "mail begun", "that step is done")
}

// The provider knows the operation by the key that the handler derives.
func TestDownstreamKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t, newStoreWith(t, order))
	want := idempotency.Operation{Key: order, ID: order.OperationID()}.DownstreamKey("charge")
	require.NotContains(t, d.get(addressOf(order)).page, want)
	require.Contains(t, d.get(addressOf(order)+"&name=charge").text(), "The provider knows it as "+want)
}

// broken is a store whose records cannot be read, or not whole.
type broken struct {
	*idempotency.MemoryStore
	entry idempotency.Entry
}

func (s *broken) InspectOperation(_ context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	entry := s.entry
	entry.Operation = operation
	return entry, fmt.Errorf("%w: response", idempotency.ErrRecordInvalid)
}

func (s *broken) Resolve(context.Context, idempotency.Entry, idempotency.Resolution) error {
	return idempotency.ErrRecordInvalid
}

func TestStoryOfADamagedRecord(t *testing.T) {
	t.Parallel()
	store := &broken{newStoreWith(t, order), idempotency.Entry{}}
	d := newDesk(t, store)
	got := d.get(addressOf(order))
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.text(), "not readable What it means The record cannot be read.")
	require.Contains(t, got.text(), "Attempt not readable Began not readable")
	require.NotContains(t, got.page, `name="do"`)

	store.entry = inspect(t, store.MemoryStore, order) // all but what is behind it
	got = d.get(addressOf(order))
	require.Contains(t, got.text(), "The record cannot be read. If the operation was executed, its effects happen a second time.")
	require.NotContains(t, got.page, `value="not-happened"`)
	form := d.form(got.page, "forget", "reason", "it was not charged")
	form.Set("do", "not-happened") // which the page does not offer
	got = d.post("change", form)
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.fault(), "Too little of the record can be read")
	form.Set("do", "forget")
	d.post("change", form)
	_, err := store.Inspect(t.Context(), order)
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
}

// A long body is shown in part. What is no text is shown as what it is.
func TestBodies(t *testing.T) {
	t.Parallel()
	store := newStore()
	long := strings.Repeat("a", 64<<10)
	for i, body := range []string{"", long, long + "a", "\n\tone\r\ntwo\\", "\x1f\x8b\x00\xff"} {
		complete(t, store, numbered(i), idempotency.Response{Status: 200, Header: "Content-Type: text/plain\n", Body: []byte(body)})
	}
	d := newDesk(t, store)
	require.Contains(t, d.get(addressOf(numbered(0))).text(), "Body None.")
	require.NotContains(t, d.get(addressOf(numbered(1))).text(), "The body is longer.")
	cut := d.get(addressOf(numbered(2)))
	require.Contains(t, cut.text(), "The body is longer.")
	require.Contains(t, cut.page, "<pre><code>"+strings.Repeat("a", 64<<10)+"</code></pre>")
	require.Contains(t, d.get(addressOf(numbered(3))).page, "<pre><code>\n\tone\\r\ntwo\\\\</code></pre>")
	require.Contains(t, d.get(addressOf(numbered(4))).page, `<pre><code>\x1f\x8b\x00\xff</code></pre>`)
}
