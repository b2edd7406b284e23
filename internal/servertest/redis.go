//go:build unix

package servertest

import (
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

// StartRedis starts a redis-server. It stores nothing on disk unless args, such as "--appendonly", "yes", tell it to.
// The error wraps [exec.ErrNotFound] if there is no redis-server on this machine.
func StartRedis(args ...string) (*Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	dir, err := newDir(nil)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, abort: syscall.SIGKILL, command: func(dir string, port int) *exec.Cmd {
		own := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", ""}
		return exec.Command(path, append(own, args...)...)
	}}
	if err := s.start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Redis starts a redis-server as [StartRedis] does, for the duration of the test. See [Require].
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := StartRedis(args...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}
