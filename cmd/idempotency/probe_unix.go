//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// setGroup puts the process in a group of its own, so that killGroup also ends the children of the shell.
func setGroup(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(process *os.Process) error {
	if err := syscall.Kill(-process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
