package dynamodbstore_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// Each operation takes as many requests as documented.
func TestRequests(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := claimKey(t, store, "first")
	require.Equal(t, "GetItem UpdateItem", s.takeCalls(), "the clocks are compared once")
	for name, tt := range map[string]struct {
		step func(t *testing.T, id string)
		want string
	}{
		"first execution": {func(t *testing.T, id string) { completeKey(t, store, id) }, "UpdateItem UpdateItem"},
		"claim":           {func(t *testing.T, id string) { claimKey(t, store, id) }, "UpdateItem"},
		"replay": {func(t *testing.T, id string) {
			completeKey(t, store, id)
			s.takeCalls()
			requireReplay(t, store, id, answer)
		}, "UpdateItem"},
		"refusal": {func(t *testing.T, id string) {
			claimKey(t, store, id)
			s.takeCalls()
			_, other, err := store.Begin(t.Context(), keyOf(id), request)
			require.NoError(t, err)
			require.Nil(t, other)
		}, "UpdateItem"},
		"inspection of a free key": {func(t *testing.T, id string) {
			_, err := store.Inspect(t.Context(), keyOf(id))
			require.ErrorIs(t, err, idempotency.ErrNoRecord)
		}, "GetItem"},
		"renewal": {func(t *testing.T, id string) {
			s.takeCalls()
			require.NoError(t, claim.Extend(t.Context(), time.Minute))
		}, "UpdateItem"},
		"renewal beyond the TTL": {func(t *testing.T, id string) {
			require.NoError(t, claim.Extend(t.Context(), 2*time.Hour))
		}, "UpdateItem UpdateItem"},
		"release": {func(t *testing.T, id string) {
			_, claim := claimKey(t, store, id)
			s.takeCalls()
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}, "UpdateItem"},
		"attempt after a release": {func(t *testing.T, id string) {
			_, claim := claimKey(t, store, id)
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			s.takeCalls()
			claimKey(t, store, id)
		}, "UpdateItem UpdateItem"},
		"takeover": {func(t *testing.T, id string) {
			claimAndLapse(t, store, id)
			s.takeCalls()
			takeover := request
			takeover.TakeOver = true
			record, _, err := store.Begin(t.Context(), keyOf(id), takeover)
			require.NoError(t, err)
			require.Equal(t, 2, record.Attempt)
		}, "UpdateItem UpdateItem"},
		"key of a record that has expired": {func(t *testing.T, id string) {
			completeKey(t, store, id)
			s.setAttribute(id, "expires", map[string]any{"N": "1"})
			s.takeCalls()
			completeKey(t, store, id)
		}, "UpdateItem UpdateItem"},
		"step": {func(t *testing.T, id string) {
			_, claim := claimKey(t, store, id)
			s.takeCalls()
			_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", []byte("1"))
			require.NoError(t, err)
		}, "UpdateItem"},
	} {
		t.Run(name, func(t *testing.T) {
			s.takeCalls()
			tt.step(t, name)
			require.Equal(t, tt.want, s.takeCalls())
		})
	}
}

// The client gets the whole answer, even if the item has no room for the answer. Compressed answers need less room.
func TestLargeAnswer(t *testing.T) {
	t.Parallel()
	const item = 400 << 10
	noise := randomBytes(t, item)
	for name, tt := range map[string]struct {
		body []byte
		kept bool
	}{
		"small":                          {[]byte("receipt"), true},
		"noise that fits":                {noise[:item-8<<10], true},
		"noise that does not":            {noise, false},
		"text of a megabyte":             {[]byte(strings.Repeat(`{"id":1234,"state":"paid"},`, 40_000)), true},
		"text that is too large by far":  {bytes.Repeat([]byte("a"), 65<<20), false},
		"noise behind a lot of text":     {append(bytes.Repeat([]byte("a"), 2<<20), noise...), false},
		"noise that is small, with text": {append(bytes.Repeat([]byte("a"), 2<<20), noise[:1<<10]...), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, s := newStore(t)
			_, claim := claimKey(t, store, "key")
			large := idempotency.Response{Status: 200, Header: answer.Header, Body: tt.body}
			require.NoError(t, claim.Complete(t.Context(), large, time.Hour))
			want := large
			if !tt.kept {
				want = idempotency.Response{Status: 200, Omitted: true}
			}
			requireReplay(t, store, "key", want)
			require.LessOrEqual(t, itemSize(s.readItem("key")), item)
		})
	}
}

