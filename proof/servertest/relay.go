package servertest

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Relay starts a proxy on loopback for the server at target, for the duration of the test, and returns the address of
// the proxy. For each connection of a client, Relay connects to the server and calls carry in a new goroutine. Relay
// closes both connections when carry returns.
func Relay(t testing.TB, target string, carry func(client, server net.Conn)) (addr string) {
	t.Helper()
	listener := listenTCP(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		relayConns(ctx, &running, listener, target, func(client net.Conn, server *net.TCPConn) {
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

func listenTCP(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// relayConns accepts connections until ctx ends, connects each client to target, and calls carry. When ctx ends,
// relayConns closes the listener.
func relayConns(
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
