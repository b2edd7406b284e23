package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/quick"
	"unicode/utf8"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// parseKeyLines returns the key that a Middleware finds in the lines of Idempotency-Key. The result ok is false if the
// Middleware refuses the lines.
func parseKeyLines(t testing.TB, lines ...string) (id string, ok bool) {
	t.Helper()
	svc := testservice.Setup{}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		id, ok = op.Key.ID, true
	})
	if got := svc.Call("", "b", testservice.WithHeader("Idempotency-Key", lines...)); !ok {
		require.Equal(t, http.StatusBadRequest, got.Status)
		require.Contains(t, got.Body, "#key-invalid")
	}
	return id, ok
}

func TestKeyHeader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for lines, want := range map[[2]string]string{
		{`abc`}: `abc`, {`"abc"`}: `abc`,
		{`8e03978e-40d5-43dd-bc93-6894a57f9324`}: `8e03978e-40d5-43dd-bc93-6894a57f9324`,
		{`1795206555798043507_DI4VYA`}:           `1795206555798043507_DI4VYA`,
		{`!#$%&'()*+-./:<=>?@[]^_{|}~`}:          `!#$%&'()*+-./:<=>?@[]^_{|}~`,
		{`"a,b;c"`}:                              `a,b;c`, {`"a\"b"`}: `a"b`, {`"a\\b"`}: `a\b`, {`"\""`}: `"`,
		{long}: long, {`"` + long + `"`}: long, {`"` + strings.Repeat(`\\`, 255) + `"`}: strings.Repeat(`\`, 255),
	} {
		got, ok := parseKeyLines(t, lines[0])
		require.True(t, ok, "%q", lines)
		require.Equal(t, want, got)
	}
	for _, line := range []string{
		``, `""`, `"`, `"abc`, `abc"`, `a"b`, `"a"b"`, `"a\"`, `"a\b"`, `"a\`, `\`, `a\b`,
		`a b`, ` abc`, `abc `, `"a b"`, `" "`, ` `, "a\tb", "a\x00b", "a\x7f", "caf\xc3\xa9", "caf\xe9", "\"\xe9\"",
		`a,b`, `a;b`, `"a";b=1`, `"a", "b"`, `"a" `, `:YWJj:;`, long + "k", `"` + long + `k"`,
	} {
		_, ok := parseKeyLines(t, line)
		require.False(t, ok, "%q", line)
	}
	_, ok := parseKeyLines(t, `"foo`, `bar"`) // joined, the lines would be a single string
	require.False(t, ok)
}

func TestKeyInvalidNamesTheReason(t *testing.T) {
	t.Parallel()
	both := idempotency.Options{Headers: []string{"Idempotency-Key", "X-Key"}}
	uuids := idempotency.Options{ValidateKey: idempotency.ValidateUUID}
	const quotesReason = "a comma, semicolon, backslash or double quote must be sent in quotes"
	for _, row := range []struct {
		opts       idempotency.Options
		keyLines   []string
		wantReason string
	}{
		{keyLines: []string{"a,b"}, wantReason: quotesReason},
		{keyLines: []string{"a;b"}, wantReason: quotesReason},
		{keyLines: []string{`a\b`}, wantReason: quotesReason},
		{keyLines: []string{`a"b`}, wantReason: quotesReason},
		{keyLines: []string{`"ab`}, wantReason: "must be a well-formed RFC 9651 string"},
		{keyLines: []string{`"ab";c=1`}, wantReason: "without parameters"},
		{keyLines: []string{""}, wantReason: "the key is empty"},
		{keyLines: []string{`""`}, wantReason: "the key is empty"},
		{keyLines: []string{strings.Repeat("k", 256)}, wantReason: "longer than 255 characters"},
		{keyLines: []string{"a b"}, wantReason: "must not contain spaces"},
		{keyLines: []string{"a", "a"}, wantReason: "Idempotency-Key was sent 2 times"},
		{opts: both, keyLines: []string{"a"}, wantReason: "Idempotency-Key and X-Key have different keys"},
		{opts: uuids, keyLines: []string{"a"}, wantReason: "a UUID has 36 characters, not 1"},
		{opts: uuids, keyLines: []string{"8E03978E-40D5-43DD-BC93-6894A57F9324"}, wantReason: "a UUID must be in lower case"},
	} {
		svc := testservice.Setup{Opts: row.opts}.Guard(t, testservice.Echo)
		got := svc.Call("", "b", testservice.WithHeader("Idempotency-Key", row.keyLines...), testservice.WithHeader("X-Key", "other"))
		detail := testservice.RequireProblem(t, got, http.StatusBadRequest, "key-invalid").Detail
		require.Regexp(t, `^Nothing was executed\. .* Reason: .*[^.]\.$`, detail)
		require.Contains(t, detail, row.wantReason, "%q", row.keyLines)
		require.ErrorContains(t, svc.Journal.Last(t).Err, row.wantReason)
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values     []string
		want       string
		wantErr    error
		wantReason string
	}{
		{[]string{"abc"}, "abc", nil, ""},
		{[]string{`"a\"b"`}, `a"b`, nil, ""},
		{nil, "", idempotency.ErrKeyMissing, ""},
		{[]string{""}, "", idempotency.ErrKeyInvalid, "empty"},
		{[]string{"a,b"}, "", idempotency.ErrKeyInvalid, "in quotes"},
		{[]string{"a", "a"}, "", idempotency.ErrKeyInvalid, "sent 2 times"},
	} {
		got, err := idempotency.ParseKey(tt.values)
		require.Equal(t, tt.want, got)
		require.ErrorIs(t, err, tt.wantErr)
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			require.Equal(t, http.StatusBadRequest, refusal.Status)
			require.Contains(t, refusal.Detail, tt.wantReason)
		}
	}
}

