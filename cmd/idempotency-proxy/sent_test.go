package main

import (
	"context"
	"io"
	"net"
	"net/http/httptrace"
	"testing"

	"github.com/stretchr/testify/require"
)

// This test is in package main, so that "go test" does not use cached results of the other tests after a change of the
// program. The other tests only build the program.
func TestWasSent(t *testing.T) {
	t.Parallel()
	newUsedConn := func(t *testing.T) *countingConn {
		conn, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		t.Cleanup(func() { _, _ = conn.Close(), far.Close() })
		c := &countingConn{Conn: conn}
		_, err := c.Write([]byte("an earlier request"))
		require.NoError(t, err)
		return c
	}
	for name, test := range map[string]struct {
		useConns func(t *testing.T, gotConn func(*countingConn))
		wantSent bool
	}{
		"no connection": {func(*testing.T, func(*countingConn)) {}, false},
		"written": {func(t *testing.T, gotConn func(*countingConn)) {
			c := newUsedConn(t)
			gotConn(c)
			_, _ = c.Write([]byte("a part"))
			_ = c.Close()
		}, true},
		"closed before it is written": {func(t *testing.T, gotConn func(*countingConn)) {
			c := newUsedConn(t)
			gotConn(c)
			_ = c.Close()
			_, err := c.Write([]byte("a part"))
			require.Error(t, err)
		}, false},
		"still open, so may be written later": {func(t *testing.T, gotConn func(*countingConn)) {
			gotConn(newUsedConn(t))
		}, true},
		"written to the first of two": {func(t *testing.T, gotConn func(*countingConn)) {
			first, second := newUsedConn(t), newUsedConn(t)
			gotConn(first)
			_, _ = first.Write([]byte("a part"))
			_ = first.Close()
			gotConn(second)
			_ = second.Close()
		}, true},
		"written to none of two": {func(t *testing.T, gotConn func(*countingConn)) {
			for range 2 {
				c := newUsedConn(t)
				gotConn(c)
				_ = c.Close()
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := withSendTracker(context.Background())
			test.useConns(t, func(c *countingConn) {
				httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{Conn: c})
			})
			require.Equal(t, test.wantSent, wasSent(ctx))
		})
	}
	require.True(t, wasSent(context.Background()), "without a tracker, the request may have been sent")
}
