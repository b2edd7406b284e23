//go:build !unix

package main

import (
	"os"
	"os/exec"
)

func setGroup(*exec.Cmd) {}

func killGroup(process *os.Process) error { return process.Kill() }