func TestValidateUUID(t *testing.T) {
	t.Parallel()
	for id, valid := range map[string]bool{
		"8e03978e-40d5-43dd-bc93-6894a57f9324":          true,
		"8E03978E-40D5-43DD-BC93-6894A57F9324":          false,
		"8e03978e-40d5-43dd-bc93-6894a57f932A":          false,
		"8e03978e40d543ddbc936894a57f9324":              false,
		"{8e03978e-40d5-43dd-bc93-6894a57f9324}":        false,
		"urn:uuid:8e03978e-40d5-43dd-bc93-6894a57f9324": false,
		"8e03978e-40d5-43dd-bc93-6894a57f932g":          false,
		"8e03978e-40d5-43dd-bc93-6894a57f93240":         false,
		"":                                              false,
	} {
		require.Equal(t, valid, idempotency.ValidateUUID(id) == nil, "%q", id)
	}
}

func TestOperationIDsOfDifferentKeysDiffer(t *testing.T) {
	t.Parallel()
	const text = "a:\x00/: b"
	seen := map[uuid.UUID]idempotency.Key{}
	for i := range len(text) + 1 {
		for j := i; j <= len(text); j++ {
			key := idempotency.Key{User: text[:i], Endpoint: text[i:j], ID: text[j:]}
			require.NotContains(t, seen, key.OperationID(), "%q", []string{key.User, key.Endpoint, key.ID})
			seen[key.OperationID()] = key
		}
	}
	for _, key := range []idempotency.Key{{}, {User: "a"}, {Endpoint: "a"}, {ID: "a"}} { // the same text in different parts
		require.NotContains(t, seen, key.OperationID(), "%q", []string{key.User, key.Endpoint, key.ID})
		seen[key.OperationID()] = key
	}
	require.NoError(t, quick.Check(func(a, b [3][]byte) bool {
		x := idempotency.Key{User: string(a[0]), Endpoint: string(a[1]), ID: string(a[2])}
		y := idempotency.Key{User: string(b[0]), Endpoint: string(b[1]), ID: string(b[2])}
		return (x == y) == (x.OperationID() == y.OperationID())
	}, nil))
}

// A printed key shows the ID of its operation, which is the same in all processes, and never the parts of the key.
func TestKeyIsNotPrinted(t *testing.T) {
	t.Parallel()
	key := idempotency.Key{User: "secretuser", Endpoint: "secretendpoint", ID: "secretid"}
	event := idempotency.Event{Key: key}
	operation := idempotency.Operation{Key: key}
	var out bytes.Buffer
	for _, value := range []any{key, &key, event, operation, []idempotency.Key{key}, map[string]any{"key": key}} {
		for _, format := range testservice.FormatVerbs() {
			fmt.Fprintf(&out, format, value)
		}
		fmt.Fprintln(&out, value)
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "value", value)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "value", value)
		encoded, err := json.Marshal(value)
		require.NoError(t, err)
		out.Write(encoded)
	}
	require.NotContains(t, out.String(), "secret")
	require.NotContains(t, out.String(), hex.EncodeToString([]byte("secret")))
	require.Equal(t, key.OperationID().String(), key.String())
	require.Contains(t, out.String(), key.String())
	for _, format := range testservice.FormatVerbs() {
		require.Contains(t, fmt.Sprintf(format, key), key.String(), format)
		require.Contains(t, fmt.Sprintf(format, &key), key.String(), format)
	}
}

