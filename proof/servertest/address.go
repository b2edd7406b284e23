package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// PickAddress returns a free address of this host, for a server that a test ends and starts again. The port lies between the
// ports of the servers of this package and the ports that the kernel gives to outgoing connections, so that neither can take
// the port while the server is down.
func PickAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 22_000+rand.IntN(10_000))
		if listener, err := net.Listen("tcp", address); err == nil {
			_ = listener.Close()
			return address
		}
	}
	t.Fatal("servertest: no port is free")
	return ""
}
