package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// command is where a program runs, and with which variables beside those of this process.
type command struct {
	dir string
	env []string
}

// output runs a program and returns what it prints. Its complaints are in the error.
func output(ctx context.Context, c command, name string, args ...string) (string, error) {
	run := exec.CommandContext(ctx, name, args...)
	run.Dir = c.dir
	run.Env = append(os.Environ(), c.env...)
	var complaints bytes.Buffer
	run.Stderr = &complaints
	text, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaints.String())
	}
	return strings.TrimSpace(string(text)), nil
}
