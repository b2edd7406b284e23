package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// frozenResponse is the response in testdata/response_v1.txt.
var frozenResponse = idempotency.Response{
	Status: http.StatusCreated,
	Header: idempotency.NewFields(http.Header{
		"Content-Type": {"application/json"},
		"Set-Cookie":   {"a=1; Expires=Thu, 01 Jan 2099 00:00:00 GMT", "b=2"},
		"Trailer":      {"X-Sum"},
		"X-Deleted":    nil,
		"X-Empty":      {""},
		"X-Odd\\:Name": {" a: b\\c\r\nd ", "caf\xe9"},
	}),
	Trailer: idempotency.NewFields(http.Header{"X-Sum": {"1", "2"}, http.TrailerPrefix + "X-Late": {"3"}}),
	Body:    []byte("{\"id\":1}\n\x00\xff"),
}

// A record must stay readable for every later release, and for earlier releases that still run beside the current
// release.
func TestFrozenRecordIsReadAndWritten(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/response_v1.txt")
	require.NoError(t, err)
	var got idempotency.Response
	require.NoError(t, got.UnmarshalBinary(data))
	require.Equal(t, frozenResponse, got)
	encoded, err := frozenResponse.MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, string(data), string(encoded))
}

// randomResponse returns a response with random texts, which contain all pieces with a special meaning in the stored form.
func randomResponse(rnd *rand.Rand) idempotency.Response {
	pieces := []string{"a", "Z", "0", " ", "\n", "\r", "\\", ":", ": ", "\\n", "\x00", "\xff", "é", "body=", "\n\n"}
	randomText := func() string {
		var b strings.Builder
		for range rnd.IntN(8) {
			b.WriteString(pieces[rnd.IntN(len(pieces))])
		}
		return b.String()
	}
	randomFields := func() idempotency.Fields {
		var h http.Header
		for range rnd.IntN(5) {
			if h == nil {
				h = http.Header{}
			}
			name := randomText()
			h[name] = nil
			for range rnd.IntN(4) {
				h[name] = append(h[name], randomText())
			}
		}
		return idempotency.NewFields(h)
	}
	resp := idempotency.Response{Status: rnd.IntN(1000), Header: randomFields(), Trailer: randomFields(), Omitted: rnd.IntN(4) == 0}
	if !resp.Omitted {
		resp.Body = []byte(randomText() + randomText())
	}
	resp.Note = []string{"", "x", "payment 17", "note=a body=0", strings.Repeat("x", 255)}[rnd.IntN(5)]
	return resp
}

func TestResponseSurvivesItsStoredForm(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		resp := randomResponse(rnd)
		data, err := resp.AppendBinary([]byte("prefix"))
		require.NoError(t, err)
		data, found := bytes.CutPrefix(data, []byte("prefix"))
		require.True(t, found)
		var got idempotency.Response
		require.NoError(t, got.UnmarshalBinary(data), "%q", data)
		require.Equal(t, resp, got, "%q", data)
	}
}

func TestDamageIsDetected(t *testing.T) {
	t.Parallel()
	data, err := frozenResponse.MarshalBinary()
	require.NoError(t, err)
	requireDamaged := func(data []byte, damage string, args ...any) {
		t.Helper()
		var got idempotency.Response
		require.ErrorIs(t, got.UnmarshalBinary(data), idempotency.ErrRecordInvalid, append([]any{damage}, args...)...)
		require.Zero(t, got)
	}
	for i := range data {
		for bit := range 8 {
			flipped := bytes.Clone(data)
			flipped[i] ^= 1 << bit
			requireDamaged(flipped, "bit %d of byte %d: %q", bit, i, flipped)
		}
		requireDamaged(data[:i], "cut at %d", i)
		requireDamaged(data[i+1:], "without the first %d bytes", i+1)
	}
	requireDamaged(append(bytes.Clone(data), 'x'), "longer")
}

