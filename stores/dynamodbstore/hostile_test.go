package dynamodbstore_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/internal/settingtest"
)

// number returns an attribute of a record.
func (s *service) number(t testing.TB, id, name string) int64 {
	t.Helper()
	text, _ := s.item(id)[name]["N"].(string)
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err, "%s of %s", name, id)
	return n
}

func text(v string) map[string]any   { return map[string]any{"S": v} }
func digits(v string) map[string]any { return map[string]any{"N": v} }
func bin(v []byte) map[string]any {
	return map[string]any{"B": base64.StdEncoding.EncodeToString(v)}
}

func zipped(t testing.TB, v []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(v)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func marshal(t testing.TB, resp idempotency.Response) []byte {
	t.Helper()
	stored, err := resp.MarshalBinary()
	require.NoError(t, err)
	return stored
}

// An item that no store has written is neither replayed nor claimed, and stays as it is until it expires.
func TestTamperedItems(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	whole := marshal(t, answer)
	for name, tt := range map[string]struct {
		of, name string
		value    map[string]any
	}{
		"user":                   {"completed", "user_id", text("user 43")},
		"case of the user":       {"completed", "user_id", text("USER 42")},
		"no user":                {"completed", "user_id", nil},
		"user in bytes":          {"completed", "user_id", bin([]byte("user 42"))},
		"endpoint":               {"completed", "endpoint", text("POST /refunds")},
		"attempt 0":              {"running", "attempt", digits("0")},
		"last attempt":           {"released", "attempt", digits("2147483647")},
		"half an attempt":        {"released", "attempt", digits("1.5")},
		"huge attempt":           {"completed", "attempt", digits("9223372036854775808")},
		"attempt in words":       {"completed", "attempt", text("many")},
		"no attempt":             {"completed", "attempt", nil},
		"creation":               {"completed", "created", text("once")},
		"no fingerprint":         {"released", "fingerprint", nil},
		"long fingerprint":       {"completed", "fingerprint", bin(make([]byte, 33))},
		"zero fingerprint":       {"released", "fingerprint", bin(make([]byte, 32))},
		"lease in words":         {"running", "lease", text("long")},
		"completed with a lease": {"completed", "lease", digits("1")},
		"no expiry":              {"completed", "expires", nil},
		"answer in text":         {"completed", "answer", text(string(whole))},
		"other answer":           {"completed", "answer", bin([]byte("hello"))},
		"cut answer":             {"completed", "answer", bin(whole[:len(whole)-1])},
		"status":                 {"completed", "answer", bin(bytes.Replace(whole, []byte(" 201 "), []byte(" 200 "), 1))},
		"impossible status":      {"completed", "answer", bin(marshal(t, idempotency.Response{Status: 99}))},
		"zipped, of another size": {"completed", "answer",
			bin(zipped(t, append(whole, "more"...)))},
		"zipped, and cut": {"completed", "answer", bin(zipped(t, whole)[:20])},
		"zipped zeros":    {"completed", "answer", bin(zipped(t, make([]byte, 1<<20)))},
	} {
		t.Run(name, func(t *testing.T) {
			id := tt.of + " " + name
			_, claim := begun(t, store, id)
			switch tt.of {
			case "completed":
				require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			case "released":
				require.NoError(t, claim.Release(t.Context(), time.Hour))
			}
			s.tamper(id, tt.name, tt.value)
			before := s.item(id)
			for _, takeOver := range []bool{false, true} {
				asked := request
				asked.TakeOver = takeOver
				_, _, err := store.Begin(t.Context(), keyOf(id), asked)
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Nil(t, testservice.InDoubt(err))
			}
			if name != "zero fingerprint" { // which a sealed one may be
				_, err := store.Inspect(t.Context(), keyOf(id))
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			}
			_, err := store.List(t.Context(), idempotency.ListRequest{})
			require.NoError(t, err)
			require.Equal(t, before, s.item(id))

			s.tamper(id, "expires", digits("1"))
			record, _ := begun(t, store, id)
			require.Equal(t, 1, record.Attempt)
		})
	}
}

// What cannot be read is counted in a listing.
func TestListingOfTamperedItems(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	completed(t, store, "sound")
	completed(t, store, "tampered")
	s.tamper("tampered", "attempt", text("many"))
	listing, err := store.List(t.Context(), idempotency.ListRequest{})
	require.NoError(t, err)
	require.Len(t, listing.Entries, 1)
	require.Equal(t, "sound", listing.Entries[0].Key.ID)
	require.Equal(t, 1, listing.Unreadable)
	_, err = store.List(t.Context(), idempotency.ListRequest{Limit: -1})
	require.ErrorContains(t, err, "less than zero")
}

// What a key contains does not matter.
func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	for _, id := range []string{"a", "A", "ä", "a ", "", "\x00", "\xff", "😀", `\`, "'", "#", ":a", strings.Repeat("\xff", 4096)} {
		completed(t, store, id)
		requireReplay(t, store, id, answer)
	}
	for _, name := range settingtest.Names {
		key := idempotency.Key{User: name, Endpoint: name, ID: name + "!"}
		_, claim, err := store.Begin(t.Context(), key, request)
		require.NoError(t, err, "%q", name)
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour), "%q", name)
		entry, err := store.InspectDigest(t.Context(), key.Digest())
		require.NoError(t, err, "%q", name)
		require.Equal(t, key, entry.Key)
		require.Equal(t, &answer, entry.Response)
		listing, err := store.List(t.Context(), idempotency.ListRequest{User: name, Limit: 1000})
		require.NoError(t, err, "%q", name)
		require.True(t, slices.ContainsFunc(listing.Entries, func(e idempotency.Entry) bool { return e.Key == key }), "%q", name)
	}
}

// The largest answer that is kept leaves room for the largest names, in the form that they are stored in.
func TestLargestNames(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	part := strings.Repeat("\xff", 255) // no longer part is kept whole
	key := idempotency.Key{User: part, Endpoint: part, ID: part}.Bounded()
	resp := idempotency.Response{Status: 201, Note: strings.Repeat("n", 255)}
	resp.Body = randomBytes(t, 400<<10-4<<10-len(marshal(t, resp))-16)
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Equal(t, &resp, record.Response, "it is kept whole")
	digest := key.Digest()
	named, err := json.Marshal(map[string]any{"Key": map[string]any{"digest": bin(digest[:])}})
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	size := sizeOf(s.stored(named))
	require.Greater(t, size, 399<<10, "the test is close to the limit")
	require.LessOrEqual(t, size, 400<<10)
}
