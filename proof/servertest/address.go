package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// PickAddress returns a free address of this host, for a server that a test ends and starts again. The port lies below all
// ports of the servers of this package, with their second ports, and below the ports that the kernel gives to outgoing
// connections, so that neither can take the port while the server is down. Browsers and Node.js refuse no port from 7000 to
// 9999.
func PickAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 7_000+rand.IntN(3_000))
		if listener, err := net.Listen("tcp", address); err == nil {
			_ = listener.Close()
			return address
		}
	}
	t.Fatal("servertest: no port is free")
	return ""
}