// withChecksum returns a stored response of version and rest with a correct checksum.
func withChecksum(version int, rest string) string {
	crc := crc32.Checksum([]byte(rest), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Sprintf("response/%d crc=%08x%s", version, crc, rest)
}

func TestForeignValueIsNoResponse(t *testing.T) {
	t.Parallel()
	const valid = " 200 header=0 trailer=0 body=0\n\n"
	require.NoError(t, new(idempotency.Response).UnmarshalBinary([]byte(withChecksum(1, valid))))
	for _, data := range []string{
		"", "\n", "hello", "response/1", "response/1 ", `{"status":200}`,
		withChecksum(2, valid), withChecksum(1, ""), withChecksum(1, "\n"), "x" + withChecksum(1, valid),
		withChecksum(1, " 200 header=0 trailer=0 body=omitted\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 more=1\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=+0\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=00\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 \n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 note=\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 note= a\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 note=a \n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 note=a\tb\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=0 note="+strings.Repeat("x", 256)+"\n\n"),
		withChecksum(1, " 200 header=0 trailer=0 body=1\n\n"),
		withChecksum(1, " 200 header=1 trailer=0 body=0\n\n"),
		withChecksum(1, " -1 header=0 trailer=0 body=0\n\n"),
		withChecksum(1, " 200 header=-1 trailer=1 body=0\n\n"),
		withChecksum(1, " 200 header=9223372036854775807 trailer=9223372036854775807 body=0\n\n"),
		withChecksum(1, " 200 header=4611686018427387904 trailer=4611686018427387904 body=0\n\n"),
	} {
		var got idempotency.Response
		require.ErrorIs(t, got.UnmarshalBinary([]byte(data)), idempotency.ErrRecordInvalid, "%q", data)
	}
}

func TestClonedResponseSharesNoMemory(t *testing.T) {
	t.Parallel()
	clone := frozenResponse.Clone()
	require.Equal(t, frozenResponse, clone)
	clone.Body[0] = 'x'
	require.NotEqual(t, byte('x'), frozenResponse.Body[0])
}

// FuzzResponse compares UnmarshalBinary with another decoder, for valid and invalid texts. Both decoders must read a response
// that is encoded again, and UnmarshalBinary must detect a change of any byte.
func FuzzResponse(f *testing.F) {
	const head = "response/1 crc=01234567"
	for _, resp := range []idempotency.Response{
		{}, {Status: 200, Omitted: true}, {Status: 204, Header: "A\n", Note: "a note"}, {Omitted: true, Note: "-"}, frozenResponse,
	} {
		data, err := resp.MarshalBinary()
		require.NoError(f, err)
		f.Add(string(data[len(head):]), uint16(30), byte(1))
	}
	f.Fuzz(func(t *testing.T, rest string, at uint16, flip byte) {
		data := []byte(withChecksum(1, rest))
		want, ok := testservice.ParseResponseByPattern(data)
		var resp, again, damaged idempotency.Response
		err := resp.UnmarshalBinary(data)
		if !ok {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			require.Zero(t, resp)
			return
		}
		require.NoError(t, err)
		require.Equal(t, want, resp)
		encoded, err := resp.MarshalBinary()
		require.NoError(t, err)
		require.NoError(t, again.UnmarshalBinary(encoded))
		require.Equal(t, resp, again)
		read, ok := testservice.ParseResponseByPattern(encoded)
		require.True(t, ok)
		require.Equal(t, resp, read)
		encoded[int(at)%len(encoded)] ^= max(flip, 1)
		require.ErrorIs(t, damaged.UnmarshalBinary(encoded), idempotency.ErrRecordInvalid)
		require.Zero(t, damaged)
	})
}

// parseHeaderByForm parses fields in another way than the package. The result is correct for the text that NewFields writes.
func parseHeaderByForm(text string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		name = testservice.UnescapeField(name)
		if !found {
			h[name] = nil
			continue
		}
		h[name] = append(h[name], testservice.UnescapeField(strings.TrimPrefix(value, " ")))
	}
	return h
}

