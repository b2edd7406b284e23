//go:build unix

// Package servertest starts private Redis, PostgreSQL, MariaDB and Prometheus servers for tests and examples, and puts a
// [Proxy] between them and their clients that breaks connections at chosen messages.
//
// The servers listen on loopback only and ask for a password that only this process knows; Prometheus asks for none. If
// it is root's, they run as the users "redis", "postgres", "mysql", "prometheus" and "etcd". Nobody else can open the
// temporary directories in which they keep their files.
//
// A server that nobody closes ends with the process that started it, and the directories go then at the latest, even if
// that process is killed. (Only Linux ends the servers of a killed process; elsewhere they have to be closed.)
//
// It is for the tests and examples of this repository, and may change at any time.
package servertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Server is the process of a server with a port and a directory of its own. Its methods must not be called at the
// same time, apart from Addr.
type Server struct {
	dir     string
	port    int
	command func(dir string, port int) *exec.Cmd
	env     []string       // what its environment has besides
	abort   syscall.Signal // ends the server at once; what it does not save is not asked for
	process *process
	resume  func() // nil unless the server is paused
}

// Addr returns the host and port of the server. They do not change.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Crash ends the server without any chance to save something: PostgreSQL by an immediate shutdown, others by SIGKILL.
// When it returns, all processes of the server are gone.
func (s *Server) Crash() { s.end(s.abort) }

// Restart starts the server again with the same address and files; if it runs, it crashes before.
func (s *Server) Restart() (err error) {
	s.Crash()
	cmd := s.command(s.dir, s.port)
	cmd.Env = append(cmd.Environ(), s.env...)
	s.process, err = launch(cmd, s.abort)
	return err
}

// Pause stops all processes of the server as they are: its connections stay open, but nobody answers.
func (s *Server) Pause() (err error) {
	s.Resume()
	process := s.process.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pausing %s: %w", s.Addr(), err)
	}
	// The list is complete: a process that was told to stop starts no further ones.
	resume := []string{"kill", "-CONT", strconv.Itoa(process.Pid)}
	for _, child := range children(process.Pid) {
		_ = syscall.Kill(child, syscall.SIGSTOP) // fails if it has just ended
		resume = append(resume, strconv.Itoa(child))
	}
	s.resume, err = afterwards(resume...)
	return err
}

// Resume ends a pause.
func (s *Server) Resume() {
	if s.resume != nil {
		s.resume()
		s.resume = nil
	}
}

// Processes returns the ids of all processes of a running server.
func (s *Server) Processes() []int {
	pid := s.process.cmd.Process.Pid
	return append(children(pid), pid)
}

// ProcessorTime returns the processor time that the processes of a running server have taken so far. Only Linux knows it.
func (s *Server) ProcessorTime() (time.Duration, error) { return processorTime(s.Processes()) }

// Close ends the server and removes its directory.
func (s *Server) Close() {
	s.Crash()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) end(sig os.Signal) {
	s.Resume()
	if s.process != nil {
		s.process.end(sig)
	}
}

// newServer returns a server that is not started: a program, which a command runs as the first of the accounts that this
// machine has. The owner of its directory is nil if this process is not root's. The error wraps [exec.ErrNotFound] if this
// machine does not have the program.
func newServer(
	program string, accounts []string, command func(path, dir string, port int) *exec.Cmd,
) (s *Server, owner *syscall.Credential, err error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, nil, err
	}
	owner, err = account(accounts...)
	if err != nil {
		return nil, nil, err
	}
	dir, err := newDir(owner)
	return &Server{dir: dir, abort: syscall.SIGKILL, command: func(dir string, port int) *exec.Cmd {
		cmd := command(path, dir, port)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: owner}
		return cmd
	}}, owner, err
}

var environment atomic.Pointer[[]string]

// SetEnv gives each server that is made from now on these environment variables, such as "TZ=UTC",
// besides those of this process. It replaces what was set before.
func SetEnv(vars ...string) { environment.Store(&vars) }

// start starts the server on a port that nobody else uses.
func (s *Server) start() (err error) {
	if vars := environment.Load(); vars != nil {
		s.env = slices.Clone(*vars)
	}
	for range 5 {
		s.port = randomPort()
		if err = s.Restart(); err == nil {
			return nil
		}
	}
	return err
}

// startWith starts the server when fill has made its files. If either fails, nothing is left of it.
func (s *Server) startWith(fill func() error) error {
	err := fill()
	if err == nil {
		err = s.start()
	}
	if err != nil {
		s.Close()
	}
	return err
}

// randomPort returns a port below those that the kernel gives to outgoing connections, for none of them to take it
// while the server is down. So is the bus port of a Redis Cluster, which is 10000 above.
func randomPort() int { return 10000 + rand.IntN(12000) }

// secondPort returns another port for the server that listens on a random one.
func secondPort(port int) int { return port + 10000 }
