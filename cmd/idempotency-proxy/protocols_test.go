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

// speaking is a service that speaks HTTP/2, and what a proxy needs to reach it. Without TLS it speaks nothing else.
func speaking(t *testing.T, secure bool, handler http.HandlerFunc) (s *service, flags []string) {
	t.Helper()
	s = newService(t, handler)
	flags = append(asHeader, "-store", "memory:", "-upstream-http2")
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
		return s, append(flags, "-upstream-ca", writePEM(t, "CERTIFICATE", s.Certificate().Raw))
	}
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	return s, flags
}

// A guarded request and its replay, what streams, and trailers pass in HTTP/2 as they do in HTTP/1.1.
func TestHTTP2ToTheService(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"TLS": true, "no TLS": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := make(chan string)
			upstream, flags := speaking(t, secure, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					created(w, r)
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
			p := start(t, upstream.URL, flags...)
			for _, replayed := range []bool{false, true} {
				got := p.post("/things?a=1", "x", as("alice"), keyed("k"))
				require.Equal(t, 201, got.status, got)
				require.Equal(t, "made for alice", got.body)
				require.Equal(t, replayed, got.replayed)
			}
			require.Equal(t, 1, upstream.count())
			require.Equal(t, 2, upstream.last(t).ProtoMajor)

			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(httptest.NewRequest("GET", p.url+"/events", nil))
			require.NoError(t, err)
			defer resp.Body.Close()
			for _, event := range []string{"one", "two"} {
				next <- event
				read := make([]byte, len(event))
				_, err := io.ReadFull(resp.Body, read) // before the next one is sent
				require.NoError(t, err)
				require.Equal(t, event, string(read))
			}
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, "0", resp.Trailer.Get("Grpc-Status"))
		})
	}
}

// Of a request that a broken connection had, nobody knows the outcome, and the next one is answered. A service that is not
// there has seen nothing.
func TestHTTP2Fails(t *testing.T) {
	t.Parallel()
	upstream, flags := speaking(t, false, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	p := start(t, upstream.URL, append(flags, "-lease", "1s")...)
	got := p.post("/", "x", as("alice"), keyed("aborted"))
	require.Equal(t, 502, got.status, got)
	require.Equal(t, "Connection to the service broke", got.code())
	eventually(t, "an outcome", func() bool {
		return p.post("/", "x", as("alice"), keyed("aborted")).code() == "outcome-unknown"
	})
	require.Equal(t, 1, upstream.count())

	upstream.CloseClientConnections()
	upstream.Close()
	for i := range 2 {
		eventually(t, "not reached", func() bool { // once it knows that its connection has gone
			return p.post("/", "x", as("alice"), keyed(fmt.Sprint(i, "-", rand.Int()))).code() == "Service not reached"
		})
	}
	require.Equal(t, 1, upstream.count())
}

// A service may say that it did not process a request: it can be sent again, but only by the client. After any other reset
// nobody knows, and the proxy does not send the request again either, with a body or without.
func TestHTTP2Refuses(t *testing.T) {
	t.Parallel()
	const reset, goAway = 3, 7
	for name, test := range map[string]struct {
		kind    byte
		payload string
		title   string
		then    string // the code for a retry
	}{
		"refused stream": {reset, "\x00\x00\x00\x07", "Service did not take the request", "Service did not take the request"},
		"going away":     {goAway, "\x00\x00\x00\x00\x00\x00\x00\x00", "Service did not take the request", "Service did not take the request"},
		"protocol error": {reset, "\x00\x00\x00\x01", "Connection to the service broke", "outcome-unknown"},
		"internal error": {reset, "\x00\x00\x00\x02", "Connection to the service broke", "outcome-unknown"},
	} {
		for _, body := range []string{"x", ""} {
			t.Run(name+" "+body, func(t *testing.T) {
				t.Parallel()
				url, requests := resetting(t, test.kind, test.payload)
				p := start(t, url, append(asHeader, "-store", "memory:", "-upstream-http2", "-lease", "1s")...)
				got := p.post("/", body, as("alice"), keyed("k"))
				require.Equal(t, 502, got.status, got)
				require.Equal(t, test.title, got.code())
				require.EqualValues(t, 1, requests.Load())
				eventually(t, test.then, func() bool { return p.post("/", body, as("alice"), keyed("k")).code() == test.then })
			})
		}
	}
}

// resetting is a service that answers each request in HTTP/2 with one frame. It counts them.
func resetting(t *testing.T, kind byte, payload string) (url string, requests *atomic.Int64) {
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
			go resetEach(conn, kind, payload, requests)
		}
	}()
	return "http://" + listener.Addr().String(), requests
}

