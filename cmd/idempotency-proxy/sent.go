package main

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// countingConn counts the bytes written to a connection. During a write, all bytes of the write count.
type countingConn struct {
	net.Conn
	bytesWritten atomic.Int64
	isClosed     atomic.Bool
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.bytesWritten.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.bytesWritten.Add(int64(n - len(p)))
	return n, err
}

func (c *countingConn) Close() error {
	err := c.Conn.Close()
	c.isClosed.Store(true) // all later writes fail
	return err
}

// sendTracker tracks whether a part of a request may have been sent. net/http may use several connections for a request, because
// net/http tries another connection if it could write nothing to the first.
type sendTracker struct {
	mu          sync.Mutex
	connection  *countingConn
	bytesBefore int64 // bytes by earlier requests on connection
	sentEarlier bool  // a part may have been sent on an earlier connection
}

type sendTrackerKey struct{}

// withSendTracker returns a context for a request to the service. wasSent takes the context after the request.
func withSendTracker(ctx context.Context) context.Context {
	s := new(sendTracker)
	ctx = context.WithValue(ctx, sendTrackerKey{}, s)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: s.trackConnection})
}

func (s *sendTracker) trackConnection(info httptrace.GotConnInfo) {
	conn := info.Conn
	if tls, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = tls.NetConn()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sentEarlier = s.maySent()
	s.connection = conn.(*countingConn)
	s.bytesBefore = s.connection.bytesWritten.Load()
}

func (s *sendTracker) maySent() bool {
	return s.sentEarlier || s.connection != nil && (!s.connection.isClosed.Load() || s.connection.bytesWritten.Load() != s.bytesBefore)
}

// wasSent reports whether the service may have seen a part of the request. The service has seen nothing in two cases:
//
//   - Without a connection: the name is unknown, the service refuses connections, or the certificate is invalid.
//   - The connection closed before the first byte of the request.
func wasSent(ctx context.Context) bool {
	s, ok := ctx.Value(sendTrackerKey{}).(*sendTracker)
	if !ok {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maySent()
}