// FuzzFields encodes a header as fields, and parses these fields. FuzzFields also parses any text, valid or not.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{"", "A: 1\n", "A\nA: 1\nA: 2\n", "\\x4: \\xzz\\\n", "::\n", "A: 1\nB\nB-C: \\x0d\\x0a\n"} {
		f.Add("Name", "a", "b\r\n", seed)
		f.Add("n:\\x41\n", "", " ", seed)
	}
	f.Fuzz(func(t *testing.T, name, first, second, text string) {
		want := http.Header{"n" + name: {first, second, first}, "N" + name: nil, "no" + name: {second}}
		fields := idempotency.NewFields(want)
		require.Regexp(t, testservice.FieldsPattern, string(fields))
		require.Equal(t, want, parseHeaderByForm(string(fields)))
		parsed, err := idempotency.ParseFields(string(fields))
		require.NoError(t, err)
		require.Equal(t, want, parsed.Header())
		require.Equal(t, second, parsed.Get("no"+name))

		parsed, err = idempotency.ParseFields(text)
		require.Equal(t, testservice.FieldsPattern.MatchString(text), err == nil, "%q", text)
		if err != nil {
			return
		}
		h := parsed.Header() // valid fields always have a header
		again := idempotency.NewFields(h)
		if again == parsed && len(h) > 0 { // text is in the form that NewFields writes
			require.Equal(t, parseHeaderByForm(text), h)
		}
		delete(h, "")
		if len(h) > 0 {
			require.Equal(t, h, again.Header())
		}
	})
}

func TestFieldsAreText(t *testing.T) {
	t.Parallel()
	for want, h := range map[idempotency.Fields]http.Header{
		"":                                {},
		"A: 1\n":                          {"A": {"1"}},
		"A: \n":                           {"A": {""}},
		"A\n":                             {"A": nil},
		"A: 2\nA: 1\nA-B: 3\nB\n":         {"B": {}, "A-B": {"3"}, "A": {"2", "1"}},
		"A:  a: b \n":                     {"A": {" a: b "}},
		"a\\x3ab: \\x5c\\x0d\\x0a\\x00\n": {"a:b": {"\\\r\n\x00"}},
		"\\x5cx41: caf\\xe9\\x7f\n":       {"\\x41": {"caf\xe9\x7f"}},
	} {
		got := idempotency.NewFields(h)
		require.Equal(t, want, got)
		parsed, err := idempotency.ParseFields(string(got))
		require.NoError(t, err)
		for name, values := range h {
			require.ElementsMatch(t, values, parsed.Header()[name], "%q of %q", name, got)
			require.Contains(t, parsed.Header(), name)
		}
		require.Len(t, parsed.Header(), len(h))
	}
	require.Empty(t, idempotency.NewFields(http.Header{"": {"no header has it"}}))
}

func TestParseFieldsRefusesInvalidText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"A", "A: 1", "\n", "\nA\n", "A\n\n", "A\n\nB\n", "A: \x00\n", "A: é\n", "A\r\n", "A: \x7f\n"} {
		_, err := idempotency.ParseFields(text)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "%q", text)
	}
}

func TestHeaderSurvivesAsFields(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	randomText := func() string {
		b := make([]byte, rnd.IntN(6))
		for i := range b {
			b[i] = "aZ09-: \\\\xX\r\n\x00\x7f\xff\t;,"[rnd.IntN(19)]
		}
		return string(b)
	}
	for range 20000 {
		want := http.Header{}
		for range rnd.IntN(6) {
			name := "n" + randomText()
			want[name] = nil
			for range rnd.IntN(3) {
				want[name] = append(want[name], randomText())
			}
		}
		f, err := idempotency.ParseFields(string(idempotency.NewFields(want)))
		require.NoError(t, err)
		if got := f.Header(); len(want) > 0 {
			require.Equal(t, want, got, "%q", f)
		}
	}
}

