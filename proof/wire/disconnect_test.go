package wire_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// A thousand clients hang up while they send, while the handler runs, or while they receive. However much of the
// request the server has read, the handler runs once, and every retry gets its answer.
func TestClientsThatHangUp(t *testing.T) {
	t.Parallel()
	withoutLeaks(t, func(t *testing.T, label string) {
		for _, transport := range []transport{http1, http2, http2TLS} {
			t.Run(string(transport), func(t *testing.T) {
				t.Parallel()
				newHangUpServer(t, label, transport).requireOnce(1000)
			})
		}
	})
}

// hangUpServer is a server whose clients hang up.
type hangUpServer struct {
	*wireServer
	protocols http.Protocols
	trust     *tls.Config // nil: without TLS
	patient   *http.Client

	mu    sync.Mutex
	runs  map[string]int    // runs of the handler, by key
	onRun map[string]func() // called once by the handler, by key
}

func newHangUpServer(t *testing.T, label string, transport transport) *hangUpServer {
	s := &hangUpServer{wireServer: newWireServer(t, label), runs: map[string]int{}, onRun: map[string]func(){}}
	s.protocols.SetHTTP1(transport == http1)
	s.protocols.SetUnencryptedHTTP2(transport == http2)
	s.protocols.SetHTTP2(transport == http2TLS)
	s.start(idempotency.Options{Wait: time.Minute, MaxBodies: 16 << 20, MaxUserBodies: 16 << 20}, s.handle, transport)
	s.trust = s.server.Client().Transport.(*http.Transport).TLSClientConfig
	s.patient = &http.Client{Transport: &http.Transport{
		Protocols: &s.protocols, MaxIdleConnsPerHost: 100, TLSClientConfig: s.trust.Clone(),
	}}
	return s
}

// requireOnce runs clients that hang up, and requires that each key is executed once.
func (s *hangUpServer) requireOnce(clients int) {
	whole := &fragileConn{left: never}
	require.NoError(s.t, s.sendOver(whole, "whole").Err)
	size := never - whole.take(never) // the bytes of a whole exchange

	conns := make([]*fragileConn, clients)
	runParallel(clients, func(i int) { conns[i] = s.hangUp(strconv.Itoa(i), rand.IntN(size)) })
	executed := len(s.runCounts()) - 1 // the keys that were executed, except the key of the whole exchange
	runParallel(clients, func(i int) { s.retry(strconv.Itoa(i)) })
	require.Len(s.t, s.runCounts(), clients+1)
	for key, runs := range s.runCounts() {
		require.Equal(s.t, 1, runs, "runs of key %s", key)
	}
	s.t.Attr("clients-that-hang-up", strconv.Itoa(clients))
	s.t.Attr("of-these-executed-before-they-retried", strconv.Itoa(executed))
	require.Positive(s.t, executed)
	require.Less(s.t, executed, clients)
	s.patient.CloseIdleConnections()
	for _, conn := range conns {
		conn.end()
	}
	s.requireInOrder()
}

func (s *hangUpServer) handle(w http.ResponseWriter, r *http.Request) {
	if r.Method == "PRI" {
		return // an HTTP/1.1 server reads a part of the HTTP/2 preface as a request
	}
	key := r.Header.Get("Idempotency-Key")
	body, err := io.ReadAll(r.Body)
	assert.NoError(s.t, err)
	assert.Equal(s.t, bodyFor(key), string(body))
	s.mu.Lock()
	s.runs[key]++
	run, onRun := s.runs[key], s.onRun[key]
	delete(s.onRun, key)
	s.mu.Unlock()
	if onRun != nil {
		onRun()
		<-r.Context().Value(clientContext{}).(context.Context).Done()
	}
	assert.NoError(s.t, r.Context().Err(), "the handler is not to notice that its client has left")
	w.Header().Set("X-Run", strconv.Itoa(run))
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, answerFor(key, run))
}

// runCounts returns the runs of the handler, by key.
func (s *hangUpServer) runCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.runs)
}

func bodyFor(key string) string { return strings.Repeat("request "+key+" ", 1000) }

func answerFor(key string, run int) string {
	return strings.Repeat("answer "+key+" "+strconv.Itoa(run), 1000)
}