// A store keeps at most 257 bytes of each part of a key, however long the part is. Different long parts stay different.
func TestPartsOfAKeyAreBounded(t *testing.T) {
	t.Parallel()
	makeLongPart := func(end string) string { return "/" + strings.Repeat("a", 100_000) + end }
	var seen []idempotency.Key
	store := testservice.NewSpyStore()
	svc := testservice.Setup{
		Store: store,
		User:  func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
	}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		seen = append(seen, op.Key)
	})
	requests := [][2]string{
		{"alice", "/a"}, {"alice", makeLongPart("1")}, {"alice", makeLongPart("2")}, {"alice", "/" + strings.Repeat("a", 249)},
		{"alice", "/" + strings.Repeat("a", 250)}, {makeLongPart("1"), "/a"}, {makeLongPart("2"), "/a"},
	}
	for _, request := range requests {
		for range 2 {
			require.NoError(t, svc.Send(request[1], "k", "", testservice.WithHeader("X-User", request[0])).Err)
		}
	}
	require.Len(t, seen, len(requests), "each request ran once")
	for _, key := range seen {
		require.LessOrEqual(t, len(key.User), 257)
		require.LessOrEqual(t, len(key.Endpoint), 257)
	}
	require.Equal(t, "POST /"+strings.Repeat("a", 249), seen[3].Endpoint, "255 bytes are not cut")
	require.True(t, strings.HasPrefix(seen[1].Endpoint, "POST /aaa"), "the start of the endpoint stays readable")
	// A cut endpoint is longer than any uncut endpoint, so no client can send the cut endpoint of another request.
	require.NotEqual(t, len(seen[1].Endpoint), len(seen[3].Endpoint))

	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	require.NoError(t, err)
	_, _, err = runner.Do(t.Context(), idempotency.Key{User: makeLongPart(""), Endpoint: makeLongPart(""), ID: makeLongPart("")}, nil,
		func(ctx context.Context) (idempotency.Response, error) {
			op, _ := idempotency.FromContext(ctx)
			require.LessOrEqual(t, len(op.Key.User)+len(op.Key.Endpoint)+len(op.Key.ID), 3*257)
			return idempotency.Response{}, nil
		})
	require.NoError(t, err)
}

func TestEndpointIsWhatTheClientAskedFor(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"/payments?q=1":                "POST /payments",
		"/a%2Fb":                       "POST /a%2Fb",
		"//evil/payments":              "POST //evil/payments",
		"http://a.test/a%2Fb?q=1":      "POST /a%2Fb", // as sent to proxies
		"https://user@a.test:1/":       "POST /",
		"":                             "POST /rewritten", // no server has set RequestURI
		"no target":                    "POST /rewritten",
		"http://[fe80::1%25en0]:1/pay": "POST /pay",
		"x:a?q=1":                      "POST x:a", // without a path
		"*":                            "POST *",
	} {
		var endpoint string
		svc := testservice.Setup{}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			endpoint = op.Key.Endpoint
		})
		svc.Call("k", "b", func(r *http.Request) { r.RequestURI, r.URL.Path = target, "/rewritten" })
		require.Equal(t, want, endpoint, "%q", target)
	}
}