// The caller of Header may change the header, because the header shares no memory with the fields.
func TestHeaderOfFieldsSharesNoMemory(t *testing.T) {
	t.Parallel()
	const f = idempotency.Fields("A: 1\nA: 2\nB: 3\n")
	h := f.Header()
	h.Add("A", "x")
	h["A"][0] = "y"
	require.Equal(t, http.Header{"A": {"y", "2", "x"}, "B": {"3"}}, h)
	require.Equal(t, http.Header{"A": {"1", "2"}, "B": {"3"}}, f.Header())
}

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

func TestStatusInEveryState(t *testing.T) {
	t.Parallel()
	newRedisStore := func() idempotency.Store {
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	}
	for name, newStore := range map[string]func() idempotency.Store{
		"memory": func() idempotency.Store { return testservice.NewSpyStore() },
		"redis":  newRedisStore,
		"sealed": func() idempotency.Store {
			return testservice.MustSeal(t, newRedisStore(), testservice.Sealing("key"))
		},
		"cached": func() idempotency.Store {
			return cache.New(testservice.MustSeal(t, newRedisStore(), testservice.Sealing("key")), cache.Options{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testservice.CheckStatus(t, newStore())
		})
	}
}

func TestMalformedQuestions(t *testing.T) {
	t.Parallel()
	users := func(r *http.Request) (string, error) {
		if user := r.Header.Get("X-User"); user != "eve" {
			return user, nil
		}
		return "", &idempotency.Error{Status: http.StatusServiceUnavailable, Code: "login-down"}
	}
	opts := idempotency.Options{ValidateKey: func(id string) error {
		if id == "weak" {
			return errors.New("too short")
		}
		return nil
	}}
	svc := testservice.Setup{User: users, Opts: opts}.ServeStatus(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Pay("alice", "key", "charge").Status)
	begins := svc.Store.Begins.Load()
	for name, test := range map[string]struct {
		user, key string
		edit      testservice.Edit
		status    int
		body      string
	}{
		"no key":            {"alice", "", nil, 400, `problems#key-missing`},
		"two keys":          {"alice", "key", testservice.WithHeader("Idempotency-Key", "key", "key"), 400, `problems#key-invalid`},
		"malformed key":     {"alice", `"key`, nil, 400, `problems#key-invalid`},
		"refused key":       {"alice", "weak", nil, 400, `Reason: too short.`},
		"no user":           {"", "key", nil, 401, `problems#user-unknown`},
		"failing user":      {"eve", "key", nil, 503, `problems#login-down`},
		"no method":         {"alice", "key", testservice.WithQuery("method", ""), 400, `no keys`},
		"unguarded method":  {"alice", "key", testservice.WithQuery("method", "PUT"), 400, `no keys`},
		"no path":           {"alice", "key", testservice.WithQuery("path", ""), 400, `parameters method and path`},
		"a URL":             {"alice", "key", testservice.WithQuery("path", "http://a/"), 400, `parameters method and path`},
		"a malformed path":  {"alice", "key", testservice.WithQuery("path", "/%zz"), 400, `percent-encoding`},
		"a malformed query": {"alice", "key", withRawQuery("method=POST;path=/payments"), 400, `parameters method and path`},
		"no query":          {"alice", "key", withRawQuery(""), 400, `parameters method and path`},
		"two paths":         {"alice", "key", withRawQuery("method=POST&path=/payments&path=/"), 400, `parameters method and path`},
		"a POST":            {"alice", "key", testservice.WithMethod("POST"), 405, `Method Not Allowed`},
		"a DELETE":          {"alice", "key", testservice.WithMethod("DELETE"), 405, `Method Not Allowed`},
	} {
		t.Run(name, func(t *testing.T) {
			got := svc.Ask(test.user, test.key, testservice.WithHeader("X-User", test.user), orNothing(test.edit))
			require.Equal(t, test.status, got.Status, got.Body)
			require.Contains(t, got.Body, test.body)
			require.NotContains(t, got.Body, "new-key", "no problem of a question leads to a second operation")
			require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"))
			require.Equal(t, "no-store", got.Header.Get("Cache-Control"))
			require.Equal(t, test.status == http.StatusMethodNotAllowed, got.Header.Get("Allow") == "GET, HEAD")
		})
	}
	require.Equal(t, begins, svc.Store.Begins.Load())
	require.Len(t, svc.Journal.All(), 1, "only the payment has an outcome")
}

// orNothing returns edit, or an edit without an effect for nil.
func orNothing(edit testservice.Edit) testservice.Edit {
	if edit == nil {
		return func(*http.Request) {}
	}
	return edit
}

func withRawQuery(query string) testservice.Edit {
	return func(r *http.Request) { r.URL.RawQuery = query }
}

// readingStore counts the calls of Inspect, and fails them with failure unless it is nil. It must never be asked for a claim.
type readingStore struct {
	*idempotency.MemoryStore
	reads   atomic.Int64
	failure error
}

func (s *readingStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	panic("a question has claimed a key")
}

func (s *readingStore) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	s.reads.Add(1)
	if s.failure != nil {
		return idempotency.Entry{}, s.failure
	}
	if key.ID == "far" {
		return idempotency.Entry{State: idempotency.StateReleased, Created: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}, nil
	}
	return s.MemoryStore.Inspect(ctx, key)
}

