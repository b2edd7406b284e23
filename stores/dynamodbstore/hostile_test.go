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

// readNumber returns a number of a stored record.
func (s *service) readNumber(t testing.TB, id, name string) int64 {
	t.Helper()
	text, _ := s.readItem(id)[name]["N"].(string)
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err, "%s of %s", name, id)
	return n
}

func textAttr(v string) map[string]any   { return map[string]any{"S": v} }
func numberAttr(v string) map[string]any { return map[string]any{"N": v} }
func binaryAttr(v []byte) map[string]any {
	return map[string]any{"B": base64.StdEncoding.EncodeToString(v)}
}

func gzipBytes(t testing.TB, v []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(v)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func encodeResponse(t testing.TB, resp idempotency.Response) []byte {
	t.Helper()
	stored, err := resp.MarshalBinary()
	require.NoError(t, err)
	return stored
}

// An item that stores never write is neither replayed nor claimed, and stays unchanged until the record expires.
func TestTamperedItems(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	whole := encodeResponse(t, answer)
	for name, tt := range map[string]struct {
		of, name string
		value    map[string]any
	}{
		"user":                   {"completed", "user_id", textAttr("user 43")},
		"case of the user":       {"completed", "user_id", textAttr("USER 42")},
		"no user":                {"completed", "user_id", nil},
		"user in bytes":          {"completed", "user_id", binaryAttr([]byte("user 42"))},
		"endpoint":               {"completed", "endpoint", textAttr("POST /refunds")},
		"attempt 0":              {"running", "attempt", numberAttr("0")},
		"last attempt":           {"released", "attempt", numberAttr("2147483647")},
		"half an attempt":        {"released", "attempt", numberAttr("1.5")},
		"huge attempt":           {"completed", "attempt", numberAttr("9223372036854775808")},
		"attempt in words":       {"completed", "attempt", textAttr("many")},
		"no attempt":             {"completed", "attempt", nil},
		"creation":               {"completed", "created", textAttr("once")},
		"no fingerprint":         {"released", "fingerprint", nil},
		"long fingerprint":       {"completed", "fingerprint", binaryAttr(make([]byte, 33))},
		"zero fingerprint":       {"released", "fingerprint", binaryAttr(make([]byte, 32))},
		"lease in words":         {"running", "lease", textAttr("long")},
		"completed with a lease": {"completed", "lease", numberAttr("1")},
		"no expiry":              {"completed", "expires", nil},
		"answer in text":         {"completed", "answer", textAttr(string(whole))},
		"other answer":           {"completed", "answer", binaryAttr([]byte("hello"))},
		"cut answer":             {"completed", "answer", binaryAttr(whole[:len(whole)-1])},
		"status":                 {"completed", "answer", binaryAttr(bytes.Replace(whole, []byte(" 201 "), []byte(" 200 "), 1))},
		"impossible status":      {"completed", "answer", binaryAttr(encodeResponse(t, idempotency.Response{Status: 99}))},
		"zipped, of another size": {"completed", "answer",
			binaryAttr(gzipBytes(t, append(whole, "more"...)))},
		"zipped, and cut": {"completed", "answer", binaryAttr(gzipBytes(t, whole)[:20])},
		"zipped zeros":    {"completed", "answer", binaryAttr(gzipBytes(t, make([]byte, 1<<20)))},
	} {
		t.Run(name, func(t *testing.T) {
			id := tt.of + " " + name
			_, claim := claimKey(t, store, id)
			switch tt.of {
			case "completed":
				require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			case "released":
				require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			}
			s.setAttribute(id, tt.name, tt.value)
			before := s.readItem(id)
			for _, takeOver := range []bool{false, true} {
				claimRequest := request
				claimRequest.TakeOver = takeOver
				_, _, err := store.Begin(t.Context(), keyOf(id), claimRequest)
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Nil(t, testservice.InDoubt(err))
			}
			if name != "zero fingerprint" { // which a sealed record may have
				_, err := store.Inspect(t.Context(), keyOf(id))
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			}
			_, err := store.List(t.Context(), idempotency.ListRequest{})
			require.NoError(t, err)
			require.Equal(t, before, s.readItem(id))

			s.setAttribute(id, "expires", numberAttr("1"))
			record, _ := claimKey(t, store, id)
			require.Equal(t, 1, record.Attempt)
		})
	}
}

// A listing counts unreadable items.
func TestListingOfTamperedItems(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	completeKey(t, store, "sound")
	completeKey(t, store, "tampered")
	s.setAttribute("tampered", "attempt", textAttr("many"))
	listing, err := store.List(t.Context(), idempotency.ListRequest{})
	require.NoError(t, err)
	require.Len(t, listing.Entries, 1)
	require.Equal(t, "sound", listing.Entries[0].Key.ID)
	require.Equal(t, 1, listing.Unreadable)
}

// Keys may contain any bytes.
func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	for _, id := range []string{"a", "A", "ä", "a ", "", "\x00", "\xff", "😀", `\`, "'", "#", ":a", strings.Repeat("\xff", 4096)} {
		completeKey(t, store, id)
		requireReplay(t, store, id, answer)
	}
	for _, name := range settingtest.Names {
		key := idempotency.Key{User: name, Endpoint: name, ID: name + "!"}
		_, claim, err := store.Begin(t.Context(), key, request)
		require.NoError(t, err, "%q", name)
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour), "%q", name)
		entry, err := store.InspectOperation(t.Context(), key.OperationID())
		require.NoError(t, err, "%q", name)
		require.Equal(t, key, entry.Key)
		require.Equal(t, &answer, entry.Response)
		listing, err := store.List(t.Context(), idempotency.ListRequest{User: name, Limit: 1000})
		require.NoError(t, err, "%q", name)
		require.True(t, slices.ContainsFunc(listing.Entries, func(e idempotency.Entry) bool { return e.Key == key }), "%q", name)
	}
}

// The largest possible answer leaves room for the largest names, in their stored form.
func TestLargestNames(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	part := strings.Repeat("\xff", 255) // longer parts are shortened
	key := idempotency.Key{User: part, Endpoint: part, ID: part}.Bounded()
	resp := idempotency.Response{Status: 201, Note: strings.Repeat("n", 255)}
	resp.Body = randomBytes(t, 400<<10-4<<10-len(encodeResponse(t, resp))-16)
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), resp, time.Hour))
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.Equal(t, &resp, record.Response, "it is kept whole")
	named, err := json.Marshal(map[string]any{"Key": map[string]any{"operation": map[string]any{"S": key.OperationID()}}})
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	size := itemSize(s.requestedItem(named))
	require.Greater(t, size, 399<<10, "the test is close to the limit")
	require.LessOrEqual(t, size, 400<<10)
}
