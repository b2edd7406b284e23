package main_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// One user cannot name another, and gets no answer of another.
func TestTrustedHeader(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	first := p.post("/things", "x", keyed("k"), as("alice"))
	require.Equal(t, "201 made for alice <nil>", first.String())
	require.True(t, p.post("/things", "x", keyed("k"), as("alice")).replayed)
	require.Equal(t, "made for bob", p.post("/things", "x", keyed("k"), as("bob")).body)

	ran := upstream.count()
	for name, changes := range map[string][]request{
		"nobody":                  {},
		"empty":                   {as("")},
		"two lines":               {as("mallory"), as("alice")},
		"the same twice":          {as("alice"), as("alice")},
		"two in one line":         {as("mallory, alice")},
		"two in one line, packed": {as("mallory,alice")},
		"a space":                 {as("alice b")},
		"underscore":              {with("X_User", "alice")},
		"underscore, small":       {with("x_user", "alice")},
	} {
		got := p.post("/things", "x", append(changes, keyed("k"))...)
		require.Equal(t, 401, got.status, "%s: %s", name, got)
		require.Equal(t, "user-unknown", got.code(), name)
	}
	require.Equal(t, ran, upstream.count(), "no refused request gets through")
	require.NotContains(t, p.logged(), "alice")
}

// A client may write what net/http would not send: a folded line, or a name with a space behind it.
func TestTrustedHeaderOnTheWire(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	require.Equal(t, 201, p.post("/things", "x", keyed("k"), as("alice")).status)
	for _, lines := range []string{
		"X-User: mallory\r\n alice\r\n", "X-User : alice\r\n", "X-User: \talice\x00\r\n",
		"X-User: mallory\r\nx-user: alice\r\n", "x_user: alice\r\nX-User: mallory alice\r\n",
	} {
		conn, err := net.Dial("tcp", p.address())
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "POST /things HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: k\r\n%sContent-Length: 1\r\n"+
			"Connection: close\r\n\r\nx", p.address(), lines)
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, conn.Close())
		require.Contains(t, []int{400, 401}, resp.StatusCode, "%q", lines)
	}
	require.Equal(t, 1, upstream.count())
}

// The service gets the header as it was verified, or none, guarded or not.
func TestWhatTheServiceSeesOfTheUser(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	for name, test := range map[string]struct {
		changes []request
		want    []string
	}{
		"trusted":               {[]request{as("alice")}, []string{"alice"}},
		"none":                  {nil, nil},
		"two":                   {[]request{as("alice"), as("mallory")}, nil},
		"underscore beside it":  {[]request{as("alice"), with("X_User", "mallory")}, []string{"alice"}},
		"underscore alone":      {[]request{with("X_USER", "mallory")}, nil},
		"dot":                   {[]request{as("alice"), with("X.User", "mallory")}, []string{"alice"}},
		"tilde":                 {[]request{with("x~user", "mallory")}, nil},
		"removed by Connection": {[]request{as("alice"), with("Connection", "X-User")}, []string{"alice"}},
	} {
		require.Equal(t, 201, p.post("/things", "x", test.changes...).status, name)
		seen := upstream.last(t).Header
		require.Equal(t, test.want, seen["X-User"], name)
		for field := range seen {
			require.False(t, field != "X-User" && strings.HasSuffix(strings.ToLower(field), "user"), "%s: %s", name, field)
		}
	}
}

// The header of a peer that is not the proxy in front counts for nothing.
func TestUntrustedPeer(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-trusted-peers", "10.0.0.0/8,192.0.2.1")...)
	require.Equal(t, "user-unknown", p.post("/things", "x", keyed("k"), as("alice")).code())
	eventually(t, "the log says why", func() bool { return strings.Contains(p.logged(), "the peer is not one of -trusted-peers") })
	require.Zero(t, upstream.count())
	require.Equal(t, "made for ", p.post("/things", "x", as("alice"), with("X-Forwarded-For", "192.0.2.1")).body)
	require.Equal(t, "127.0.0.1", upstream.last(t).Header.Get("X-Forwarded-For"))
}

// Without a user source it does not start; with one that says so, all callers are one.
func TestOneUser(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, "-all-callers-are-one-user", "-store", "memory:")
	require.False(t, p.post("/things", "x", keyed("k"), as("alice")).replayed)
	require.True(t, p.post("/things", "x", keyed("k"), as("bob")).replayed)
}

// The operator chooses the address of the types of refusals, also of those that the proxy makes itself.
func TestProblemBase(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	base := []string{"-store", "memory:", "-required", "-problem-base", "https://api.example.com/problems/"}
	p := start(t, upstream.URL, append(asHeader, base...)...)
	require.Contains(t, p.post("/", "x", as("alice")).body, `"type":"https://api.example.com/problems/key-missing"`)
	byToken := start(t, upstream.URL, append(append([]string{"-jwt-key", publicPEM(t, ecKey(t))}, issuer...), base[2:]...)...)
	refused := byToken.post("/", "x", keyed("k"), bearer("none"))
	require.Contains(t, refused.body, `"type":"https://api.example.com/problems/user-unknown"`)
}