// A question costs one request to the store for every user, also if the operation is abandoned and Reconcile could end it.
func TestQuestionReadsOnce(t *testing.T) {
	t.Parallel()
	records := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store := &readingStore{MemoryStore: records}
	opts := idempotency.Options{
		Abandoned: idempotency.Refuse, Wait: time.Hour,
		Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			panic("Reconcile was called")
		},
	}
	svc := testservice.Setup{Store: store, Opts: opts}.ServeStatus(t, testservice.Echo)
	key := func(id string) idempotency.Key {
		return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
	}
	testservice.MustClaim(t, records, key("running"), testservice.AttemptFor(time.Hour))
	lapsing := testservice.AttemptFor(time.Hour)
	lapsing.Lease = time.Millisecond
	testservice.MustClaim(t, records, key("abandoned"), lapsing)
	testservice.MustComplete(t, records, key("done"), testservice.BodyOf(1))
	testservice.Until(t, func() bool {
		return testservice.MustInspect(t, records, key("abandoned")).State == idempotency.StateAbandoned
	})
	n := int64(0)
	for id, state := range map[string]string{
		"running": "running", "abandoned": "outcome-unknown", "done": "done", "unused": "never-seen",
	} {
		testservice.RequireStatus(t, svc.Ask("alice", id), state)
		testservice.RequireStatus(t, svc.Ask("bob", id), "never-seen")
		n += 2
		require.Equal(t, n, store.reads.Load())
	}
}

func TestQuestionToAFailingStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure error
		status  int
		want    string
	}{
		"down":          {testservice.ErrDown, 503, "store-unavailable"},
		"damaged":       {fmt.Errorf("%w: crc", idempotency.ErrRecordInvalid), 503, "its record cannot be read"},
		"unsupported":   {errors.ErrUnsupported, 501, "cannot look keys up"},
		"in a far year": {nil, 503, "store-unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &readingStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), atomic.Int64{}, test.failure}
			svc := testservice.Setup{Store: store}.ServeStatus(t, testservice.Echo)
			got := svc.Ask("alice", "far")
			require.Equal(t, test.status, got.Status)
			require.Contains(t, got.Body, test.want)
			require.Equal(t, test.status == 503, got.Header.Get("Retry-After") == "1")
			if test.status == http.StatusServiceUnavailable && test.failure != nil {
				event := svc.Journal.Last(t)
				require.Equal(t, idempotency.OutcomeUnavailable, event.Outcome)
				require.ErrorIs(t, event.Err, test.failure)
				require.Equal(t, "POST /payments", event.Key.Endpoint)
			}
		})
	}
}

