package main_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A user cannot act as another user, and gets no answer of another user.
func TestTrustedHeader(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	first := p.post("/things", "x", withKey("k"), withUser("alice"))
	require.Equal(t, "201 made for alice <nil>", first.String())
	require.True(t, p.post("/things", "x", withKey("k"), withUser("alice")).replayed)
	require.Equal(t, "made for bob", p.post("/things", "x", withKey("k"), withUser("bob")).body)

	before := upstream.requestCount()
	for name, changes := range map[string][]requestOption{
		"no user":                 {},
		"empty":                   {withUser("")},
		"two lines":               {withUser("mallory"), withUser("alice")},
		"the same twice":          {withUser("alice"), withUser("alice")},
		"two in one line":         {withUser("mallory, alice")},
		"two in one line, packed": {withUser("mallory,alice")},
		"a space":                 {withUser("alice b")},
		"underscore":              {withField("X_User", "alice")},
		"underscore, small":       {withField("x_user", "alice")},
	} {
		got := p.post("/things", "x", append(changes, withKey("k"))...)
		require.Equal(t, 401, got.status, "%s: %s", name, got)
		require.Equal(t, "user-unknown", got.problemCode(), name)
	}
	require.Equal(t, before, upstream.requestCount(), "no refused request gets through")
	require.NotContains(t, p.loggedLines(), "alice")
}

// A client may send bytes that net/http does not send, for example a folded line, or a space after a name.
func TestTrustedHeaderOnTheWire(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	require.Equal(t, 201, p.post("/things", "x", withKey("k"), withUser("alice")).status)
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
	require.Equal(t, 1, upstream.requestCount())
}

// The service receives the verified user header or none, with and without a guard.
func TestWhatTheServiceSeesOfTheUser(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	for name, test := range map[string]struct {
		changes   []requestOption
		wantUsers []string
	}{
		"trusted":                {[]requestOption{withUser("alice")}, []string{"alice"}},
		"none":                   {nil, nil},
		"two":                    {[]requestOption{withUser("alice"), withUser("mallory")}, nil},
		"underscore beside user": {[]requestOption{withUser("alice"), withField("X_User", "mallory")}, []string{"alice"}},
		"underscore alone":       {[]requestOption{withField("X_USER", "mallory")}, nil},
		"dot":                    {[]requestOption{withUser("alice"), withField("X.User", "mallory")}, []string{"alice"}},
		"tilde":                  {[]requestOption{withField("x~user", "mallory")}, nil},
		"removed by Connection":  {[]requestOption{withUser("alice"), withField("Connection", "X-User")}, []string{"alice"}},
	} {
		require.Equal(t, 201, p.post("/things", "x", test.changes...).status, name)
		seen := upstream.lastRequest(t).Header
		require.Equal(t, test.wantUsers, seen["X-User"], name)
		for field := range seen {
			require.False(t, field != "X-User" && strings.HasSuffix(strings.ToLower(field), "user"), "%s: %s", name, field)
		}
	}
}

// The proxy ignores the user header of an untrusted peer.
func TestUntrustedPeer(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-trusted-peers", "10.0.0.0/8,192.0.2.1")...)
	require.Equal(t, "user-unknown", p.post("/things", "x", withKey("k"), withUser("alice")).problemCode())
	requireEventually(t, "the log says why", func() bool {
		return strings.Contains(p.loggedLines(), "the peer is not one of -trusted-peers")
	})
	require.Zero(t, upstream.requestCount())
	require.Equal(t, "made for ", p.post("/things", "x", withUser("alice"), withField("X-Forwarded-For", "192.0.2.1")).body)
	require.Equal(t, "127.0.0.1", upstream.lastRequest(t).Header.Get("X-Forwarded-For"))
}

// With -all-callers-are-one-user, all callers share the keys.
func TestOneUser(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, "-all-callers-are-one-user", "-store", "memory:")
	require.False(t, p.post("/things", "x", withKey("k"), withUser("alice")).replayed)
	require.True(t, p.post("/things", "x", withKey("k"), withUser("bob")).replayed)
}

// -problem-base sets the base URL of the types of refusals, including the refusals of the proxy itself.
func TestProblemBase(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	base := []string{"-store", "memory:", "-required", "-problem-base", "https://api.example.com/problems/"}
	p := startProxy(t, upstream.URL, append(userHeaderFlags, base...)...)
	require.Contains(t, p.post("/", "x", withUser("alice")).body, `"type":"https://api.example.com/problems/key-missing"`)
	byToken := startProxy(t, upstream.URL,
		slices.Concat([]string{"-jwt-key", writePublicPEM(t, newECKey(t))}, issuerFlags, base[2:])...)
	refused := byToken.post("/", "x", withKey("k"), withBearer("none"))
	require.Contains(t, refused.body, `"type":"https://api.example.com/problems/user-unknown"`)
}