func resetEach(conn net.Conn, kind byte, payload string, requests *atomic.Int64) {
	const settings, header, goAway, preface = 4, 1, 7, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	frame := func(kind, flags byte, stream []byte, payload string) string {
		return string([]byte{0, 0, byte(len(payload)), kind, flags}) + string(stream) + payload
	}
	connection := []byte{0, 0, 0, 0}
	_, _ = io.CopyN(io.Discard, conn, int64(preface))
	_, _ = io.WriteString(conn, frame(settings, 0, connection, ""))
	var head [9]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		if head[3] != header {
			continue
		}
		requests.Add(1)
		stream := head[5:]
		if kind == goAway {
			stream = connection
		}
		_, _ = io.WriteString(conn, frame(kind, 0, stream, payload))
	}
}

// A service that speaks both has its WebSockets in HTTP/1.1.
func TestWebSocketBesideHTTP2(t *testing.T) {
	t.Parallel()
	upstream, flags := speaking(t, true, func(w http.ResponseWriter, r *http.Request) { switchTo(w, r.Header["Upgrade"]...) })
	p := start(t, upstream.URL, flags...)
	p.websocket(t).echoes(t, "hello")
	require.Equal(t, 1, upstream.last(t).ProtoMajor)
}

// A WebSocket needs HTTP/1.1: a service that speaks only HTTP/2 is not asked for one.
func TestNoWebSocketInHTTP2(t *testing.T) {
	t.Parallel()
	upstream, flags := speaking(t, false, created)
	p := start(t, upstream.URL, flags...)
	got := p.post("/", "", method("GET"), with("Connection", "Upgrade"), with("Upgrade", "websocket"))
	require.Equal(t, 502, got.status, got)
	require.Zero(t, upstream.count())
}

// Clients may begin with HTTP/2 without TLS, and send several requests at a time.
func TestHTTP2OfClients(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-wait", "20s")...)
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
	require.Equal(t, 8, upstream.count())
}

// Both sides show certificates: clients to the proxy, and the proxy to the service. Who has none gets nothing.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	upstream := newService(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	upstream.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	upstream.StartTLS()
	cert, key := certificate(t)
	clientCert, clientKey := certificate(t)
	common := append(asHeader, "-store", "memory:", "-tls-cert", cert, "-tls-key", key, "-tls-client-ca", clientCert,
		"-upstream-ca", writePEM(t, "CERTIFICATE", upstream.Certificate().Raw))
	pair, err := tls.LoadX509KeyPair(clientCert, clientKey)
	require.NoError(t, err)
	strange, err := tls.LoadX509KeyPair(certificate(t))
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

	p := start(t, upstream.URL, append(common, "-upstream-cert", cert, "-upstream-key", key)...)
	status, body, err := ask(p, pair)
	require.NoError(t, err)
	require.Equal(t, 200, status)
	require.Equal(t, "proxy", body, "the name in the certificate that the service was shown")
	_, _, err = ask(p)
	require.ErrorContains(t, err, "certificate required")
	_, _, err = ask(p, strange)
	require.Error(t, err)

	without := start(t, upstream.URL, common...)
	status, _, err = ask(without, pair)
	require.NoError(t, err)
	require.Equal(t, 502, status)
}

// A certificate that is renewed is shown without a restart. Files that are half renewed change nothing.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	p := start(t, serve(t, created).URL, append(asHeader, "-store", "memory:", "-tls-cert", cert, "-tls-key", key)...)
	shown := func() string {
		conn, err := tls.Dial("tcp", p.address(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return "" // polled
		}
		defer conn.Close()
		return string(conn.ConnectionState().PeerCertificates[0].Raw)
	}
	first := shown()
	require.NotEmpty(t, first)
	newCert, newKey := certificate(t)
	replace := func(file, by string) {
		text, err := os.ReadFile(by)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	replace(cert, newCert)
	eventually(t, "a warning", func() bool { return shown() == first && strings.Contains(p.logged(), "certificate not renewed") })
	replace(key, newKey)
	eventually(t, "the new certificate", func() bool { now := shown(); return now != first && now != "" })
}