// A store that shows nothing is a fault if the options say where to ask. Otherwise a question is refused.
func TestStatusWithoutInspector(t *testing.T) {
	t.Parallel()
	blind := struct{ idempotency.Store }{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	for name, store := range map[string]idempotency.Store{"plain": blind, "cached": cache.New(blind, cache.Options{})} {
		svc := testservice.Setup{Store: store}.ServeStatus(t, testservice.Echo)
		require.Equal(t, http.StatusNotImplemented, svc.Ask("alice", "key").Status, name)
		_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
			KeyInfo: idempotency.KeyInfo{StatusURL: testservice.StatusPath},
		})
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "which is no Inspector", name)
	}
}

func TestStatusOfDamagedRecord(t *testing.T) {
	t.Parallel()
	client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	svc := testservice.Setup{Store: store}.ServeStatus(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Pay("alice", "key", "charge").Status)
	name := testservice.RedisKeys(t, client, "")[0]
	whole := client.Get(t.Context(), name).Val()
	for _, damage := range damages {
		damaged := damage(whole)
		require.NoError(t, client.Set(t.Context(), name, damaged, time.Hour).Err())
		testservice.RequireProblem(t, svc.Ask("alice", "key"), http.StatusServiceUnavailable, "store-unavailable")
		require.Equal(t, damaged, client.Get(t.Context(), name).Val())
	}
	require.NoError(t, client.Set(t.Context(), name, whole, time.Hour).Err())
	testservice.RequireStatus(t, svc.Ask("alice", "key"), "done")
	sealed := testservice.Setup{Store: testservice.MustSeal(t, store, testservice.Sealing("key"))}.ServeStatus(t, testservice.Echo)
	testservice.RequireProblem(t, sealed.Ask("alice", "key"), http.StatusServiceUnavailable, "store-unavailable")
}

// While Redis stands still, a question is refused after StoreTimeout. Afterwards the answer is true again.
func TestStatusWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, server.Addr()), idempotency.RedisOptions{})
	opts := idempotency.Options{StoreTimeout: 200 * time.Millisecond}
	svc := testservice.Setup{Store: store, Opts: opts}.ServeStatus(t, testservice.Echo)
	testservice.Until(t, func() bool { return svc.Pay("alice", "key", "charge").Status == http.StatusCreated })
	require.NoError(t, server.Pause())
	defer server.Resume()
	testservice.RequireProblem(t, svc.Ask("alice", "key"), http.StatusServiceUnavailable, "store-unavailable")
	server.Resume()
	testservice.Until(t, func() bool { return svc.Ask("alice", "key").Status == http.StatusOK })
	testservice.RequireStatus(t, svc.Ask("alice", "key"), "done")
}

// An answer that is asked for passes the filter and the rights of a replay. Replay gets the request in question.
func TestAskedAnswer(t *testing.T) {
	t.Parallel()
	opts := idempotency.Options{
		OmitHeaders: []string{"Set-Cookie"},
		Endpoint:    func(r *http.Request) string { return r.Host + " " + idempotency.DefaultEndpoint(r) },
		Replay: func(r *http.Request, resp *idempotency.Response) error {
			if r.Header.Get("X-Role") == "guest" {
				return errors.New("guests see no answers")
			}
			if r.Method != http.MethodPost || r.URL.Path != "/payments" || resp.Header.Get("Set-Cookie") != "" {
				return fmt.Errorf("a replay of %s %s", r.Method, r.URL)
			}
			return nil
		},
	}
	svc := testservice.Setup{Opts: opts}.ServeStatus(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = nil // suppresses the field
		w.Header().Set("Set-Cookie", "s=1")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = w.Write([]byte("\xff\x00"))
		w.(http.Flusher).Flush()
	})
	require.Equal(t, http.StatusPaymentRequired, svc.Pay("alice", "key", "charge").Status)
	ask := testservice.WithQuery("answer", "true")
	status := testservice.RequireStatus(t, svc.Ask("alice", "key", ask), "done")
	require.Equal(t, &testservice.ShownAnswer{
		Status: http.StatusPaymentRequired, Header: http.Header{"Content-Type": {"application/octet-stream"}},
		Trailer: http.Header{"X-Sum": {"7"}}, BodyBase64: []byte("\xff\x00"),
	}, status.Answer)

	guest := testservice.WithHeader("X-Role", "guest")
	testservice.RequireProblem(t, svc.Ask("alice", "key", ask, guest), http.StatusForbidden, "replay-refused")
	require.Nil(t, testservice.RequireStatus(t, svc.Ask("alice", "key", guest), "done").Answer)
	testservice.RequireStatus(t, svc.Ask("bob", "key", ask), "never-seen")
	elsewhere := func(r *http.Request) { r.Host = "other.example" }
	testservice.RequireStatus(t, svc.Ask("alice", "key", elsewhere), "never-seen")

	head := svc.Ask("alice", "key", testservice.WithMethod(http.MethodHead))
	require.Equal(t, http.StatusOK, head.Status)
	require.Empty(t, head.Body)
	require.Equal(t, "application/json", head.Header.Get("Content-Type"))
}

