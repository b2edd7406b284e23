package idempotency_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// Inspect finds a record by the parts of its key as the service and the client know these parts, however long the parts are.
// InspectOperation finds the record by the ID alone.
func TestInspectByPartsAndByOperation(t *testing.T) {
	t.Parallel()
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, servertest.Redis(t).Addr()), idempotency.RedisOptions{})
	svc := testservice.Setup{
		Store: store,
		User:  func(*http.Request) (string, error) { return "alice", nil },
	}.Serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	for _, path := range []string{"/a", "/" + strings.Repeat("a", 1000)} {
		require.NoError(t, svc.Send(path, "k", "").Err)
		key := idempotency.Key{User: "alice", Endpoint: "POST " + path, ID: "k"}
		entry, err := store.Inspect(t.Context(), key.Bounded())
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, entry.Status)
		same, err := store.InspectOperation(t.Context(), entry.Operation)
		require.NoError(t, err)
		same.Remaining = entry.Remaining
		require.Equal(t, entry, same)
	}
	_, err := store.InspectOperation(t.Context(), uuid.New())
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
}

// FuzzRedisInspect stores any value under the name of a record. The store must return the same entry as another reader,
// nothing from an invalid value, and must forget only records that Forget allows.
func FuzzRedisInspect(f *testing.F) {
	server := miniredis.RunT(f) // its clock stands still
	server.RequireAuth(servertest.RedisPassword())
	client := testservice.NewRedisClient(f, server.Addr(), testservice.WithContextTimeout)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	noted := frozenResponse
	noted.Note = "charge ch_1"
	testservice.MustComplete(f, store, testservice.NumberedKey(1), noted)
	name := server.Keys()[0]
	operation := testservice.NumberedKey(1).OperationID().String()
	done := client.Get(f.Context(), name).Val()
	for _, as := range recordStates {
		for _, left := range []uint32{3_600_000, 3_600_000 - 59_999, 3_600_000 - 60_000, 1} {
			f.Add(as(done), left)
		}
		for _, damage := range malformed {
			f.Add(damage(as(done)), uint32(1))
		}
		f.Add(as(done)+"\n", uint32(1))
		f.Add(replaceWord("attempt", "attempt=0000000001")(as(done)), uint32(1))
		f.Add(replaceWord("attempt", "attempt=0")(as(done)), uint32(1))
		f.Add(replaceWord("token", "token="+strings.Repeat("x", 32))(as(done)), uint32(1))
		f.Add(strings.Replace(as(done), " released ", " paused ", 1), uint32(1))
	}
	for _, damage := range damages {
		f.Add(damage(done), uint32(1))
	}
	for _, change := range []string{
		" header=0", " header=-1", " header=9999999999999999999", " trailer=9223372036854775807", " body=omitted",
	} {
		from, _, _ := strings.Cut(change, "=")
		_, rest, _ := strings.Cut(done, from+"=")
		f.Add(strings.Replace(done, from+"="+rest[:strings.IndexAny(rest, " \n")], change, 1), uint32(1))
	}
	f.Add(strings.Replace(done, "note=charge", "note=ch\x1b[2J", 1), uint32(1))
	f.Fuzz(func(t *testing.T, value string, expiry uint32) {
		expiry = max(expiry, 1)
		require.NoError(t, client.Set(t.Context(), name, value, time.Duration(expiry)*time.Millisecond).Err())
		seen := inspectFuzzed(t, store, value, operation, expiry)
		require.Equal(t, value, client.Get(t.Context(), name).Val())
		require.Equal(t, int64(expiry), client.PTTL(t.Context(), name).Val().Milliseconds())

		err := store.Forget(t.Context(), seen)
		m := redisForm.FindStringSubmatch(value)
		switch {
		case seen.State == "", !hexToken.MatchString(m[2]): // no script accepts this value as a record
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		case seen.State == idempotency.StateRunning:
			require.ErrorIs(t, err, idempotency.ErrInProgress)
		default:
			require.NoError(t, err)
			require.Zero(t, client.Exists(t.Context(), name).Val())
			return
		}
		require.Equal(t, value, client.Get(t.Context(), name).Val())
	})
}

// redisEntryFor returns the entry of another reader, or nil if the value is no record.
func redisEntryFor(t *testing.T, value, operation string) *redisEntry {
	t.Helper()
	if entry, ok := redisEntryOf(value, operation); ok {
		return &entry
	}
	return nil
}

// isOfOtherUser reports whether value begins with the head of a record whose user is not alice.
func isOfOtherUser(value string) bool {
	m := redisForm.FindStringSubmatch(value)
	return m != nil && m[7] != aliceDigest
}

