package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is a fuzz target in the test program of a package.
type target struct {
	suite
	name string
}

func (t target) String() string { return t.pkg + " " + t.name }

// budget is how much is done for each target.
type budget struct {
	time    time.Duration
	workers int
}

// grace is how much longer than its time a target may take. One that takes longer hangs: an input takes too long.
const grace = 2 * time.Minute

// run fuzzes the target, and returns how often it was executed.
func (t target) run(ctx context.Context, b budget) (executions int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.time+grace)
	defer cancel()
	// By default each input that is new is minimised for up to a minute, and little else is done.
	cmd := exec.CommandContext(ctx, t.program, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+b.time.String(),
		"-test.fuzzminimizetime=5x", "-test.parallel="+strconv.Itoa(b.workers), "-test.fuzzcachedir="+filepath.Join(t.cache, t.pkg))
	cmd.Dir = t.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers outlive it if it is killed
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = cmd.Stdout // where the progress is shown
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	executions, rest := watch(out)
	if err := verdict(cmd.Wait(), rest); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			err = fmt.Errorf("an input takes too long: %s after its time was over", grace)
		}
		return executions, fmt.Errorf("%s: %w\n%s", t, err, rest)
	}
	if executions == 0 {
		return 0, fmt.Errorf("%s: nothing was executed\n%s", t, rest)
	}
	return executions, nil
}

var progress = regexp.MustCompile(`^fuzz: elapsed: .*(?:execs|coverage): (\d+)`)

// watch shows what is said of the progress, and returns how much was executed, and what else is said. At first all inputs are
// executed that are known already, which may take all the time of a slow machine.
func watch(out io.Reader) (executions int64, rest string) {
	var other strings.Builder
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if m := progress.FindStringSubmatch(line); m != nil {
			executions, _ = strconv.ParseInt(m[1], 10, 64)
			fmt.Print("      ", line)
		} else {
			other.WriteString(line)
		}
		if err != nil {
			return executions, other.String()
		}
	}
}

// timeIsOver is all that is said if the end of -test.fuzztime races with itself (go.dev/issue/75804). Nothing was found
// then, or it would say where that has been saved.
var timeIsOver = regexp.MustCompile(`^--- FAIL: \w+ \([0-9.]+s\)\n +context deadline exceeded\nFAIL\n$`)

// verdict returns the error of a run, unless the time being over is all that has failed.
func verdict(err error, said string) error {
	if _, failed := errors.AsType[*exec.ExitError](err); failed && timeIsOver.MatchString(said) {
		return nil
	}
	return err
}