// A record that other options or another program have stored is told as far as a replay would be sent.
func TestAnswerOfOthersIsChecked(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{OmitHeaders: []string{"Set-Cookie"}}}.ServeStatus(t, testservice.Echo)
	for id, fields := range map[string]idempotency.Fields{"omitted": "Set-Cookie: s=1\nX-A: b\n", "forged": "Content-Length: 9\n"} {
		key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
		testservice.MustComplete(t, store, key, idempotency.Response{Status: http.StatusCreated, Header: fields, Body: []byte("a")})
	}
	ask := testservice.WithQuery("answer", "true")
	shown := testservice.RequireStatus(t, svc.Ask("alice", "omitted", ask), "done").Answer
	require.Equal(t, http.Header{"X-A": {"b"}}, shown.Header)
	testservice.RequireProblem(t, svc.Ask("alice", "forged", ask), http.StatusServiceUnavailable, "store-unavailable")
	testservice.RequireProblem(t, svc.Ask("alice", "forged"), http.StatusServiceUnavailable, "store-unavailable")
}

// A client that follows statusUrl of a refusal with its key learns the state, whatever the path of its request.
func TestRefusalsNameTheStatusURL(t *testing.T) {
	t.Parallel()
	alice := testservice.WithHeader("X-User", "alice")
	for _, address := range []string{testservice.StatusPath, "../payments/status?tenant=7", "http://a.example/payments/status"} {
		opts := idempotency.Options{KeyInfo: idempotency.KeyInfo{StatusURL: address}}
		svc := testservice.Setup{Opts: opts}.ServeStatus(t, func(_ http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), idempotency.Tombstone)
		})
		for _, path := range []string{"/payments", "/caf%C3%A9/a%2Fb", "/a;b=c&d?q=1"} {
			require.Equal(t, http.StatusOK, svc.Send(path, "key", "", alice).Status)
			problem := testservice.RequireProblem(t, svc.Send(path, "key", "", alice), http.StatusConflict, "not-replayable")
			requireState(t, svc, path, problem.StatusURL, "not-kept")

			reused := testservice.RequireProblem(t, svc.Send(path, "key", "other", alice), http.StatusConflict, "key-reused")
			require.Empty(t, reused.StatusURL)
		}
	}
}

// requireState asks at address, which is relative to path.
func requireState(t *testing.T, svc *testservice.Service, path, address, state string) {
	t.Helper()
	base, err := url.Parse(svc.Server.URL + path)
	require.NoError(t, err)
	target, err := base.Parse(address)
	require.NoError(t, err)
	got := svc.Send(target.RequestURI(), "key", "", testservice.WithMethod("GET"), testservice.WithHeader("X-User", "alice"))
	testservice.RequireStatus(t, got, state)
}
