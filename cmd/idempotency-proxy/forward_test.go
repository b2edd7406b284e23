package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The service receives the operation and the attempt from the proxy. Fields of the client with these names are removed.
func TestOperationIsHandedOn(t *testing.T) {
	t.Parallel()
	fail := true
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		if fail {
			fail = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answerCreated(w, r)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	forged := func(r *http.Request) {
		for _, name := range []string{
			"Idempotency-Operation", "Idempotency-Attempt", "Idempotency_Operation", "idempotency_attempt",
			"Idempotency.Operation", "IDEMPOTENCY~ATTEMPT",
		} {
			r.Header[name] = []string{"forged"}
		}
	}
	require.Equal(t, 503, p.post("/things", "x", withUser("alice"), withKey("k"), forged).status)
	first := upstream.lastRequest(t).Header
	require.Equal(t, []string{"1"}, first["Idempotency-Attempt"])
	require.Len(t, first.Get("Idempotency-Operation"), 36)
	hop := withField("Connection", "Idempotency-Operation")
	require.Equal(t, 201, p.post("/things", "x", withUser("alice"), withKey("k"), forged, hop).status)
	second := upstream.lastRequest(t).Header
	require.Equal(t, []string{"2"}, second["Idempotency-Attempt"])
	require.Equal(t, first["Idempotency-Operation"], second["Idempotency-Operation"])

	for _, unguarded := range []requestOption{withMethod("GET"), withMethod("DELETE"), withMethod("POST")} {
		p.post("/things", "", withUser("alice"), forged, unguarded)
		for name := range upstream.lastRequest(t).Header {
			require.NotContains(t, strings.ToLower(strings.ReplaceAll(name, "_", "-")), "idempotency")
		}
	}
}

// The proxy removes the fields of the hop in both directions, and forwards all other fields unchanged.
func TestHeaders(t *testing.T) {
	t.Parallel()
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Twice"] = []string{"a", "b"}
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.Header().Set("Trailer", "X-Sum")
		answerCreated(w, r)
		w.Header().Set("X-Sum", "42")
	})
	p := startProxy(t, upstream.URL+"/base", append(userHeaderFlags, "-store", "memory:")...)
	hop := func(r *http.Request) {
		r.Header = http.Header{
			"Connection": {"X-Hop, Te"}, "X-Hop": {"1"}, "Keep-Alive": {"timeout=5"}, "Te": {"gzip"},
			"Upgrade":             {"other"},
			"Proxy-Authorization": {"Basic eDp5"}, "Proxy-Connection": {"keep-alive"}, "Expect": {"100-continue"},
			"X-User": {"alice"}, "X-Kept": {"1", "2"}, "Cookie": {"a=b"}, "Authorization": {"Basic eDp5"},
		}
	}
	for _, key := range []string{"one", "one"} {
		got := p.post("/a%2Fb?q=1;2&q=%zz", "x", hop, withKey(key))
		require.Equal(t, 201, got.status)
		require.Equal(t, []string{"a", "b"}, got.header["X-Twice"])
		require.Equal(t, "42", got.trailer.Get("X-Sum"))
		for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate"} {
			require.NotContains(t, got.header, name)
		}
	}
	require.Equal(t, 1, upstream.requestCount())
	seen := upstream.lastRequest(t)
	require.Equal(t, "/base/a%2Fb?q=1;2&q=%zz", seen.RequestURI)
	require.Equal(t, strings.TrimPrefix(upstream.URL, "http://"), seen.Host)
	require.Equal(t, []string{"1", "2"}, seen.Header["X-Kept"])
	require.Equal(t, []string{"a=b"}, seen.Header["Cookie"])
	require.Equal(t, []string{"Basic eDp5"}, seen.Header["Authorization"])
	for _, name := range []string{
		"Connection", "X-Hop", "Keep-Alive", "Te", "Upgrade", "Proxy-Authorization", "Proxy-Connection", "Expect",
		"Accept-Encoding",
	} {
		require.NotContains(t, seen.Header, name)
	}
}

