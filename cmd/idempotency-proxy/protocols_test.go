package main_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startHTTP2Service starts a service with HTTP/2, and returns the flags of a proxy in front of the service. Without TLS,
// the service has only HTTP/2.
func startHTTP2Service(t *testing.T, withTLS bool, handler http.HandlerFunc) (s *service, flags []string) {
	t.Helper()
	s = newService(t, handler)
	flags = append(userHeaderFlags, "-store", "memory:", "-upstream-http2")
	if withTLS {
		s.EnableHTTP2 = true
		s.StartTLS()
		return s, append(flags, "-upstream-ca", writePEM(t, "CERTIFICATE", s.Certificate().Raw))
	}
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	return s, flags
}

// Guarded requests, replays, streams and trailers pass over HTTP/2 as over HTTP/1.1.
func TestHTTP2ToTheService(t *testing.T) {
	t.Parallel()
	for name, withTLS := range map[string]bool{"TLS": true, "no TLS": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := make(chan string)
			upstream, flags := startHTTP2Service(t, withTLS, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					answerCreated(w, r)
					return
				}
				w.Header().Set("Trailer", "Grpc-Status")
				_ = http.NewResponseController(w).Flush()
				for range 2 {
					select {
					case event := <-next:
						_, _ = io.WriteString(w, event)
						_ = http.NewResponseController(w).Flush()
					case <-r.Context().Done():
						return
					}
				}
				w.Header().Set("Grpc-Status", "0")
			})
			p := startProxy(t, upstream.URL, flags...)
			for _, replayed := range []bool{false, true} {
				got := p.post("/things?a=1", "x", withUser("alice"), withKey("k"))
				require.Equal(t, 201, got.status, got)
				require.Equal(t, "made for alice", got.body)
				require.Equal(t, replayed, got.replayed)
			}
			require.Equal(t, 1, upstream.requestCount())
			require.Equal(t, 2, upstream.lastRequest(t).ProtoMajor)

			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(httptest.NewRequest("GET", p.url+"/events", nil))
			require.NoError(t, err)
			defer resp.Body.Close()
			for _, event := range []string{"one", "two"} {
				next <- event
				read := make([]byte, len(event))
				_, err := io.ReadFull(resp.Body, read) // before the service sends the next event
				require.NoError(t, err)
				require.Equal(t, event, string(read))
			}
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, "0", resp.Trailer.Get("Grpc-Status"))
		})
	}
}

// If the connection breaks during a request, the outcome is unknown. If the service is not reachable, the service has not
// received the request.
func TestHTTP2Fails(t *testing.T) {
	t.Parallel()
	upstream, flags := startHTTP2Service(t, false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	p := startProxy(t, upstream.URL, append(flags, "-lease", "1s")...)
	got := p.post("/", "x", withUser("alice"), withKey("aborted"))
	require.Equal(t, 502, got.status, got)
	require.Equal(t, "Connection to the service broke", got.problemCode())
	requireEventually(t, "an outcome", func() bool {
		return p.post("/", "x", withUser("alice"), withKey("aborted")).problemCode() == "outcome-unknown"
	})
	require.Equal(t, 1, upstream.requestCount())

	upstream.CloseClientConnections()
	upstream.Close()
	for i := range 2 {
		requireEventually(t, "not reached", func() bool { // after the proxy has noticed that its connection is closed
			return p.post("/", "x", withUser("alice"), withKey(fmt.Sprint(i, "-", rand.Int()))).problemCode() == "Service not reached"
		})
	}
	require.Equal(t, 1, upstream.requestCount())
}

// With REFUSED_STREAM or GOAWAY a service says that the request was not processed, so the client may repeat the request.
// After any other reset the outcome is unknown. In both cases the proxy does not repeat the request, with or without a body.
func TestHTTP2Refuses(t *testing.T) {
	t.Parallel()
	const reset, goAway = 3, 7
	for name, test := range map[string]struct {
		frameKind     byte
		payload       string
		wantTitle     string
		wantRetryCode string
	}{
		"refused stream": {reset, "\x00\x00\x00\x07", "Service did not take the request", "Service did not take the request"},
		"going away": {goAway, "\x00\x00\x00\x00\x00\x00\x00\x00", "Service did not take the request",
			"Service did not take the request"},
		"protocol error": {reset, "\x00\x00\x00\x01", "Connection to the service broke", "outcome-unknown"},
		"internal error": {reset, "\x00\x00\x00\x02", "Connection to the service broke", "outcome-unknown"},
	} {
		for _, body := range []string{"x", ""} {
			t.Run(name+" "+body, func(t *testing.T) {
				t.Parallel()
				url, requests := startResettingService(t, test.frameKind, test.payload)
				p := startProxy(t, url, append(userHeaderFlags, "-store", "memory:", "-upstream-http2", "-lease", "1s")...)
				got := p.post("/", body, withUser("alice"), withKey("k"))
				require.Equal(t, 502, got.status, got)
				require.Equal(t, test.wantTitle, got.problemCode())
				require.EqualValues(t, 1, requests.Load())
				requireEventually(t, test.wantRetryCode, func() bool {
					return p.post("/", body, withUser("alice"), withKey("k")).problemCode() == test.wantRetryCode
				})
			})
		}
	}
}

// startResettingService starts a service that answers each HTTP/2 request with a frame, and counts the requests.
func startResettingService(t *testing.T, kind byte, payload string) (url string, requests *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	requests = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go resetRequests(conn, kind, payload, requests)
		}
	}()
	return "http://" + listener.Addr().String(), requests
}

