package main

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// countingConn counts the bytes that were written to it. While a write is under way, all of it counts.
type countingConn struct {
	net.Conn
	written atomic.Int64
	closed  atomic.Bool
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n - len(p)))
	return n, err
}

func (c *countingConn) Close() error {
	err := c.Conn.Close()
	c.closed.Store(true) // nothing can be written from now on
	return err
}

// sent knows whether a part of a request may have left. It is told of the connections that the request gets: net/http
// takes another one if it could write nothing to the first.
type sent struct {
	mu      sync.Mutex
	conn    *countingConn
	before  int64 // what earlier requests have written to conn
	earlier bool  // a part may have left by another connection
}

type sentKey struct{}

// withSent returns a context for a request, of which wasSent can be asked.
func withSent(ctx context.Context) context.Context {
	s := new(sent)
	ctx = context.WithValue(ctx, sentKey{}, s)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: s.gotConn})
}

func (s *sent) gotConn(info httptrace.GotConnInfo) {
	conn := info.Conn
	if tls, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = tls.NetConn()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.earlier = s.some()
	s.conn = conn.(*countingConn)
	s.before = s.conn.written.Load()
}

func (s *sent) some() bool {
	return s.earlier || s.conn != nil && (!s.conn.closed.Load() || s.conn.written.Load() != s.before)
}

// wasSent reports whether the service may have seen a part of the request. It has seen nothing if there was no
// connection to it: its name is unknown, it refuses connections, or its certificate is not accepted. Nor has it if the
// connection closed before a byte was written to it.
func wasSent(ctx context.Context) bool {
	s, ok := ctx.Value(sentKey{}).(*sent)
	if !ok {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some()
}