// Only a trusted proxy in front may name the client in forwarding fields.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	told := []requestOption{
		withField("X-Forwarded-For", "192.0.2.7"), withField("X-Forwarded-Host", "api.example"), withField("X-Forwarded-Proto", "https"),
		withField("Forwarded", "for=192.0.2.7"), withHost("inner.example"),
		withField("X_Forwarded_For", "192.0.2.8"), withField("X-Forwarded_Host", "b.example"), withField("X.Forwarded.Proto", "ftp"),
	}
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	trusting := startProxy(t, upstream.URL, one...)
	require.Equal(t, 201, trusting.post("/", "x", told...).status)
	seen := upstream.lastRequest(t).Header
	require.Equal(t, []string{"192.0.2.7, 127.0.0.1"}, seen["X-Forwarded-For"])
	require.Equal(t, []string{"api.example"}, seen["X-Forwarded-Host"])
	require.Equal(t, []string{"https"}, seen["X-Forwarded-Proto"])

	wary := startProxy(t, upstream.URL, append(one, "-trusted-peers", "", "-preserve-host")...)
	require.Equal(t, 201, wary.post("/", "x", told...).status)
	seen = upstream.lastRequest(t).Header
	require.Equal(t, []string{"127.0.0.1"}, seen["X-Forwarded-For"])
	require.Equal(t, []string{"inner.example"}, seen["X-Forwarded-Host"])
	require.Equal(t, []string{"http"}, seen["X-Forwarded-Proto"])
	require.NotContains(t, seen, "Forwarded")
	for _, name := range []string{"X_forwarded_for", "X-Forwarded_host", "X.forwarded.proto"} {
		require.NotContains(t, seen, name)
	}
	require.Equal(t, "inner.example", upstream.lastRequest(t).Host)
}

// The host in X-Forwarded-Host belongs to the key, if the proxy in front is trusted.
func TestForwardedHostBelongsToTheKey(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	trusting, wary := startProxy(t, upstream.URL, one...), startProxy(t, upstream.URL, append(one, "-trusted-peers", "10.0.0.1")...)
	both := startProxy(t, upstream.URL, append(one, "-preserve-host")...)
	forwarded := func(host string) requestOption { return withField("X-Forwarded-Host", host) }
	for name, test := range map[string]struct {
		proxy        *process
		changes      []requestOption
		wantReplayed bool
	}{
		"the same":          {trusting, []requestOption{forwarded("A.Example:443"), withHost("inner")}, true},
		"over another host": {trusting, []requestOption{forwarded("a.example"), withHost("inner-2")}, true},
		"not forwarded":     {trusting, []requestOption{withHost("a.example")}, true},
		"another":           {trusting, []requestOption{forwarded("b.example"), withHost("inner")}, false},
		"not trusted":       {wary, []requestOption{forwarded("b.example"), withHost("inner")}, true},
		"preserved":         {both, []requestOption{forwarded("a.example"), withHost("inner")}, true},
		"preserved other":   {both, []requestOption{forwarded("a.example"), withHost("inner-2")}, false},
	} {
		key := withKey(strings.ReplaceAll(name, " ", "-"))
		require.False(t, test.proxy.post("/", "x", key, forwarded("a.example"), withHost("inner")).replayed, name)
		require.Equal(t, test.wantReplayed, test.proxy.post("/", "x", append(test.changes, key)...).replayed, name)
	}
}

// Two hosts are two services, so the host belongs to the key. With -ignore-host the operator declares that all hosts are
// names of one service.
func TestHostBelongsToTheKey(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	strict, lenient := startProxy(t, upstream.URL, one...), startProxy(t, upstream.URL, append(one, "-ignore-host")...)
	for name, test := range map[string]struct {
		proxy        *process
		host         string
		wantReplayed bool
	}{
		"the same":         {strict, "a.example", true},
		"in other letters": {strict, "A.Example:80", true},
		"another":          {strict, "b.example", false},
		"another port":     {strict, "a.example:8080", false},
		"ignored":          {lenient, "b.example", true},
	} {
		key := withKey(strings.ReplaceAll(name, " ", "-"))
		require.False(t, test.proxy.post("/", "x", key, withHost("a.example")).replayed, name)
		require.Equal(t, test.wantReplayed, test.proxy.post("/", "x", key, withHost(test.host)).replayed, name)
	}
}