// The service may refuse an item that the store considers small enough.
func TestServiceRefusesSize(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := claimKey(t, store, "key")
	s.injectFaults("UpdateItem", refuseSize)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "key", idempotency.Response{Status: 201, Omitted: true})

	_, claim = claimKey(t, store, "steps")
	s.injectFaults("UpdateItem", refuseSize)
	steps := claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(context.Background(), "charge", []byte("1"))
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	_, err = steps.Checkpoint(context.Background(), "charge", make([]byte, 400<<10))
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
}

// Units follow the rules of the service: a write takes one unit for each KB of the item, before or after the write, whichever
// is larger, even if the condition fails. Powertools has smaller items, and does not compress.
func TestUnits(t *testing.T) {
	t.Parallel()
	type units struct{ first, replay int }
	for _, tt := range []struct {
		name             string
		body             []byte
		ours, powertools units
	}{
		{"nothing", nil, units{2, 1}, units{2, 1}},
		{"200 B of JSON", randomPayments(200), units{2, 1}, units{2, 1}},
		{"1 KB of JSON", randomPayments(1 << 10), units{2, 1}, units{3, 2}},
		{"10 KB of JSON", randomPayments(10 << 10), units{4, 3}, units{12, 11}},
		{"200 KB of JSON", randomPayments(200 << 10), units{41, 40}, units{202, 201}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, s := newStore(t)
			_, claim := claimKey(t, store, "4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b")
			claimed := writeUnits(itemSize(s.readItem("4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b")))
			resp := idempotency.Response{Status: 200, Header: "Content-Type: application/json\n", Body: tt.body}
			require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
			size := itemSize(s.readItem("4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b"))
			require.Equal(t, tt.ours, units{claimed + writeUnits(size), writeUnits(size)}, "%d bytes", size)

			item := attributes{"id": textAttr("payments.handler#" + strings.Repeat("f", 32)), "status": textAttr("COMPLETED"),
				"expiration": numberAttr("1764150000"), "in_progress_expiration": numberAttr("1764146400000"),
				"data": textAttr(string(tt.body))}
			require.Equal(t, tt.powertools, units{1 + writeUnits(itemSize(item)), writeUnits(itemSize(item))})
			t.Logf("%s: %d bytes, Powertools %d", tt.name, size, itemSize(item))
		})
	}
}

// randomPayments returns JSON of about size bytes: objects with random IDs and amounts.
func randomPayments(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := []byte("[")
	for len(b) < size-50 {
		b = fmt.Appendf(b, `{"id":"pay_%016x","amount":%d,"currency":"EUR","state":"paid"},`, random.Uint64(), random.IntN(100_000))
	}
	return append(b[:len(b)-1], ']')
}

// Faulty options are an error of every method, and of the middleware.
func TestFaultyOptions(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewRunner(dynamodbstore.New(nil, dynamodbstore.Options{}), idempotency.RunnerOptions{})
	require.ErrorContains(t, err, "the client is nil")
	s := newService(t)
	for want, opts := range map[string]dynamodbstore.Options{
		"dynamodbstore: Table is ": {Table: "a b"}, "dynamodbstore: Skew is ": {Skew: -1},
	} {
		store := dynamodbstore.New(s.client, opts)
		_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
		require.Nil(t, claim)
		_, inspected := store.Inspect(t.Context(), keyOf("key"))
		_, listed := store.List(t.Context(), idempotency.ListRequest{})
		_, made := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
		for _, err := range []error{
			err, made, inspected, listed, store.Check(t.Context()), dynamodbstore.CreateTable(t.Context(), s.client, opts),
			store.Forget(t.Context(), idempotency.Entry{}),
			store.Resolve(t.Context(), idempotency.Entry{}, idempotency.Resolution{}),
		} {
			require.ErrorContains(t, err, want)
		}
	}
}
