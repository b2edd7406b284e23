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

func (t target) String() string { return t.importPath + " " + t.name }

// budget is the effort for each target.
type budget struct {
	fuzzTime    time.Duration
	workerCount int
}

// graceTime is added to the time of a target before fuzzTarget kills its process. A process that needs longer hangs, because a
// single input takes too long.
const graceTime = 2 * time.Minute

// fuzzTarget fuzzes the target, and returns the number of executions.
func (t target) fuzzTarget(ctx context.Context, b budget) (executions int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.fuzzTime+graceTime)
	defer cancel()
	// By default go minimizes each new input for up to a minute, which would leave little time for anything else.
	cmd := exec.CommandContext(ctx, t.testProgram, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+b.fuzzTime.String(),
		"-test.fuzzminimizetime=5x", "-test.parallel="+strconv.Itoa(b.workerCount),
		"-test.fuzzcachedir="+filepath.Join(t.inputCache, t.importPath))
	cmd.Dir = t.packageDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the worker processes survive if only the test program is killed
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = cmd.Stdout // the test program prints its progress there
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	executions, rest := watchProgress(out)
	if err := judgeRun(cmd.Wait(), rest); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			err = fmt.Errorf("an input takes too long: %s after its time was over", graceTime)
		}
		return executions, fmt.Errorf("%s: %w\n%s", t, err, rest)
	}
	if executions == 0 {
		return 0, fmt.Errorf("%s: nothing was executed\n%s", t, rest)
	}
	return executions, nil
}

var progressLine = regexp.MustCompile(`^fuzz: elapsed: .*(?:execs|coverage): (\d+)`)

// watchProgress prints the progress lines of out, and returns the number of executions and the rest of out. The executions
// include the known inputs, because a slow machine may spend all its time on these.
func watchProgress(out io.Reader) (executions int64, rest string) {
	var other strings.Builder
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if m := progressLine.FindStringSubmatch(line); m != nil {
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

// timeIsOver matches the whole output of a run in which the end of -test.fuzztime races with itself (go.dev/issue/75804). Such a
// run has found no bug, because otherwise the output would include the path of the failing input.
var timeIsOver = regexp.MustCompile(`^--- FAIL: \w+ \([0-9.]+s\)\n +context deadline exceeded\nFAIL\n$`)

// judgeRun returns err, the error of a run, or nil if the output said shows only the race at the end of the time.
func judgeRun(err error, said string) error {
	if _, failed := errors.AsType[*exec.ExitError](err); failed && timeIsOver.MatchString(said) {
		return nil
	}
	return err
}
