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

// The service is told of the operation, by the proxy only.
func TestOperationIsHandedOn(t *testing.T) {
	t.Parallel()
	fail := true
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if fail {
			fail = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		created(w, r)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	forged := func(r *http.Request) {
		for _, name := range []string{
			"Idempotency-Operation", "Idempotency-Attempt", "Idempotency_Operation", "idempotency_attempt",
			"Idempotency.Operation", "IDEMPOTENCY~ATTEMPT",
		} {
			r.Header[name] = []string{"forged"}
		}
	}
	require.Equal(t, 503, p.post("/things", "x", as("alice"), keyed("k"), forged).status)
	first := upstream.last(t).Header
	require.Equal(t, []string{"1"}, first["Idempotency-Attempt"])
	require.Len(t, first.Get("Idempotency-Operation"), 36)
	hop := with("Connection", "Idempotency-Operation")
	require.Equal(t, 201, p.post("/things", "x", as("alice"), keyed("k"), forged, hop).status)
	second := upstream.last(t).Header
	require.Equal(t, []string{"2"}, second["Idempotency-Attempt"])
	require.Equal(t, first["Idempotency-Operation"], second["Idempotency-Operation"])

	for _, unguarded := range []request{method("GET"), method("DELETE"), method("POST")} {
		p.post("/things", "", as("alice"), forged, unguarded)
		for name := range upstream.last(t).Header {
			require.NotContains(t, strings.ToLower(strings.ReplaceAll(name, "_", "-")), "idempotency")
		}
	}
}

// Fields of the hop go no further, in either direction. The rest arrives as it was sent.
func TestHeaders(t *testing.T) {
	t.Parallel()
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Twice"] = []string{"a", "b"}
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.Header().Set("Trailer", "X-Sum")
		created(w, r)
		w.Header().Set("X-Sum", "42")
	})
	p := start(t, upstream.URL+"/base", append(asHeader, "-store", "memory:")...)
	hop := func(r *http.Request) {
		r.Header = http.Header{
			"Connection": {"X-Hop, Te"}, "X-Hop": {"1"}, "Keep-Alive": {"timeout=5"}, "Te": {"gzip"},
			"Upgrade":             {"other"},
			"Proxy-Authorization": {"Basic eDp5"}, "Proxy-Connection": {"keep-alive"}, "Expect": {"100-continue"},
			"X-User": {"alice"}, "X-Kept": {"1", "2"}, "Cookie": {"a=b"}, "Authorization": {"Basic eDp5"},
		}
	}
	for _, key := range []string{"one", "one"} {
		got := p.post("/a%2Fb?q=1;2&q=%zz", "x", hop, keyed(key))
		require.Equal(t, 201, got.status)
		require.Equal(t, []string{"a", "b"}, got.header["X-Twice"])
		require.Equal(t, "42", got.trailer.Get("X-Sum"))
		for _, name := range []string{"X-Hop", "Keep-Alive", "Proxy-Authenticate"} {
			require.NotContains(t, got.header, name)
		}
	}
	require.Equal(t, 1, upstream.count())
	seen := upstream.last(t)
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

// Only a proxy in front may tell of the client.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	told := []request{
		with("X-Forwarded-For", "192.0.2.7"), with("X-Forwarded-Host", "api.example"), with("X-Forwarded-Proto", "https"),
		with("Forwarded", "for=192.0.2.7"), toHost("inner.example"),
		with("X_Forwarded_For", "192.0.2.8"), with("X-Forwarded_Host", "b.example"), with("X.Forwarded.Proto", "ftp"),
	}
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	trusting := start(t, upstream.URL, one...)
	require.Equal(t, 201, trusting.post("/", "x", told...).status)
	seen := upstream.last(t).Header
	require.Equal(t, []string{"192.0.2.7, 127.0.0.1"}, seen["X-Forwarded-For"])
	require.Equal(t, []string{"api.example"}, seen["X-Forwarded-Host"])
	require.Equal(t, []string{"https"}, seen["X-Forwarded-Proto"])

	wary := start(t, upstream.URL, append(one, "-trusted-peers", "", "-preserve-host")...)
	require.Equal(t, 201, wary.post("/", "x", told...).status)
	seen = upstream.last(t).Header
	require.Equal(t, []string{"127.0.0.1"}, seen["X-Forwarded-For"])
	require.Equal(t, []string{"inner.example"}, seen["X-Forwarded-Host"])
	require.Equal(t, []string{"http"}, seen["X-Forwarded-Proto"])
	require.NotContains(t, seen, "Forwarded")
	for _, name := range []string{"X_forwarded_for", "X-Forwarded_host", "X.forwarded.proto"} {
		require.NotContains(t, seen, name)
	}
	require.Equal(t, "inner.example", upstream.last(t).Host)
}

