package servers_test

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// cut is between a master and all other nodes. Some clients are away with the master and reach nothing else. The others
// reach everything else. The zero value cuts nothing.
type cut struct{ master atomic.Pointer[string] }

func (c *cut) off(master *servertest.Server) {
	addr := master.Addr()
	c.master.Store(&addr)
}

func (c *cut) heal() { c.master.Store(nil) }

// dialer returns how a client connects.
func (c *cut) dialer(away bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		reach := func() error {
			if master := c.master.Load(); master != nil && away != (addr == *master) {
				return &net.OpError{Op: "dial", Net: network, Err: syscall.EHOSTUNREACH}
			}
			return nil
		}
		if err := reach(); err != nil {
			return nil, err
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, network, addr)
		return &severable{conn, reach}, err
	}
}

// severable is a connection on which nothing is sent across a cut.
type severable struct {
	net.Conn
	reach func() error
}

func (s *severable) Write(b []byte) (int, error) {
	if err := s.reach(); err != nil {
		return 0, err
	}
	return s.Conn.Write(b)
}