// inspectFuzzed inspects and lists the only record, whose value is value, and compares both results with the entry of another
// reader.
func inspectFuzzed(
	t *testing.T, store *idempotency.RedisStore, value, operation string, expiry uint32,
) idempotency.Entry {
	t.Helper()
	want := redisEntryFor(t, value, operation)
	seen, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	listing := testservice.MustList(t, store)
	if want != nil && want.isFree {
		require.ErrorIs(t, err, idempotency.ErrNoRecord)
		require.Zero(t, seen)
		require.Equal(t, idempotency.Listing{Totals: map[idempotency.State]idempotency.Total{}}, listing)
		return seen
	}
	require.Equal(t, testservice.NumberedKey(1).OperationID(), seen.Operation)
	if want == nil {
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		require.Nil(t, seen.Response)
		require.Empty(t, seen.Note)
		for _, listed := range listing.Entries { // List accepts a value with a valid beginning, and does not know the user
			require.True(t, seen.State == idempotency.StateCompleted || isOfOtherUser(value), value)
			require.Equal(t, seen.Operation, listed.Operation)
			requirePrintable(t, listed.Note)
		}
		return seen
	}
	require.NoError(t, err)
	require.Zero(t, listing.Unreadable)
	require.Len(t, listing.Entries, 1)
	record := want.after(int64(expiry))
	for _, e := range []idempotency.Entry{seen, listing.Entries[0]} {
		require.Equal(t, deriveState(want, record), e.State)
		require.Equal(t, record.Attempt, e.Attempt)
		require.Equal(t, record.Created, e.Created)
		require.Equal(t, record.Fingerprint, e.Fingerprint)
		require.Equal(t, record.LeaseLeft, e.LeaseLeft)
		require.Equal(t, seen.Size, e.Size)
		requirePrintable(t, e.Note)
		if record.Response != nil {
			require.Equal(t, record.Response.Status, e.Status)
		}
	}
	if record.Response != nil {
		require.Equal(t, record.Response, seen.Response)
		require.Equal(t, record.Response.Note, seen.Note)
	}
	return seen
}

// deriveState returns the state of the entry e, whose record is now as in record.
func deriveState(e *redisEntry, record idempotency.Record) idempotency.State {
	switch {
	case e.state == "done":
		return idempotency.StateCompleted
	case e.state == "released":
		return idempotency.StateReleased
	case record.LeaseLeft > 0:
		return idempotency.StateRunning
	}
	return idempotency.StateAbandoned
}

// requirePrintable requires that note contains only printable ASCII.
func requirePrintable(t *testing.T, note string) {
	t.Helper()
	require.NotContains(t, note, "\n")
	require.False(t, strings.ContainsFunc(note, func(c rune) bool { return c < ' ' || c > '~' }), "%q", note)
}

// The stored form of a resolution must always stay the same, for any operator and reason.
func TestStoredResolution(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 10, 5, 29, 123456000, time.UTC)
	for stored, want := range map[string]idempotency.Resolved{
		"resolved/1 not-happened attempt=1 at=2026-11-21T10:05:29.123456Z operator=3\nbob\nno charge": {
			Attempt: 1, At: at, Operator: "bob", Reason: "no charge",
		},
		"resolved/1 happened attempt=2147483647 at=2026-11-21T10:05:29.123456Z operator=0\n\n": {
			Happened: true, Attempt: 2147483647, At: at,
		},
		"resolved/1 happened attempt=2 at=2026-11-21T10:05:29.000000Z operator=4\n\n\x00\xff \n\n\x00": {
			Happened: true, Attempt: 2, At: at.Truncate(time.Second), Operator: "\n\x00\xff ", Reason: "\n\x00",
		},
	} {
		b, err := want.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, stored, string(b))
		var got idempotency.Resolved
		require.NoError(t, got.UnmarshalBinary([]byte(stored)))
		require.Equal(t, want, got)
	}
}

func TestDamagedResolution(t *testing.T) {
	t.Parallel()
	whole := "resolved/1 happened attempt=1 at=2026-11-21T10:05:29.000000Z operator=3\nbob\n"
	require.NoError(t, new(idempotency.Resolved).UnmarshalBinary([]byte(whole)))
	for cut := range len(whole) {
		require.ErrorIs(t, new(idempotency.Resolved).UnmarshalBinary([]byte(whole[:cut])), idempotency.ErrRecordInvalid, whole[:cut])
	}
	for _, change := range [][2]string{
		{"/1", "/2"}, {"happened", "so"}, {"=1", "=-1"}, {"=1", "=9999999999"}, {"=1", "=x"}, {"2026", "26"}, {"=3", "=2"},
		{"=3", "=9223372036854775807"}, {"=3\n", "=3 more\n"},
	} {
		damaged := strings.Replace(whole, change[0], change[1], 1)
		resolved := idempotency.Resolved{Reason: "before"}
		require.ErrorIs(t, resolved.UnmarshalBinary([]byte(damaged)), idempotency.ErrRecordInvalid, damaged)
		require.Equal(t, idempotency.Resolved{Reason: "before"}, resolved)
	}
}

func TestOpenMarks(t *testing.T) {
	t.Parallel()
	newEntry := func(names ...string) (e idempotency.Entry) {
		for _, name := range names {
			e.Steps = append(e.Steps, idempotency.StepSize{Name: name})
		}
		return e
	}
	require.Empty(t, newEntry().OpenMarks())
	require.Empty(t, newEntry("charge", "charge?", "ship").OpenMarks())
	require.Equal(t, []string{"mail?", "ship?"}, newEntry("charge", "charge?", "mail?", "ship?").OpenMarks())
}

func TestFaultsOfAResolution(t *testing.T) {
	t.Parallel()
	err := idempotency.Resolution{
		Response: &idempotency.Response{Status: 99, Note: "\n"}, Operator: "a\n", Reason: strings.Repeat("x", 1001), TTL: -1,
	}.Validate()
	for _, want := range []string{"status 99", "note", "operator", "reason", "TTL -1ns"} {
		require.ErrorContains(t, err, want)
	}
	for _, unprintable := range []string{"\x00", " a", "\u202e", "\xff", "\u00a0", strings.Repeat("x", 256)} {
		require.Error(t, idempotency.Resolution{Operator: unprintable, TTL: 1}.Validate(), "%q", unprintable)
	}
	require.NoError(t, idempotency.Resolution{Operator: "Zoë 語", Reason: strings.Repeat("é", 500), TTL: 1}.Validate())
}
