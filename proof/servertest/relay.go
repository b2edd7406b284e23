package servertest

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Relay returns the address of a proxy on loopback for the server at target, for the duration of the test. Each connection of
// a client is carried to one of the server by carry, in a goroutine of its own, until carry returns.
func Relay(t testing.TB, target string, carry func(client, server net.Conn)) (addr string) {
	t.Helper()
	listener := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		relay(ctx, &running, listener, target, func(client net.Conn, server *net.TCPConn) {
			defer server.Close()
			defer context.AfterFunc(ctx, func() {
				_ = client.Close()
				_ = server.Close()
			})()
			carry(client, server)
		})
	})
	return listener.Addr().String()
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// relay accepts connections until ctx ends. The listener is closed then.
func relay(
	ctx context.Context, running *sync.WaitGroup, listener net.Listener, target string,
	carry func(client net.Conn, server *net.TCPConn),
) {
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		running.Go(func() {
			defer client.Close()
			var dialer net.Dialer
			server, err := dialer.DialContext(ctx, "tcp", target)
			if err != nil {
				return
			}
			carry(client, server.(*net.TCPConn))
		})
	}
}