// A proxy in front may ask for one host, and say in X-Forwarded-Host which one its client asked for.
func TestForwardedHostBelongsToTheKey(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	trusting, wary := start(t, upstream.URL, one...), start(t, upstream.URL, append(one, "-trusted-peers", "10.0.0.1")...)
	both := start(t, upstream.URL, append(one, "-preserve-host")...)
	forwarded := func(host string) request { return with("X-Forwarded-Host", host) }
	for name, test := range map[string]struct {
		proxy    *process
		changes  []request
		replayed bool
	}{
		"the same":        {trusting, []request{forwarded("A.Example:443"), toHost("inner")}, true},
		"by another way":  {trusting, []request{forwarded("a.example"), toHost("inner-2")}, true},
		"not forwarded":   {trusting, []request{toHost("a.example")}, true},
		"another":         {trusting, []request{forwarded("b.example"), toHost("inner")}, false},
		"not trusted":     {wary, []request{forwarded("b.example"), toHost("inner")}, true},
		"preserved":       {both, []request{forwarded("a.example"), toHost("inner")}, true},
		"preserved other": {both, []request{forwarded("a.example"), toHost("inner-2")}, false},
	} {
		key := keyed(strings.ReplaceAll(name, " ", "-"))
		require.False(t, test.proxy.post("/", "x", key, forwarded("a.example"), toHost("inner")).replayed, name)
		require.Equal(t, test.replayed, test.proxy.post("/", "x", append(test.changes, key)...).replayed, name)
	}
}

// A host is another service, unless the operator says that it is another name of the same.
func TestHostBelongsToTheKey(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	one := []string{"-all-callers-are-one-user", "-store", "memory:"}
	strict, lenient := start(t, upstream.URL, one...), start(t, upstream.URL, append(one, "-ignore-host")...)
	for name, test := range map[string]struct {
		proxy    *process
		host     string
		replayed bool
	}{
		"the same":         {strict, "a.example", true},
		"in other letters": {strict, "A.Example:80", true},
		"another":          {strict, "b.example", false},
		"another port":     {strict, "a.example:8080", false},
		"ignored":          {lenient, "b.example", true},
	} {
		key := keyed(strings.ReplaceAll(name, " ", "-"))
		require.False(t, test.proxy.post("/", "x", key, toHost("a.example")).replayed, name)
		require.Equal(t, test.replayed, test.proxy.post("/", "x", key, toHost(test.host)).replayed, name)
	}
}

// The service gets the key if the operator wants it.
func TestForwardKey(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	args := []string{"-all-callers-are-one-user", "-store", "memory:", "-key-headers", "Idempotency-Key,X-Request-Key"}
	without, withKey := start(t, upstream.URL, args...), start(t, upstream.URL, append(args, "-forward-key")...)
	both := []request{keyed("k"), with("X-Request-Key", "k"), with("Idempotency_Key", "other")}
	require.Equal(t, 201, without.post("/", "x", both...).status)
	require.Empty(t, upstream.last(t).Header.Get("Idempotency-Key")+upstream.last(t).Header.Get("X-Request-Key"))
	require.Equal(t, 201, withKey.post("/", "x", both...).status)
	require.Equal(t, "kk", upstream.last(t).Header.Get("Idempotency-Key")+upstream.last(t).Header.Get("X-Request-Key"))
	require.NotContains(t, upstream.last(t).Header, "Idempotency_key", "it may be taken for the key")
	require.Equal(t, 201, without.post("/", "", keyed("k"), method("PUT")).status)
	require.Equal(t, "k", upstream.last(t).Header.Get("Idempotency-Key"), "what is not guarded is not touched")
}

// What is not guarded streams through: information, events as they come, other protocols.
func TestUnguardedStreams(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hints":
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			created(w, r)
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
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer conn.Close()
	in := textproto.NewReader(bufio.NewReader(conn))
	ask := func(path, fields string) {
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, fields)
		require.NoError(t, err)
	}
	ask("/hints", "")
	await(t, in, "HTTP/1.1 103 Early Hints")
	await(t, in, "Link: </style.css>; rel=preload")
	await(t, in, "HTTP/1.1 201 Created")
	await(t, in, "")
	_, err = io.CopyN(io.Discard, in.R, int64(len("made for ")))
	require.NoError(t, err)

	ask("/events", "")
	await(t, in, "HTTP/1.1 200 OK")
	await(t, in, "data: 1")
	close(goOn) // the first event has come while the service was at work
	await(t, in, "data: 2")
	await(t, in, "0")

	ask("/echo", "Connection: Upgrade\r\nUpgrade: websocket\r\n")
	await(t, in, "HTTP/1.1 101 Switching Protocols")
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	await(t, in, "echo hello")
}

