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

// The number of requests of each step is the documented one.
func TestRequests(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := begun(t, store, "first")
	require.Equal(t, "GetItem UpdateItem", s.taken(), "the clocks are compared once")
	for name, tt := range map[string]struct {
		step func(t *testing.T, id string)
		want string
	}{
		"first execution": {func(t *testing.T, id string) { completed(t, store, id) }, "UpdateItem UpdateItem"},
		"claim":           {func(t *testing.T, id string) { begun(t, store, id) }, "UpdateItem"},
		"replay": {func(t *testing.T, id string) {
			completed(t, store, id)
			s.taken()
			requireReplay(t, store, id, answer)
		}, "UpdateItem"},
		"refusal": {func(t *testing.T, id string) {
			begun(t, store, id)
			s.taken()
			_, other, err := store.Begin(t.Context(), keyOf(id), request)
			require.NoError(t, err)
			require.Nil(t, other)
		}, "UpdateItem"},
		"inspection of a free key": {func(t *testing.T, id string) {
			_, err := store.Inspect(t.Context(), keyOf(id))
			require.ErrorIs(t, err, idempotency.ErrNoRecord)
		}, "GetItem"},
		"renewal": {func(t *testing.T, id string) {
			s.taken()
			require.NoError(t, claim.Extend(t.Context(), time.Minute))
		}, "UpdateItem"},
		"renewal beyond the TTL": {func(t *testing.T, id string) {
			require.NoError(t, claim.Extend(t.Context(), 2*time.Hour))
		}, "UpdateItem UpdateItem"},
		"release": {func(t *testing.T, id string) {
			_, claim := begun(t, store, id)
			s.taken()
			require.NoError(t, claim.Release(t.Context(), time.Hour))
		}, "UpdateItem"},
		"attempt after a release": {func(t *testing.T, id string) {
			_, claim := begun(t, store, id)
			require.NoError(t, claim.Release(t.Context(), time.Hour))
			s.taken()
			begun(t, store, id)
		}, "UpdateItem UpdateItem"},
		"takeover": {func(t *testing.T, id string) {
			lapsed(t, store, id)
			s.taken()
			over := request
			over.TakeOver = true
			record, _, err := store.Begin(t.Context(), keyOf(id), over)
			require.NoError(t, err)
			require.Equal(t, 2, record.Attempt)
		}, "UpdateItem UpdateItem"},
		"key of a record that has expired": {func(t *testing.T, id string) {
			completed(t, store, id)
			s.tamper(id, "expires", map[string]any{"N": "1"})
			s.taken()
			completed(t, store, id)
		}, "UpdateItem UpdateItem"},
		"step": {func(t *testing.T, id string) {
			_, claim := begun(t, store, id)
			s.taken()
			_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", []byte("1"))
			require.NoError(t, err)
		}, "UpdateItem"},
	} {
		t.Run(name, func(t *testing.T) {
			s.taken()
			tt.step(t, name)
			require.Equal(t, tt.want, s.taken())
		})
	}
}

// What a client is told is whole, also if the service has no room for it. What can be compressed takes less of it.
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
			_, claim := begun(t, store, "key")
			large := idempotency.Response{Status: 200, Header: answer.Header, Body: tt.body}
			require.NoError(t, claim.Complete(t.Context(), large, time.Hour))
			want := large
			if !tt.kept {
				want = idempotency.Response{Status: 200, Omitted: true}
			}
			requireReplay(t, store, "key", want)
			require.LessOrEqual(t, sizeOf(s.item("key")), item)
		})
	}
}

// The service itself refuses what is too large, by another count.
func TestServiceRefusesSize(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := begun(t, store, "key")
	s.inject("UpdateItem", refusesSize)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "key", idempotency.Response{Status: 201, Omitted: true})

	_, claim = begun(t, store, "steps")
	s.inject("UpdateItem", refusesSize)
	steps := claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(context.Background(), "charge", []byte("1"))
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	_, err = steps.Checkpoint(context.Background(), "charge", make([]byte, 400<<10))
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
}

// The units that a step consumes, by the rules of the service: a write takes one for each KB of the item, before or after,
// whichever is larger; also if its condition fails. Powertools has less in an item, and does not compress.
func TestUnits(t *testing.T) {
	t.Parallel()
	type units struct{ first, replay int }
	for _, tt := range []struct {
		name             string
		body             []byte
		ours, powertools units
	}{
		{"nothing", nil, units{2, 1}, units{2, 1}},
		{"200 B of JSON", payments(200), units{2, 1}, units{2, 1}},
		{"1 KB of JSON", payments(1 << 10), units{2, 1}, units{3, 2}},
		{"10 KB of JSON", payments(10 << 10), units{4, 3}, units{12, 11}},
		{"200 KB of JSON", payments(200 << 10), units{41, 40}, units{202, 201}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, s := newStore(t)
			_, claim := begun(t, store, "4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b")
			claimed := writeUnits(sizeOf(s.item("4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b")))
			resp := idempotency.Response{Status: 200, Header: "Content-Type: application/json\n", Body: tt.body}
			require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
			size := sizeOf(s.item("4ca4c2c2-6d5c-4e41-8d3b-0d3ff6b8bd6b"))
			require.Equal(t, tt.ours, units{claimed + writeUnits(size), writeUnits(size)}, "%d bytes", size)

			item := attributes{"id": text("payments.handler#" + strings.Repeat("f", 32)), "status": text("COMPLETED"),
				"expiration": digits("1764150000"), "in_progress_expiration": digits("1764146400000"), "data": text(string(tt.body))}
			require.Equal(t, tt.powertools, units{1 + writeUnits(sizeOf(item)), writeUnits(sizeOf(item))})
			t.Logf("%s: %d bytes, Powertools %d", tt.name, size, sizeOf(item))
		})
	}
}

// payments returns JSON of about so many bytes: objects whose IDs and amounts are random.
func payments(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := []byte("[")
	for len(b) < size-50 {
		b = fmt.Appendf(b, `{"id":"pay_%016x","amount":%d,"currency":"EUR","state":"paid"},`, random.Uint64(), random.IntN(100_000))
	}
	return append(b[:len(b)-1], ']')
}

// Options without a fault are needed for every call, and for the middleware.
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
