//go:build unix

// Package servertest starts private Redis, PostgreSQL, MariaDB and Prometheus servers for tests and examples. A
// [Proxy] between a server and its clients can break connections at chosen messages.
//
// The servers listen only on loopback. Each server except Prometheus asks for a password, which only this process
// knows. If this process runs as root, the servers run as the users "redis", "postgres", "mysql", "prometheus" and
// "etcd". The files of a server are in a temporary directory, which only the user of the server can open.
//
// The servers end with the process that started them, even if the process is killed, and their directories are then
// removed. Only Linux ends the servers of a killed process; on other systems the servers must be closed.
//
// The package is for the tests and examples of this repository, and may change at any time.
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

// Server is a server process with its own port and directory. The methods, except Addr, must not be called
// concurrently.
type Server struct {
	dir             string
	port            int
	newCommand      func(dir string, port int) *exec.Cmd
	extraEnv        []string       // environment variables in addition to those of this process
	abortSignal     syscall.Signal // ends the server at once, without saving data
	process         *process
	resumeProcesses func() // nil: the server is not paused
}

// Addr returns the address of the server, which never changes.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Crash ends the server at once, so that the server cannot save data: PostgreSQL with an immediate shutdown, other
// servers with SIGKILL. Crash returns after the end of all processes of the server.
func (s *Server) Crash() { s.endWith(s.abortSignal) }

// Restart starts the server again with the same address and files. A running server crashes first.
func (s *Server) Restart() (err error) {
	s.Crash()
	cmd := s.newCommand(s.dir, s.port)
	cmd.Env = append(cmd.Environ(), s.extraEnv...)
	s.process, err = startProcess(cmd, s.abortSignal)
	return err
}

// Pause stops all processes of the server with SIGSTOP. The connections stay open without answers.
func (s *Server) Pause() (err error) {
	s.Resume()
	process := s.process.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pausing %s: %w", s.Addr(), err)
	}
	// The list of children is complete, because the stopped parent starts no more children.
	resume := []string{"kill", "-CONT", strconv.Itoa(process.Pid)}
	for _, child := range childrenOf(process.Pid) {
		_ = syscall.Kill(child, syscall.SIGSTOP) // fails if the child has just ended
		resume = append(resume, strconv.Itoa(child))
	}
	s.resumeProcesses, err = runAfterwards(resume...)
	return err
}

// Resume ends a pause.
func (s *Server) Resume() {
	if s.resumeProcesses != nil {
		s.resumeProcesses()
		s.resumeProcesses = nil
	}
}

// Processes returns the IDs of all processes of a running server.
func (s *Server) Processes() []int {
	pid := s.process.cmd.Process.Pid
	return append(childrenOf(pid), pid)
}

// ProcessorTime returns the processor time of all processes of a running server. ProcessorTime is supported on Linux
// only.
func (s *Server) ProcessorTime() (time.Duration, error) { return processorTime(s.Processes()) }

// Close ends the server, and removes the directory.
func (s *Server) Close() {
	s.Crash()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) endWith(sig os.Signal) {
	s.Resume()
	if s.process != nil {
		s.process.endWith(sig)
	}
}

// newServer returns a server for program, without starting the server. The program runs as the first of accounts that
// exists on this machine. If this process does not run as root, owner is nil, and the program runs as the account of
// this process. The error wraps [exec.ErrNotFound] if this machine lacks the program.
func newServer(
	program string, accounts []string, command func(path, dir string, port int) *exec.Cmd,
) (s *Server, owner *syscall.Credential, err error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, nil, err
	}
	owner, err = findAccount(accounts...)
	if err != nil {
		return nil, nil, err
	}
	dir, err := newDir(owner)
	return &Server{dir: dir, abortSignal: syscall.SIGKILL, newCommand: func(dir string, port int) *exec.Cmd {
		cmd := command(path, dir, port)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: owner}
		return cmd
	}}, owner, err
}

var environment atomic.Pointer[[]string]

// SetEnv adds environment variables, such as "TZ=UTC", to the environment of each server that is started later for
// the first time. SetEnv replaces the variables of an earlier call.
func SetEnv(vars ...string) { environment.Store(&vars) }

// startOnRandomPort starts the server on a random port, and tries up to five ports.
func (s *Server) startOnRandomPort() (err error) {
	if vars := environment.Load(); vars != nil {
		s.extraEnv = slices.Clone(*vars)
	}
	for range 5 {
		s.port = randomPort()
		if err = s.Restart(); err == nil {
			return nil
		}
	}
	return err
}

// fillAndStart calls fill to create the files, and starts the server. After an error, fillAndStart removes the
// server.
func (s *Server) fillAndStart(fill func() error) error {
	err := fill()
	if err == nil {
		err = s.startOnRandomPort()
	}
	if err != nil {
		s.Close()
	}
	return err
}

// randomPort returns a port below the ports that the kernel gives to outgoing connections, so that no outgoing
// connection can take the port while the server is down. The bus port of a Redis Cluster, 10000 above, is also below
// these ports.
func randomPort() int { return 10000 + rand.IntN(12000) }

// secondPort returns a second port for the server on a random port.
func secondPort(port int) int { return port + 10000 }
