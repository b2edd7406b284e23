//go:build !unix

package servertest

import (
	"os/exec"
	"testing"
)

// Server stands for the servers, which cannot be started on this system because the package needs the accounts and
// signals of Unix. Tests that need a server are skipped.
type Server struct{}

// Addr returns an empty string.
func (*Server) Addr() string { return "" }

// Redis skips the test.
func Redis(t testing.TB, _ ...string) *Server {
	t.Helper()
	Require(t, exec.ErrNotFound)
	return nil
}

// RedisCluster skips the test.
func RedisCluster(t testing.TB) []*Server { return []*Server{Redis(t)} }

// RedisPassword returns an empty string.
func RedisPassword() string { return "" }
