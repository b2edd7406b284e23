package servers_test

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// networkCut separates a master from all other nodes. Clients that are away reach only the master. The other clients reach every
// node except the master. The zero value cuts nothing.
type networkCut struct{ masterAddr atomic.Pointer[string] }

func (c *networkCut) isolate(master *servertest.Server) {
	addr := master.Addr()
	c.masterAddr.Store(&addr)
}

func (c *networkCut) heal() { c.masterAddr.Store(nil) }

// newDialer returns the Dialer of a client. away says that the client is on the side of the master.
func (c *networkCut) newDialer(away bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		reach := func() error {
			if master := c.masterAddr.Load(); master != nil && away != (addr == *master) {
				return &net.OpError{Op: "dial", Net: network, Err: syscall.EHOSTUNREACH}
			}
			return nil
		}
		if err := reach(); err != nil {
			return nil, err
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, addr)
		return &cutConn{conn, reach}, err
	}
}

// cutConn is a connection whose Write fails while the cut is between the client and the server.
type cutConn struct {
	net.Conn
	checkReach func() error
}

func (s *cutConn) Write(b []byte) (int, error) {
	if err := s.checkReach(); err != nil {
		return 0, err
	}
	return s.Conn.Write(b)
}
