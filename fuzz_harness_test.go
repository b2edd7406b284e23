package idempotency_test

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/testservice"
)

// memoryNetwork is a network with one server, for fuzz targets: it takes no ports.
type memoryNetwork struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

// serveInMemory starts an http.Server for handler.
func serveInMemory(t testing.TB, handler http.Handler) *memoryNetwork {
	t.Helper()
	n := &memoryNetwork{conns: make(chan net.Conn), ended: make(chan struct{})}
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(n)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return n
}

func (n *memoryNetwork) Accept() (net.Conn, error) {
	select {
	case conn := <-n.conns:
		return conn, nil
	case <-n.ended:
		return nil, net.ErrClosed
	}
}

func (n *memoryNetwork) Close() error {
	n.once.Do(func() { close(n.ended) })
	return nil
}

func (n *memoryNetwork) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// serverEnd is a connection of two pipes, one for each way, so that a client can end one of them.
type serverEnd struct {
	net.Conn          // requests
	replies  net.Conn // and what comes back
}

func (c serverEnd) Write(p []byte) (int, error)        { return c.replies.Write(p) }
func (c serverEnd) SetWriteDeadline(t time.Time) error { return c.replies.SetWriteDeadline(t) }
func (c serverEnd) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(t) }
func (c serverEnd) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetReadDeadline(t), c.replies.SetWriteDeadline(t))
}
func (c serverEnd) Close() error { return errors.Join(c.Conn.Close(), c.replies.Close()) }

// send sends bytes over a connection of its own, and returns all bytes that come back.
func (n *memoryNetwork) send(t testing.TB, request string) string {
	return n.exchange(t, request, false)
}

// exchange sends a request, says that nothing more will come if it ends there, and returns all bytes that come back.
func (n *memoryNetwork) exchange(t testing.TB, request string, ends bool) string {
	t.Helper()
	requests, in := net.Pipe()
	out, replies := net.Pipe()
	require.NoError(t, replies.SetReadDeadline(time.Now().Add(10*time.Second)))
	n.conns <- serverEnd{in, out}
	written := make(chan struct{})
	go func() { // the server may answer before it has read all
		defer close(written)
		_, _ = io.WriteString(requests, request)
		if ends {
			_ = requests.Close()
		}
	}()
	reply, err := io.ReadAll(replies)
	require.NoError(t, err, "%q: %q", request, reply)
	require.NoError(t, errors.Join(requests.Close(), replies.Close()))
	<-written
	return string(reply)
}

// wholeAnswer is what a client reads, with the trailer.
type wholeAnswer struct {
	testservice.Answer
	trailer http.Header
}

// readWhole reads one final response, and requires that nothing comes after it.
func readWhole(t testing.TB, reply, method string) wholeAnswer {
	t.Helper()
	r := bufio.NewReader(strings.NewReader(reply))
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		require.NoError(t, err, "%q", reply)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err, "%q", reply)
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Empty(t, string(rest), "a second response")
		resp.Header.Del("Date")
		return wholeAnswer{testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: nil}, resp.Trailer}
	}
}

var ofThisReply = regexp.MustCompile(`(?m)^(Date: .*|Idempotent-Replayed: true)\r\n`)

// withoutMark returns a final reply without what tells it from the same reply at another time, or to another request.
func withoutMark(reply string) string {
	reply = strings.TrimPrefix(reply, "HTTP/1.1 100 Continue\r\n\r\n")
	head, body, found := strings.Cut(reply, "\r\n\r\n")
	if !found {
		return reply
	}
	return ofThisReply.ReplaceAllString(head+"\r\n", "") + "\r\n" + body
}
