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

// rawService is a service that writes bytes to the connection, and counts the received requests.
type rawService struct {
	net.Listener
	requestCount atomic.Int64
}

// startRawService starts a service that calls answer for each request. If answer returns false, the service closes the
// connection.
func startRawService(t testing.TB, answer func(n int64, r *http.Request, conn net.Conn) (keepOpen bool)) *rawService {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawService{Listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serveConnection(conn, answer)
		}
	}()
	return s
}

func (s *rawService) url() string { return "http://" + s.Addr().String() }

func (s *rawService) serveConnection(conn net.Conn, answer func(int64, *http.Request, net.Conn) bool) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if !answer(s.requestCount.Add(1), r, conn) {
			return
		}
	}
}

// atMostOnceFlags makes the proxy refuse operations with an unknown outcome after a short lease.
var atMostOnceFlags = slices.Clip(append(userHeaderFlags, "-store", "memory:", "-lease", "1s"))

const okResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// If nothing of a request was sent to the service, a retry is executed.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	unknownCA := httptest.NewTLSServer(http.HandlerFunc(answerCreated))
	t.Cleanup(unknownCA.Close)
	plain := startService(t, answerCreated)
	muteAddress := startMuteService(t)
	for name, upstream := range map[string]string{
		"refused":               "http://" + closed.Addr().String(),
		"no such name":          "http://service.invalid",
		"certificate":           unknownCA.URL,
		"no TLS":                strings.Replace(plain.URL, "http", "https", 1),
		"TLS handshake timeout": "https://" + muteAddress,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, upstream, append(atMostOnceFlags, "-upstream-dial-timeout", "300ms")...)
			for range 2 { // the retry is executed, and not refused
				got := p.post("/", "x", withUser("alice"), withKey("k"))
				require.Equal(t, 502, got.status, got)
				require.Equal(t, "Service not reached", got.problemCode())
				require.Contains(t, got.body, `"same-key"`)
			}
			require.Contains(t, getURL(t, p.adminURL+"/metrics").body, `upstream_failures_total{kind="unreachable"} 2`)
		})
	}
	require.Zero(t, plain.requestCount())
}

// startMuteService accepts connections, and sends nothing.
func startMuteService(t *testing.T) (addr string) {
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

// If the service may have executed a request, the request is not repeated, however the connection ends. The service
// receives one request.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer      func(*http.Request, net.Conn)
		wantCode    string // of the first answer
		failureKind string // in the metrics
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
				service := startRawService(t, func(_ int64, r *http.Request, conn net.Conn) bool {
					test.answer(r, conn)
					return false
				})
				args := append(atMostOnceFlags, "-forward-key")
				if test.failureKind == "timeout" {
					args = append(args, "-upstream-header-timeout", "300ms")
				}
				p := startProxy(t, service.url(), args...)
				first := p.post("/", body, withUser("alice"), withKey("k"))
				require.Equal(t, test.wantCode, first.problemCode(), first)
				if test.failureKind == "broken-off" {
					require.Error(t, first.err, "the client sees that the answer is incomplete")
				}
				requireEventually(t, "the lease lapses", func() bool {
					code := p.post("/", body, withUser("alice"), withKey("k")).problemCode()
					require.Contains(t, []string{"in-progress", "outcome-unknown"}, code)
					return code == "outcome-unknown"
				})
				require.EqualValues(t, 1, service.requestCount.Load())
				if test.failureKind != "" {
					metrics := getURL(t, p.adminURL+"/metrics").body
					require.Contains(t, metrics, `upstream_failures_total{kind="`+test.failureKind+`"} 1`)
				}
			})
		}
	}
}

// A reused connection breaks after the service has read the next request. net/http would repeat a request with a key and
// without a body, but the proxy prevents that.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	other := withField("X-Idempotency-Key", "2")
	for name, test := range map[string]struct {
		body    string
		changes []requestOption
		args    []string
	}{
		"guarded":                    {"x", []requestOption{withKey("2")}, nil},
		"guarded, no body":           {"", []requestOption{withKey("2")}, nil},
		"key forwarded, no body":     {"", []requestOption{withKey("2")}, []string{"-forward-key"}},
		"other key, no body":         {"", []requestOption{other}, []string{"-forward-key", "-key-headers", "X-Idempotency-Key"}},
		"not guarded, key, no body":  {"", []requestOption{withKey("2"), withMethod("PUT")}, nil},
		"not guarded, other key":     {"", []requestOption{other}, nil},
		"not guarded, small letters": {"", []requestOption{withField("idempotency-key", "2"), withMethod("DELETE")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := startRawService(t, func(n int64, _ *http.Request, conn net.Conn) bool {
				if n == 1 {
					_, _ = io.WriteString(conn, okResponse)
				}
				return n == 1
			})
			p := startProxy(t, service.url(), append(append(atMostOnceFlags, "-upstream-idle", "1m"), test.args...)...)
			require.Equal(t, 200, p.post("/", "x", withUser("alice")).status)
			got := p.post("/", test.body, append(test.changes, withUser("alice"))...)
			require.Equal(t, 502, got.status, got)
			require.EqualValues(t, 2, service.requestCount.Load(), "one request came over the connection of the first")
		})
	}
}

// With re-execute, an operation with an unknown outcome is executed again, as the next attempt.
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
	service := startRawService(t, func(n int64, r *http.Request, conn net.Conn) bool {
		operations <- r.Header.Get("Idempotency-Operation")
		if n == 1 {
			_, _ = io.WriteString(conn, sent)
			return false
		}
		_, _ = io.WriteString(conn, okResponse)
		return true
	})
	p := startProxy(t, service.url(), append(atMostOnceFlags, "-abandoned", "re-execute")...)
	require.NotEqual(t, 200, p.post("/", "x", withUser("alice"), withKey("k")).status)
	require.Equal(t, 200, p.post("/", "x", withUser("alice"), withKey("k")).status)
	require.True(t, p.post("/", "x", withUser("alice"), withKey("k")).replayed)
	require.EqualValues(t, 2, service.requestCount.Load())
	require.Equal(t, <-operations, <-operations)
}

// -upstream-timeout limits the complete answer of the service, too.
func TestUpstreamTimeout(t *testing.T) {
	t.Parallel()
	service := startRawService(t, func(_ int64, _ *http.Request, conn net.Conn) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nnever")
		_, _ = conn.Read(make([]byte, 1))
		return false
	})
	p := startProxy(t, service.url(), append(atMostOnceFlags, "-upstream-timeout", "500ms")...)
	first := p.post("/", "x", withUser("alice"), withKey("k"))
	require.True(t, first.err != nil || first.status == 504, first)
	require.Contains(t, []string{"in-progress", "outcome-unknown"}, p.post("/", "x", withUser("alice"), withKey("k")).problemCode())
	require.EqualValues(t, 1, service.requestCount.Load())
}

// The service goes on after the client has left, and a retry gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	working, goOn := make(chan struct{}), make(chan struct{})
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		close(working)
		<-goOn
		answerCreated(w, r)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-wait", "20s")...)
	conn := p.postUnread("/", "x", "k")
	<-working
	require.NoError(t, conn.Close())
	close(goOn)
	got := p.post("/", "x", withUser("alice"), withKey("k"))
	require.Equal(t, 201, got.status)
	require.True(t, got.replayed)
	require.Equal(t, 1, upstream.requestCount())
}

// The proxy serves TLS, and over TLS also HTTP/2.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	cert, key := writeCertificate(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
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