// With -forward-key, the service receives the key.
func TestForwardKey(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	args := []string{"-all-callers-are-one-user", "-store", "memory:", "-key-headers", "Idempotency-Key,X-Request-Key"}
	without, forwarding := startProxy(t, upstream.URL, args...), startProxy(t, upstream.URL, append(args, "-forward-key")...)
	both := []requestOption{withKey("k"), withField("X-Request-Key", "k"), withField("Idempotency_Key", "other")}
	require.Equal(t, 201, without.post("/", "x", both...).status)
	require.Empty(t, upstream.lastRequest(t).Header.Get("Idempotency-Key")+upstream.lastRequest(t).Header.Get("X-Request-Key"))
	require.Equal(t, 201, forwarding.post("/", "x", both...).status)
	require.Equal(t, "kk", upstream.lastRequest(t).Header.Get("Idempotency-Key")+upstream.lastRequest(t).Header.Get("X-Request-Key"))
	require.NotContains(t, upstream.lastRequest(t).Header, "Idempotency_key", "a service may take this field for the key")
	require.Equal(t, 201, without.post("/", "", withKey("k"), withMethod("PUT")).status)
	require.Equal(t, "k", upstream.lastRequest(t).Header.Get("Idempotency-Key"), "an unguarded request is forwarded unchanged")
}

// Unguarded requests are streamed: informational responses, events as they arrive, and other protocols.
func TestUnguardedStreams(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hints":
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			answerCreated(w, r)
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-goOn
			_, _ = io.WriteString(w, "data: 2\n\n")
		case "/echo":
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			line, _ := rw.ReadString('\n')
			_, _ = io.WriteString(conn, "echo "+line)
		}
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer conn.Close()
	in := textproto.NewReader(bufio.NewReader(conn))
	ask := func(path, fields string) {
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, fields)
		require.NoError(t, err)
	}
	ask("/hints", "")
	awaitLine(t, in, "HTTP/1.1 103 Early Hints")
	awaitLine(t, in, "Link: </style.css>; rel=preload")
	awaitLine(t, in, "HTTP/1.1 201 Created")
	awaitLine(t, in, "")
	_, err = io.CopyN(io.Discard, in.R, int64(len("made for ")))
	require.NoError(t, err)

	ask("/events", "")
	awaitLine(t, in, "HTTP/1.1 200 OK")
	awaitLine(t, in, "data: 1")
	close(goOn) // the first event has arrived before the service has finished
	awaitLine(t, in, "data: 2")
	awaitLine(t, in, "0")

	ask("/echo", "Connection: Upgrade\r\nUpgrade: websocket\r\n")
	awaitLine(t, in, "HTTP/1.1 101 Switching Protocols")
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	awaitLine(t, in, "echo hello")
}

// awaitLine reads lines until the wanted line.
func awaitLine(t *testing.T, in *textproto.Reader, want string) {
	t.Helper()
	for {
		line, err := in.ReadLine()
		require.NoError(t, err)
		if line == want {
			return
		}
	}
}

// Informational responses to a guarded request are not stored, and do not reach the client.
func TestGuardedInformation(t *testing.T) {
	t.Parallel()
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		answerCreated(w, r)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	for _, replayed := range []bool{false, true} {
		got := p.post("/", "x", withUser("alice"), withKey("k"))
		require.Equal(t, 201, got.status)
		require.Equal(t, replayed, got.replayed)
		require.Equal(t, "/things/1", got.header.Get("Location"))
		require.NotContains(t, got.header, "Link")
	}
}

// echoBody is a handler that answers with the body of the request.
func echoBody(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// Large bodies arrive complete, with and without a length.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	upstream := startService(t, echoBody)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-max-body", "300000")...)
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for _, size := range []int{1, 2048, 2049, 4096, 300000} {
		body := strings.Repeat("b", size)
		for name, changes := range map[string][]requestOption{"length": {}, "chunked": {chunked}} {
			key := withKey(fmt.Sprintf("%s-%d", name, size))
			for _, replayed := range []bool{false, true} {
				got := p.post("/", body, append(changes, key, withUser("alice"))...)
				require.Equal(t, 200, got.status, name)
				require.Equal(t, replayed, got.replayed)
				require.True(t, body == got.body, "%d bytes came of %d", len(got.body), size)
			}
		}
	}
}

