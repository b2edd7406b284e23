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

// memoryListeners has the *memoryListener of each address.
var memoryListeners sync.Map

var lastPort atomic.Int64

// Listen returns a listener on loopback. In a bubble of testing/synctest, Listen returns a listener in memory, which
// only [Dial] reaches, because the clock of a bubble does not advance while a goroutine reads from a socket.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	if time.Now().Year() > 2000 { // the clock of a bubble starts in 2000
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	l := &memoryListener{
		address: memoryAddress(fmt.Sprint("127.0.0.1:", 1<<16+lastPort.Add(1))), // not a port of the system
		conns:   make(chan net.Conn), closed: make(chan struct{}),
	}
	memoryListeners.Store(l.address.String(), l)
	return l
}

// Dial connects to a listener of [Listen] in memory, and to any other address over the network. Dial is a value for
// DialContext of an http.Transport.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	found, ok := memoryListeners.Load(address)
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
	address   memoryAddress
	conns     chan net.Conn
	closeOnce sync.Once
	closed    chan struct{}
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
	l.closeOnce.Do(func() {
		memoryListeners.Delete(l.address.String())
		close(l.closed)
	})
	return nil
}

func (l *memoryListener) Addr() net.Addr { return l.address }

type memoryAddress string

func (memoryAddress) Network() string  { return "memory" }
func (a memoryAddress) String() string { return string(a) }