// resetRequests answers each request on conn with a frame.
func resetRequests(conn net.Conn, kind byte, payload string, requests *atomic.Int64) {
	const settings, header, goAway, preface = 4, 1, 7, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame := func(kind, flags byte, stream []byte, payload string) string {
		return string([]byte{0, 0, byte(len(payload)), kind, flags}) + string(stream) + payload
	}
	connection := []byte{0, 0, 0, 0}
	_, _ = io.CopyN(io.Discard, conn, int64(preface))
	_, _ = io.WriteString(conn, frame(settings, 0, connection, ""))
	var frameHeader [9]byte
	for {
		if _, err := io.ReadFull(conn, frameHeader[:]); err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, conn, int64(frameHeader[0])<<16|int64(frameHeader[1])<<8|int64(frameHeader[2]))
		if frameHeader[3] != header {
			continue
		}
		requests.Add(1)
		stream := frameHeader[5:]
		if kind == goAway {
			stream = connection
		}
		_, _ = io.WriteString(conn, frame(kind, 0, stream, payload))
	}
}

// WebSockets to a service with HTTP/1.1 and HTTP/2 use HTTP/1.1.
func TestWebSocketBesideHTTP2(t *testing.T) {
	t.Parallel()
	upstream, flags := startHTTP2Service(t, true, func(w http.ResponseWriter, r *http.Request) {
		switchProtocols(w, r.Header["Upgrade"]...)
	})
	p := startProxy(t, upstream.URL, flags...)
	p.openWebSocket(t).requireEcho(t, "hello")
	require.Equal(t, 1, upstream.lastRequest(t).ProtoMajor)
}

// A WebSocket needs HTTP/1.1, so the proxy refuses the WebSocket if the service has only HTTP/2.
func TestNoWebSocketInHTTP2(t *testing.T) {
	t.Parallel()
	upstream, flags := startHTTP2Service(t, false, answerCreated)
	p := startProxy(t, upstream.URL, flags...)
	got := p.post("/", "", withMethod("GET"), withField("Connection", "Upgrade"), withField("Upgrade", "websocket"))
	require.Equal(t, 502, got.status, got)
	require.Zero(t, upstream.requestCount())
}

// Clients may use HTTP/2 without TLS, and send concurrent requests.
func TestHTTP2OfClients(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-wait", "20s")...)
	client := &http.Transport{Protocols: new(http.Protocols)}
	client.Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			r, err := http.NewRequest("POST", p.url, strings.NewReader("x"))
			assert.NoError(t, err)
			r.Header = http.Header{"X-User": {"alice"}, "Idempotency-Key": {fmt.Sprint(i / 2)}}
			resp, err := client.RoundTrip(r)
			if assert.NoError(t, err) {
				assert.NoError(t, resp.Body.Close())
				assert.Equal(t, 2, resp.ProtoMajor)
				assert.Equal(t, 201, resp.StatusCode)
			}
		})
	}
	all.Wait()
	require.Equal(t, 8, upstream.requestCount())
}

// Clients show certificates to the proxy, and the proxy shows a certificate to the service. Without a certificate, requests
// are refused.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	upstream := newService(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	upstream.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	upstream.StartTLS()
	cert, key := writeCertificate(t)
	clientCert, clientKey := writeCertificate(t)
	common := append(userHeaderFlags, "-store", "memory:", "-tls-cert", cert, "-tls-key", key, "-tls-client-ca", clientCert,
		"-upstream-ca", writePEM(t, "CERTIFICATE", upstream.Certificate().Raw))
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	require.NoError(t, err)
	unknownPair, err := tls.LoadX509KeyPair(writeCertificate(t))
	require.NoError(t, err)
	ask := func(p *process, certs ...tls.Certificate) (int, string, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequest("POST", strings.Replace(p.url, "http", "https", 1), nil)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}

	p := startProxy(t, upstream.URL, append(common, "-upstream-cert", cert, "-upstream-key", key)...)
	status, body, err := ask(p, pair)
	require.NoError(t, err)
	require.Equal(t, 200, status)
	require.Equal(t, "proxy", body, "the name in the certificate of the proxy")
	_, _, err = ask(p)
	require.ErrorContains(t, err, "certificate required")
	_, _, err = ask(p, unknownPair)
	require.Error(t, err)

	without := startProxy(t, upstream.URL, common...)
	status, _, err = ask(without, pair)
	require.NoError(t, err)
	require.Equal(t, 502, status)
}

// The proxy uses a renewed certificate without a restart. If only one of the two files is renewed, the old certificate stays
// in use.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	cert, key := writeCertificate(t)
	p := startProxy(t, startService(t, answerCreated).URL,
		append(userHeaderFlags, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
	shown := func() string {
		conn, err := tls.Dial("tcp", p.address(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return "" // the caller polls
		}
		defer conn.Close()
		return string(conn.ConnectionState().PeerCertificates[0].Raw)
	}
	first := shown()
	require.NotEmpty(t, first)
	newCert, newKey := writeCertificate(t)
	replace := func(file, by string) {
		text, err := os.ReadFile(by)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	replace(cert, newCert)
	requireEventually(t, "a warning", func() bool {
		return shown() == first && strings.Contains(p.loggedLines(), "certificate not renewed")
	})
	replace(key, newKey)
	requireEventually(t, "the new certificate", func() bool { now := shown(); return now != first && now != "" })
}
