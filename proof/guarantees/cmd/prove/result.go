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

// result is what came of a proof.
type result struct {
	proof
	tally
	took time.Duration
	err  error
}

// progress is how often it is said that a proof still runs.
const progress = 30 * time.Second

// run does the proof, and tells how it goes.
func (r *result) run(ctx context.Context, root string, o options) {
	began := time.Now()
	fmt.Printf("%-12s %s\n", r.name, r.what)
	ticker := time.NewTicker(progress)
	ended := make(chan error)
	go func() { ended <- r.execute(ctx, root, o) }()
	for running := true; running; {
		select {
		case <-ticker.C:
			fmt.Printf("%-12s has run for %v\n", r.name, time.Since(began).Round(time.Second))
		case r.err = <-ended:
			running = false
		}
	}
	ticker.Stop()
	r.took = time.Since(began).Round(time.Second)
	if r.err != nil {
		fmt.Printf("%s%-12s FAILED after %v\n", r.failed.String(), r.name, r.took)
		return
	}
	fmt.Printf("%-12s holds, after %v: %s\n", r.name, r.took, r.tally.String())
}

// execute runs the command of the proof.
func (r *result) execute(ctx context.Context, root string, o options) error {
	command := r.command(o)
	if o.ci {
		command = append(command, r.ci...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "IDEMPOTENCY_CI=1")    // a proof that cannot run does not hold
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what it starts ends with it
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
		r.read(line)
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %s: %w", r.name, strings.Join(command, " "), err)
	}
	if len(r.counts) == 0 { // no test has that name any more, say
		return fmt.Errorf("%s: %s: it counts nothing", r.name, strings.Join(command, " "))
	}
	return nil
}
