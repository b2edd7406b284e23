package idempotency_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
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
