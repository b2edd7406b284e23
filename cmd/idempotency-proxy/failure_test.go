package main_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// raw is a service on bare connections. It counts the requests that it has read.
type raw struct {
	net.Listener
	requests atomic.Int64
}

// serveRaw serves with a function that is given each request and its connection, and says whether to go on with it.
func serveRaw(t testing.TB, answer func(n int64, r *http.Request, conn net.Conn) (more bool)) *raw {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &raw{Listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn, answer)
		}
	}()
	return s
}

func (s *raw) url() string { return "http://" + s.Addr().String() }

func (s *raw) serve(conn net.Conn, answer func(int64, *http.Request, net.Conn) bool) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if !answer(s.requests.Add(1), r, conn) {
			return
		}
	}
}

var atMostOnce = slices.Clip(append(asHeader, "-store", "memory:", "-lease", "1s"))

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// A request of which nothing was sent may be tried again, and is.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	unknownCA := httptest.NewTLSServer(http.HandlerFunc(created))
	t.Cleanup(unknownCA.Close)
	plain := serve(t, created)
	mute := serveMute(t)
	for name, upstream := range map[string]string{
		"refused":               "http://" + closed.Addr().String(),
		"no such name":          "http://service.invalid",
		"certificate":           unknownCA.URL,
		"no TLS":                strings.Replace(plain.URL, "http", "https", 1),
		"TLS handshake timeout": "https://" + mute,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, upstream, append(atMostOnce, "-upstream-dial-timeout", "300ms")...)
			for range 2 { // the second one is executed again, not refused
				got := p.post("/", "x", as("alice"), keyed("k"))
				require.Equal(t, 502, got.status, got)
				require.Equal(t, "Service not reached", got.code())
				require.Contains(t, got.body, `"same-key"`)
			}
			require.Contains(t, get(t, p.admin+"/metrics").body, `upstream_failures_total{kind="unreachable"} 2`)
		})
	}
	require.Zero(t, plain.count())
}

// serveMute accepts connections and says nothing.
func serveMute(t *testing.T) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return listener.Addr().String()
}

// What may have been carried out is not tried again, however the connection ends. The service sees one request.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(*http.Request, net.Conn)
		first  string
		kind   string
	}{
		"closed": {func(*http.Request, net.Conn) {}, "Connection to the service broke", "broken"},
		"reset": {func(_ *http.Request, conn net.Conn) {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}, "Connection to the service broke", "broken"},
		"within the header": {func(_ *http.Request, conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nLoca")
		}, "Connection to the service broke", "broken"},
		"nonsense": {func(_ *http.Request, conn net.Conn) {
			_, _ = io.WriteString(conn, "who are you?\r\n\r\n")
		}, "Connection to the service broke", "broken"},
		"within the body": {func(_ *http.Request, conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf")
		}, "", "broken-off"},
		"within the chunks": {func(_ *http.Request, conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
		}, "", "broken-off"},
		"no answer in time": {func(_ *http.Request, conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1)) // until the proxy gives up
		}, "Service did not answer in time", "timeout"},
		"a gateway behind": {func(_ *http.Request, conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n")
		}, "", ""},
	} {
		for _, body := range []string{"a body", ""} {
			t.Run(name+"/"+body, func(t *testing.T) {
				t.Parallel()
				service := serveRaw(t, func(_ int64, r *http.Request, conn net.Conn) bool {
					test.answer(r, conn)
					return false
				})
				args := append(atMostOnce, "-forward-key")
				if test.kind == "timeout" {
					args = append(args, "-upstream-header-timeout", "300ms")
				}
				p := start(t, service.url(), args...)
				first := p.post("/", body, as("alice"), keyed("k"))
				require.Equal(t, test.first, first.code(), first)
				if test.kind == "broken-off" {
					require.Error(t, first.err, "the client is not told that half an answer is whole")
				}
				eventually(t, "the lease lapses", func() bool {
					code := p.post("/", body, as("alice"), keyed("k")).code()
					require.Contains(t, []string{"in-progress", "outcome-unknown"}, code)
					return code == "outcome-unknown"
				})
				require.EqualValues(t, 1, service.requests.Load())
				if test.kind != "" {
					told := get(t, p.admin+"/metrics").body
					require.Contains(t, told, `upstream_failures_total{kind="`+test.kind+`"} 1`)
				}
			})
		}
	}
}