// If all callers are one user, that user may take all of -max-bodies.
func TestOneUserTakesAllBodies(t *testing.T) {
	t.Parallel()
	const together = 4
	var arrived atomic.Int64
	all := make(chan struct{})
	release := sync.OnceFunc(func() { close(all) })
	upstream := startService(t, func(w http.ResponseWriter, _ *http.Request) {
		if arrived.Add(1) == together {
			release()
		}
		<-all
	})
	p := startProxy(t, upstream.URL, "-all-callers-are-one-user", "-store", "memory:", "-max-body", "512", "-max-bodies", "2048")
	var group sync.WaitGroup
	for i := range together {
		group.Go(func() {
			got := p.post("/", strings.Repeat("b", 512), withKey(strconv.Itoa(i)))
			if !assert.Equal(t, http.StatusOK, got.status, got.body) {
				release() // because the other requests wait for this request
			}
		})
	}
	group.Wait()
}

// The target of a request must be a path, because the proxy would forward any other target without the path of -upstream,
// and all such targets would share a key.
func TestTarget(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL+"/base", append(userHeaderFlags, "-store", "memory:")...)
	for target, want := range map[string]int{
		"x:http://internal.example/admin": 400, "x:admin": 400, "*": 400, "/%2A": 201, "http://other.example/y": 201,
		"http://other.example": 201,
	} {
		resp := p.exchangeLines(t, "POST "+target+" HTTP/1.1", "X-User: alice", "Idempotency-Key: k")
		require.Equal(t, want, resp.StatusCode, target)
	}
	require.Equal(t, 3, upstream.requestCount())
}

// exchangeLines sends a request with the given lines and the body x on a new connection, and returns the answer.
func (p *process) exchangeLines(t *testing.T, lines ...string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "%s\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
		strings.Join(lines, "\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// The proxy removes the trailers of a request, because a trailer could name another user, and is not in the fingerprint.
func TestTrailersOfRequests(t *testing.T) {
	t.Parallel()
	trailers := make(chan http.Header, 2)
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		trailers <- r.Trailer
		answerCreated(w, r)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	chunked := func(r *http.Request) {
		r.ContentLength = -1
		r.Trailer = http.Header{"X-User": {"bob"}}
	}
	for _, changes := range [][]requestOption{{}, {withKey("k")}} {
		require.Equal(t, 201, p.post("/", "x", append(changes, withUser("alice"), chunked)...).status)
		require.Empty(t, <-trailers)
	}
}

// The body of a guarded request must arrive within -body-timeout, because an incomplete body takes room from other
// requests. The limit ends with the body: the connection stays usable. Unguarded requests have no limit.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	upstream := startService(t, echoBody)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-body-timeout", "300ms")...)
	begin := func(fields string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", p.address())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-User: alice\r\nContent-Length: 2\r\n"+fields+"\r\nb")
		require.NoError(t, err)
		return conn, bufio.NewReader(conn)
	}
	slow, in := begin("Idempotency-Key: slow\r\n")
	timely, timelyIn := begin("Idempotency-Key: timely\r\n")
	unguarded, unguardedIn := begin("")
	_, err := io.WriteString(timely, "b")
	require.NoError(t, err)
	require.Equal(t, 200, readStatus(t, timelyIn))
	require.Equal(t, 400, readStatus(t, in))
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the connection is closed")
	require.NoError(t, slow.Close())

	_, err = io.WriteString(unguarded, "b")
	require.NoError(t, err)
	require.Equal(t, 200, readStatus(t, unguardedIn))
	_, err = io.WriteString(timely, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	require.Equal(t, 200, readStatus(t, timelyIn))
}

// readStatus returns the status of the next answer on a connection.
func readStatus(t *testing.T, in *bufio.Reader) int {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}

// The proxy refuses CONNECT, and is no tunnel.
func TestConnect(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	require.NoError(t, err)
	line, err := textproto.NewReader(bufio.NewReader(conn)).ReadLine()
	require.NoError(t, err)
	require.Contains(t, line, "405")
	require.Zero(t, upstream.requestCount())
}

// A client with Expect: 100-continue is told to send the body, with and without a guard.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	upstream := startService(t, echoBody)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	for _, changes := range [][]requestOption{{withUser("alice")}, {withUser("alice"), withKey("k")}} {
		got := p.post("/", "the body", append(changes, withField("Expect", "100-continue"))...)
		require.Equal(t, "the body", got.body)
	}
}
