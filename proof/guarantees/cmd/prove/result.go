package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// result is the outcome of a proof.
type result struct {
	proof
	tally
	runTime time.Duration
	err     error
}

// progressInterval is the time between two lines that report that a proof still runs.
const progressInterval = 30 * time.Second

// runProof runs the proof, and prints its progress and its outcome.
func (r *result) runProof(ctx context.Context, root string, o options) {
	began := time.Now()
	fmt.Printf("%-12s %s\n", r.name, r.summary)
	ticker := time.NewTicker(progressInterval)
	ended := make(chan error)
	go func() { ended <- r.runCommand(ctx, root, o) }()
	for running := true; running; {
		select {
		case <-ticker.C:
			fmt.Printf("%-12s has run for %v\n", r.name, time.Since(began).Round(time.Second))
		case r.err = <-ended:
			running = false
		}
	}
	ticker.Stop()
	r.runTime = time.Since(began).Round(time.Second)
	if r.err != nil {
		fmt.Printf("%s%-12s FAILED after %v\n", r.failureOutput.String(), r.name, r.runTime)
		return
	}
	fmt.Printf("%-12s holds, after %v: %s\n", r.name, r.runTime, r.tally.String())
}

// runCommand runs the command of the proof, and reads its output into the tally.
func (r *result) runCommand(ctx context.Context, root string, o options) error {
	command := r.newCommand(o)
	if o.isCI {
		command = append(command, r.ciArgs...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "IDEMPOTENCY_CI=1")    // makes a test fail, instead of being skipped, if its server is missing
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Cancel reaches the processes that the command starts
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		r.readLine(line)
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %s: %w", r.name, strings.Join(command, " "), err)
	}
	if len(r.counts) == 0 { // for example, because the test was renamed
		return fmt.Errorf("%s: %s: it counts nothing", r.name, strings.Join(command, " "))
	}
	return nil
}
