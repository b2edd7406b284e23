//go:build unix

package servertest

import (
	"os/exec"
	"path/filepath"
	"syscall"
)

// StartCommand starts a server as the others are started.
func StartCommand(command func(dir string, port int) *exec.Cmd) (*Server, error) {
	dir, err := newDir(nil)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, abort: syscall.SIGKILL, command: command}
	return s, s.start()
}

// Ask sends one command to a Redis server.
var Ask = ask

// Dir returns the directory of the server.
func (s *Server) Dir() string { return s.dir }

// Processes returns the ids of all processes of a running server.
func (s *Server) Processes() []int {
	pid := s.process.cmd.Process.Pid
	return append(children(pid), pid)
}

// Psql returns a command that runs the client that came with the server.
func Psql(args ...string) *exec.Cmd {
	inst, _ := ownInstallation()
	return exec.Command(filepath.Join(inst.bin, "psql"), args...)
}
