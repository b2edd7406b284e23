package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// verdict is the result of a run of tests.
type verdict struct {
	hasRun      bool   // at least one test has started
	hasFailed   bool   // a test has failed, panicked or timed out
	skippedTest string // the first skipped test
	output      string
}

// errSurvived means that the test passes although the library has the bug.
var errSurvived = errors.New("the mutant survived")

// requireKilled runs the test of the mutant, and returns nil if the test fails.
func (m mutant) requireKilled(ctx context.Context, root string) error {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.writeOverlay(root, dir)
	if err != nil {
		return err
	}
	v, err := runTests(ctx, root, m.findTarget(), buildPattern(m.test), "-overlay="+overlay)
	switch {
	case err != nil:
		return err
	case !v.hasFailed:
		return cmp.Or(v.checkRun(), errSurvived)
	}
	return nil
}

// checkBaseline runs the tests of all mutants on the unchanged library, because a test that fails without a bug proves
// nothing about the bug.
func checkBaseline(ctx context.Context, root string, mutants []mutant) error {
	patterns := make(map[testTarget][]string)
	for _, m := range mutants {
		patterns[m.findTarget()] = append(patterns[m.findTarget()], buildPattern(m.test))
	}
	for target, p := range patterns {
		v, err := runTests(ctx, root, target, strings.Join(p, "|"))
		if err == nil && v.hasFailed {
			err = errors.New("without a mutant, the tests fail:\n" + v.output)
		}
		if err := cmp.Or(err, v.checkRun()); err != nil {
			return fmt.Errorf("%s: %w", target.packageDir, err)
		}
	}
	return nil
}

// checkRun returns an error if no test has started, or if a test was skipped.
func (v verdict) checkRun() error {
	switch {
	case !v.hasRun:
		return errors.New("there is no such test")
	case v.skippedTest != "":
		return fmt.Errorf("%s was skipped: .ci/setup installs what it needs", v.skippedTest)
	}
	return nil
}

// buildPattern returns the value of the flag -run for a test, which may have the names of subtests.
func buildPattern(test string) string {
	var parts []string
	for part := range strings.SplitSeq(test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}

// testTimeout bounds the test of a mutant, which may hang, and each package in the run without mutants.
const testTimeout = "2m"

// runTests runs the tests of a package whose names match pattern. An error means that no test was run.
func runTests(ctx context.Context, root string, target testTarget, pattern string, flags ...string) (verdict, error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout=" + testTimeout, "-run=" + pattern}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, target.packageDir)...)
	cmd.Dir, cmd.Env = root, os.Environ()
	if target.redisProgram != "" {
		cmd.Env = append(cmd.Env, "IDEMPOTENCY_REDIS="+target.redisProgram)
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}
	v, built := parseEvents(out)
	_, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited || !built || exited && !v.hasFailed {
		return v, fmt.Errorf("go test: %w\n%s%s", err, &stderr, v.output)
	}
	return v, nil
}

// parseEvents parses the output of "go test -json". built reports whether the test compiled.
func parseEvents(out []byte) (v verdict, built bool) {
	var text strings.Builder
	built = true
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, len(out)+1)
	for lines.Scan() {
		var event struct{ Action, Test, Output, FailedBuild string }
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		text.WriteString(event.Output)
		built = built && event.FailedBuild == "" && event.Action != "build-fail"
		v.hasRun = v.hasRun || event.Action == "run"
		v.hasFailed = v.hasFailed || event.Action == "fail"
		if event.Action == "skip" && event.Test != "" {
			v.skippedTest = cmp.Or(v.skippedTest, event.Test)
		}
	}
	v.hasFailed = v.hasFailed && v.hasRun
	v.output = text.String()
	return v, built
}
