//go:build !unix

package servertest

import (
	"os/exec"
	"testing"
)

// Server is one that cannot be started on this system, whose accounts and signals are not those of Unix. Tests that need it
// are skipped.
type Server struct{}

// Addr is that of no server.
func (*Server) Addr() string { return "" }

// Redis skips the test.
func Redis(t testing.TB, _ ...string) *Server {
	t.Helper()
	Require(t, exec.ErrNotFound)
	return nil
}

// RedisCluster skips the test.
func RedisCluster(t testing.TB) []*Server { return []*Server{Redis(t)} }

// RedisPassword is that of no server.
func RedisPassword() string { return "" }