// await reads lines up to the one that is wanted.
func await(t *testing.T, in *textproto.Reader, want string) {
	t.Helper()
	for {
		line, err := in.ReadLine()
		require.NoError(t, err)
		if line == want {
			return
		}
	}
}

// What comes before the answer to a guarded request is no part of it.
func TestGuardedInformation(t *testing.T) {
	t.Parallel()
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		created(w, r)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	for _, replayed := range []bool{false, true} {
		got := p.post("/", "x", as("alice"), keyed("k"))
		require.Equal(t, 201, got.status)
		require.Equal(t, replayed, got.replayed)
		require.Equal(t, "/things/1", got.header.Get("Location"))
		require.NotContains(t, got.header, "Link")
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// Large bodies arrive whole, with a length and without.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	upstream := serve(t, echo)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-max-body", "300000")...)
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for _, size := range []int{1, 2048, 2049, 4096, 300000} {
		body := strings.Repeat("b", size)
		for name, changes := range map[string][]request{"length": {}, "chunked": {chunked}} {
			key := keyed(fmt.Sprintf("%s-%d", name, size))
			for _, replayed := range []bool{false, true} {
				got := p.post("/", body, append(changes, key, as("alice"))...)
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
	upstream := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if arrived.Add(1) == together {
			release()
		}
		<-all
	})
	p := start(t, upstream.URL, "-all-callers-are-one-user", "-store", "memory:", "-max-body", "512", "-max-bodies", "2048")
	var group sync.WaitGroup
	for i := range together {
		group.Go(func() {
			got := p.post("/", strings.Repeat("b", 512), keyed(strconv.Itoa(i)))
			if !assert.Equal(t, http.StatusOK, got.status, got.body) {
				release() // because the others would wait in vain
			}
		})
	}
	group.Wait()
}

// What is asked for is a path of the service. Other targets would reach the service as they are, past the path of
// -upstream, and share one key.
func TestTarget(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL+"/base", append(asHeader, "-store", "memory:")...)
	for target, want := range map[string]int{
		"x:http://internal.example/admin": 400, "x:admin": 400, "*": 400, "/%2A": 201, "http://other.example/y": 201,
		"http://other.example": 201,
	} {
		resp := p.exchange(t, "POST "+target+" HTTP/1.1", "X-User: alice", "Idempotency-Key: k")
		require.Equal(t, want, resp.StatusCode, target)
	}
	require.Equal(t, 3, upstream.count())
}

// exchange sends a request with the body x, line by line as it is given, on a connection of its own.
func (p *process) exchange(t *testing.T, lines ...string) *http.Response {
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

// Trailers of a request go no further: they could name another user, and no fingerprint has them.
func TestTrailersOfRequests(t *testing.T) {
	t.Parallel()
	trailers := make(chan http.Header, 2)
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		trailers <- r.Trailer
		created(w, r)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	chunked := func(r *http.Request) {
		r.ContentLength = -1
		r.Trailer = http.Header{"X-User": {"bob"}}
	}
	for _, changes := range [][]request{{}, {keyed("k")}} {
		require.Equal(t, 201, p.post("/", "x", append(changes, as("alice"), chunked)...).status)
		require.Empty(t, <-trailers)
	}
}

// The body of a guarded request must arrive in time, because it takes room from others until it is whole. A connection
// on which it has, and a request that is not guarded, may take longer.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	upstream := serve(t, echo)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-body-timeout", "300ms")...)
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
	require.Equal(t, 200, answered(t, timelyIn))
	require.Equal(t, 400, answered(t, in))
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF, "the connection is closed")
	require.NoError(t, slow.Close())

	_, err = io.WriteString(unguarded, "b")
	require.NoError(t, err)
	require.Equal(t, 200, answered(t, unguardedIn))
	_, err = io.WriteString(timely, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	require.Equal(t, 200, answered(t, timelyIn))
}

// answered returns the status of the next answer on a connection.
func answered(t *testing.T, in *bufio.Reader) int {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}

// It is no tunnel.
func TestConnect(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	require.NoError(t, err)
	line, err := textproto.NewReader(bufio.NewReader(conn)).ReadLine()
	require.NoError(t, err)
	require.Contains(t, line, "405")
	require.Zero(t, upstream.count())
}

// A client that asks whether to send its body is told to, guarded or not.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	upstream := serve(t, echo)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	for _, changes := range [][]request{{as("alice")}, {as("alice"), keyed("k")}} {
		got := p.post("/", "the body", append(changes, with("Expect", "100-continue"))...)
		require.Equal(t, "the body", got.body)
	}
}