// A connection that was used before breaks when the service has read the next request: net/http sends a request that
// has a key and no body again, unless it is kept from it.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	other := with("X-Idempotency-Key", "2")
	for name, test := range map[string]struct {
		body    string
		changes []request
		args    []string
	}{
		"guarded":                    {"x", []request{keyed("2")}, nil},
		"guarded, no body":           {"", []request{keyed("2")}, nil},
		"key forwarded, no body":     {"", []request{keyed("2")}, []string{"-forward-key"}},
		"other key, no body":         {"", []request{other}, []string{"-forward-key", "-key-headers", "X-Idempotency-Key"}},
		"not guarded, key, no body":  {"", []request{keyed("2"), method("PUT")}, nil},
		"not guarded, other key":     {"", []request{other}, nil},
		"not guarded, small letters": {"", []request{with("idempotency-key", "2"), method("DELETE")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := serveRaw(t, func(n int64, _ *http.Request, conn net.Conn) bool {
				if n == 1 {
					_, _ = io.WriteString(conn, ok)
				}
				return n == 1
			})
			p := start(t, service.url(), append(append(atMostOnce, "-upstream-idle", "1m"), test.args...)...)
			require.Equal(t, 200, p.post("/", "x", as("alice")).status)
			got := p.post("/", test.body, append(test.changes, as("alice"))...)
			require.Equal(t, 502, got.status, got)
			require.EqualValues(t, 2, service.requests.Load(), "one request came over the connection of the first")
		})
	}
}

// With re-execute an unknown outcome is tried again, as the next attempt at the operation.
func TestReExecute(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"nothing": "",
		"half":    "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testReExecute(t, sent)
		})
	}
}

func testReExecute(t *testing.T, sent string) {
	operations := make(chan string, 2)
	service := serveRaw(t, func(n int64, r *http.Request, conn net.Conn) bool {
		operations <- r.Header.Get("Idempotency-Operation")
		if n == 1 {
			_, _ = io.WriteString(conn, sent)
			return false
		}
		_, _ = io.WriteString(conn, ok)
		return true
	})
	p := start(t, service.url(), append(atMostOnce, "-abandoned", "re-execute")...)
	require.NotEqual(t, 200, p.post("/", "x", as("alice"), keyed("k")).status)
	require.Equal(t, 200, p.post("/", "x", as("alice"), keyed("k")).status)
	require.True(t, p.post("/", "x", as("alice"), keyed("k")).replayed)
	require.EqualValues(t, 2, service.requests.Load())
	require.Equal(t, <-operations, <-operations)
}

// The service is bounded as a whole, too.
func TestUpstreamTimeout(t *testing.T) {
	t.Parallel()
	service := serveRaw(t, func(_ int64, _ *http.Request, conn net.Conn) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nnever")
		_, _ = conn.Read(make([]byte, 1))
		return false
	})
	p := start(t, service.url(), append(atMostOnce, "-upstream-timeout", "500ms")...)
	first := p.post("/", "x", as("alice"), keyed("k"))
	require.True(t, first.err != nil || first.status == 504, first)
	require.Contains(t, []string{"in-progress", "outcome-unknown"}, p.post("/", "x", as("alice"), keyed("k")).code())
	require.EqualValues(t, 1, service.requests.Load())
}

// A client that leaves decides nothing: a retry gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	working, goOn := make(chan struct{}), make(chan struct{})
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(working)
		<-goOn
		created(w, r)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-wait", "20s")...)
	conn := p.order("/", "x", "k")
	<-working
	require.NoError(t, conn.Close())
	close(goOn)
	got := p.post("/", "x", as("alice"), keyed("k"))
	require.Equal(t, 201, got.status)
	require.True(t, got.replayed)
	require.Equal(t, 1, upstream.count())
}

// The proxy serves TLS, and HTTP/2 with it.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	cert, key := certificate(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for _, replayed := range []string{"", "true"} {
		r, err := http.NewRequest("POST", strings.Replace(p.url, "http", "https", 1), strings.NewReader("x"))
		require.NoError(t, err)
		r.Header = http.Header{"X-User": {"alice"}, "Idempotency-Key": {"k"}}
		resp, err := transport.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 2, resp.ProtoMajor)
		require.Equal(t, replayed, resp.Header.Get("Idempotent-Replayed"))
	}
}