// DefaultEndpoint returns the endpoint that a Middleware without Options.Endpoint uses, for every request target. So a
// Middleware with DefaultEndpoint as Options.Endpoint replays the records of a Middleware without this option.
func TestDefaultEndpoint(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	stored, named := "", ""
	noteEndpoints := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		stored, named = op.Key.Endpoint, idempotency.DefaultEndpoint(r)
	})
	newHandler := func(opts idempotency.Options) http.Handler {
		m, err := idempotency.New(store, idempotency.SingleUser, opts)
		require.NoError(t, err)
		return m.Handler(noteEndpoints)
	}
	withoutOption := newHandler(idempotency.Options{})
	withOption := newHandler(idempotency.Options{Endpoint: idempotency.DefaultEndpoint})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next := withoutOption
		if r.Header.Get("X-With-Option") != "" {
			next = withOption
		}
		if strings.HasPrefix(r.URL.Path, "/eu/") {
			next = http.StripPrefix("/eu", next)
		}
		next.ServeHTTP(w, r)
	}))
	defer server.Close()
	sendRequestLine := func(line, field string) *http.Response {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: a.test\r\nIdempotency-Key: k\r\n%sContent-Length: 0\r\n\r\n", line, field)
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp
	}
	long := "POST /" + strings.Repeat("p", 300)
	for line, want := range map[string]string{
		"POST /payments?q=1":             "POST /payments",
		"PATCH /payments":                "PATCH /payments",
		"POST /caf%C3%A9/a%2Fb%20c/../d": "POST /caf%C3%A9/a%2Fb%20c/../d",
		"POST //a.test/payments":         "POST //a.test/payments",
		"POST /eu/pay":                   "POST /eu/pay",
		"POST http://b.test/x%2Fy?q=1":   "POST /x%2Fy",
		"POST http://b.test":             "POST ",
		"POST x:a?q=1":                   "POST x:a",
		"POST x:http://b.test/y":         "POST x:http://b.test/y",
		"POST *":                         "POST *",
		long:                             long,
	} {
		stored, named = "", ""
		require.Equal(t, 200, sendRequestLine(line, "").StatusCode, line)
		require.Equal(t, want, named, line)
		require.Equal(t, idempotency.Key{Endpoint: want}.Bounded().Endpoint, stored, line)
		require.Equal(t, "true", sendRequestLine(line, "X-With-Option: 1\r\n").Header.Get("Idempotent-Replayed"), line)
	}
}

// A long part is cut between two characters, so the cut part stays valid text. A cut part is longer than any uncut part, so a
// client cannot send the cut part of another key.
func TestPartOfAKeyIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	cutPart := func(part string) (cut string) {
		key := idempotency.Key{User: part, Endpoint: part, ID: part}
		_, _, err := runner.Do(t.Context(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
			op, _ := idempotency.FromContext(ctx)
			require.Equal(t, op.Key.User, op.Key.Endpoint)
			require.Equal(t, op.Key.User, op.Key.ID)
			cut = op.Key.User
			return idempotency.Response{}, nil
		})
		require.NoError(t, err)
		return cut
	}
	seen := map[string]bool{}
	for _, character := range []string{"a", "é", "€", "🔑"} {
		for offset := range 4 {
			part := strings.Repeat("-", 180+offset) + strings.Repeat(character, 100)
			got := cutPart(part)
			require.True(t, utf8.ValidString(got), "%d times -, then %s: %q", 180+offset, character, got)
			require.Len(t, got, 257)
			readable, digest := strings.TrimRight(got[:193], "~"), got[193:]
			require.True(t, strings.HasPrefix(part, readable))
			require.Greater(t, len(readable), 192-utf8.UTFMax)
			sum := sha256.Sum256([]byte(part))
			require.Equal(t, hex.EncodeToString(sum[:]), digest)
			require.False(t, seen[got])
			seen[got] = true
		}
	}
	for _, part := range []string{
		strings.Repeat("\x80", 300), strings.Repeat("\xff", 300), strings.Repeat("é", 100) + "\xc3" + strings.Repeat("\xa9", 60),
	} {
		require.Len(t, cutPart(part), 257, "%q is no valid text, but is cut as well", part)
	}
}

// keySpy is a store that notes the key of each call to Begin.
type keySpy struct {
	idempotency.Store
	calledKeys *[]idempotency.Key
}

func (s keySpy) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (
	idempotency.Record, idempotency.Claim, error,
) {
	*s.calledKeys = append(*s.calledKeys, key)
	return s.Store.Begin(ctx, key, request)
}

// A key shares no memory with the request line, because a store that keeps the key would otherwise keep the whole request
// line, which may be large.
func TestKeyIsNoPartOfTheRequestLine(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"short": "/user/pay", "long": "/user/" + strings.Repeat("p", 300)} {
		t.Run(name, func(t *testing.T) {
			var keys []idempotency.Key
			var line string
			m, err := idempotency.New(keySpy{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), &keys},
				func(r *http.Request) (string, error) { return r.URL.Path[1:5], nil },
				idempotency.Options{Endpoint: func(r *http.Request) string { line = r.URL.Path; return line }})
			require.NoError(t, err)
			r := httptest.NewRequest(http.MethodPost, path+"?"+strings.Repeat("q", 1<<20), nil)
			r.Header.Set("Idempotency-Key", "key")
			m.Handler(http.HandlerFunc(testservice.Echo)).ServeHTTP(httptest.NewRecorder(), r)
			require.Len(t, keys, 1)
			require.Equal(t, "user", keys[0].User)
			require.NotSame(t, unsafe.StringData(line), unsafe.StringData(keys[0].Endpoint))
			require.NotSame(t, unsafe.StringData(line[1:]), unsafe.StringData(keys[0].User))
		})
	}
}

