package servertest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memory has the listeners in memory, by their addresses.
var memory sync.Map

var ports atomic.Int64

// Listen returns a listener on loopback. In a bubble of testing/synctest it returns one in memory, which nothing but Dial
// reaches: the clock of a bubble stands still while somebody reads from a socket.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	if time.Now().Year() > 2000 { // the clock of a bubble begins with that year
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	l := &memoryListener{
		address: memoryAddress(fmt.Sprint("127.0.0.1:", 1<<16+ports.Add(1))), // not a port of the system
		conns:   make(chan net.Conn), closed: make(chan struct{}),
	}
	memory.Store(l.address.String(), l)
	return l
}

// Dial connects to a listener in memory, or over the network. It is a DialContext for an http.Transport.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	found, ok := memory.Load(address)
	if !ok {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	l := found.(*memoryListener)
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: l.address.Network(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type memoryListener struct {
	address memoryAddress
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() {
		memory.Delete(l.address.String())
		close(l.closed)
	})
	return nil
}

func (l *memoryListener) Addr() net.Addr { return l.address }

type memoryAddress string

func (memoryAddress) Network() string  { return "memory" }
func (a memoryAddress) String() string { return string(a) }