// hangUp sends a request, and hangs up after a number of bytes. One client in four hangs up when the handler runs.
func (s *hangUpServer) hangUp(key string, after int) *fragileConn {
	conn := &fragileConn{left: after, manner: rand.IntN(manners)}
	if rand.IntN(4) == 0 {
		conn.left = never
		s.mu.Lock()
		s.onRun[key] = conn.hangUp
		s.mu.Unlock()
	}
	if got := s.sendOver(conn, key); got.Err == nil {
		assert.Equal(s.t, answerFor(key, 1), got.Body) // the client has missed only the end of the connection
	}
	return conn
}

// retry repeats the request twice.
func (s *hangUpServer) retry(key string) {
	first, second := s.send(s.patient, key), s.send(s.patient, key)
	assert.NoError(s.t, first.Err)
	assert.Equal(s.t, http.StatusCreated, first.Status)
	assert.Equal(s.t, answerFor(key, 1), first.Body)
	assert.True(s.t, second.Replayed())
	for _, a := range []testservice.Answer{first, second} {
		a.Header.Del("Idempotent-Replayed")
	}
	assert.Equal(s.t, first, second)
}

// sendOver sends a request over conn, which no other request uses.
func (s *hangUpServer) sendOver(conn *fragileConn, key string) testservice.Answer {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	conn.cancel = cancel
	return s.send(&http.Client{Transport: &http.Transport{
		DialContext: conn.dial, DisableKeepAlives: true, Protocols: &s.protocols, TLSClientConfig: s.trust.Clone(),
	}}, key, testservice.WithContext(ctx))
}

func (s *hangUpServer) send(client *http.Client, key string, edits ...testservice.Edit) testservice.Answer {
	r, err := http.NewRequest(http.MethodPost, s.server.URL+"/pay", strings.NewReader(bodyFor(key)))
	if err != nil {
		return testservice.Answer{Err: err}
	}
	r.GetBody = nil // keeps the transport from repeating the request
	r.Header.Set("Idempotency-Key", key)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := client.Do(r)
	if err != nil {
		return testservice.Answer{Err: err}
	}
	defer resp.Body.Close()
	resp.Header.Del("Date")
	body, err := io.ReadAll(resp.Body)
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
}

// fragileConn is a connection whose client hangs up after a number of bytes, counted over both directions.
type fragileConn struct {
	net.Conn
	manner int
	cancel context.CancelFunc // cancels the request

	mu   sync.Mutex
	left int
}

const never = 1 << 30

// These constants are the ways in which a client hangs up.
const (
	resets  = iota // resets the connection at once
	closes         // closes the connection, after the sent bytes have arrived
	cancels        // cancels the request; HTTP/2 keeps the connection open
	manners        // the number of ways
)

var errHasLeft = errors.New("hung up")

func (c *fragileConn) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Conn != nil {
		return nil, errors.New("a second connection")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	c.Conn = conn
	return c, err
}

func (c *fragileConn) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.manner {
	case cancels:
		c.left = never
		c.cancel()
	case resets:
		_ = c.Conn.(*net.TCPConn).SetLinger(0)
		fallthrough
	default:
		c.left = 0
		_ = c.Conn.Close()
	}
}

// end closes the connection, because the transport keeps a connection whose request was cancelled before it had a
// stream.
func (c *fragileConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Conn != nil {
		_ = c.Conn.Close()
	}
}

// take returns how many of n bytes may still pass.
func (c *fragileConn) take(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, c.left)
	c.left -= n
	return n
}

func (c *fragileConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	passed := c.take(n)
	if passed == n {
		return n, err
	}
	if c.hangUp(); c.manner != cancels {
		return passed, errHasLeft
	}
	return n, err
}

func (c *fragileConn) Write(p []byte) (int, error) {
	passed := c.take(len(p))
	n, err := c.Conn.Write(p[:passed])
	if passed == len(p) {
		return n, err
	}
	if c.hangUp(); c.manner != cancels {
		return n, errHasLeft
	}
	rest, err := c.Conn.Write(p[passed:])
	return n + rest, err
}

// runParallel calls f for each number below n, a few calls at a time.
func runParallel(n int, f func(int)) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, 32)
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
}