// FuzzKeyHeader compares FindKey with ParseKeyByPattern: both must find the same key in a line, or no key. FindKey must refuse
// two lines of the same field, and two fields with different keys.
func FuzzKeyHeader(f *testing.F) {
	for _, seed := range []string{
		"abc", `"abc"`, `"a\"b\\c"`, `"a`, "a,b", `"a";b=1`, "caf\xe9", "", `""`, `"\\`, " a", "a\x00", "\x7f",
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat(`\\`, 255) + `"`, `"` + strings.Repeat("k", 256) + `"`,
	} {
		f.Add(seed, "abc")
		f.Add("abc", seed)
	}
	const name, alias = "Idempotency-Key", "X-Idempotency-Key"
	f.Fuzz(func(t *testing.T, line, other string) {
		want, valid := testservice.ParseKeyByPattern(line)
		id, err := idempotency.FindKey(http.Header{name: {line}}, name, alias)
		require.Equal(t, valid, err == nil, "%q", line)
		require.Equal(t, want, id, "%q", line)
		if err != nil {
			require.ErrorIs(t, err, idempotency.ErrKeyInvalid)
		}
		_, err = idempotency.FindKey(http.Header{name: {line, other}}, name)
		require.ErrorIs(t, err, idempotency.ErrKeyInvalid, "%q and %q", line, other)
		same, alsoValid := testservice.ParseKeyByPattern(other)
		_, err = idempotency.FindKey(http.Header{name: {line}, alias: {other}}, name, alias)
		require.Equal(t, valid && alsoValid && want == same, err == nil, "%q beside %q", line, other)
		if !valid {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
		again, err := idempotency.FindKey(http.Header{name: {quoted}}, name)
		require.NoError(t, err, "%q", quoted)
		require.Equal(t, id, again)
	})
}

// splitInThree splits text into three parts, at first and second.
func splitInThree(text string, first, second uint16) [3]string {
	i, j := int(first)%(len(text)+1), int(second)%(len(text)+1)
	return [3]string{text[:min(i, j)], text[min(i, j):max(i, j)], text[max(i, j):]}
}

// FuzzOperationID searches for two different keys with the same ID. Nearly equal keys are the likeliest, so the parts are cut
// out of one text at different places, and one byte is changed. Bounded keys and their IDs must differ as well, because
// stores get bounded keys.
func FuzzOperationID(f *testing.F) {
	long := strings.Repeat("-", 250) + strings.Repeat("é", 20)
	for _, text := range []string{"", "alice POST /payments key", "aaaa", "\x00\x00\x00\x00\x00\x00\x00\x01a", long, long + long} {
		f.Add(text, uint16(5), uint16(20), uint16(5), uint16(21), uint16(3), byte(0))
		f.Add(text, uint16(0), uint16(257), uint16(0), uint16(257), uint16(256), byte(1))
		f.Add(text, uint16(0), uint16(2), uint16(0), uint16(2), uint16(0), byte(32))
	}
	f.Fuzz(func(t *testing.T, text string, i, j, k, l, at uint16, flip byte) {
		other := []byte(text)
		if len(other) > 0 {
			other[int(at)%len(other)] ^= flip
		}
		a, b := splitInThree(text, i, j), splitInThree(string(other), k, l)
		x, y := idempotency.Key{User: a[0], Endpoint: a[1], ID: a[2]}, idempotency.Key{User: b[0], Endpoint: b[1], ID: b[2]}
		require.Equal(t, a == b, x.OperationID() == y.OperationID(), "%q, %q", a, b)
		require.Equal(t, a == b, x.Bounded() == y.Bounded(), "%q, %q", a, b)
		require.Equal(t, a == b, x.Bounded().OperationID() == y.Bounded().OperationID(), "%q, %q", a, b)
		bounded := x.Bounded()
		for i, part := range []string{bounded.User, bounded.Endpoint, bounded.ID} {
			if len(a[i]) <= 255 {
				require.Equal(t, a[i], part)
				continue
			}
			require.Len(t, part, 257)
			require.True(t, utf8.ValidString(part) || !utf8.ValidString(a[i]), "%q: %q", a[i], part)
		}
	})
}
