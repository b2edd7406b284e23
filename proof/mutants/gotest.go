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

// verdict is what became of a run of tests.
type verdict struct {
	ran     bool   // at least one test
	failed  bool   // or panicked, or hung
	skipped string // the first test that was skipped
	output  string
}

// errSurvived says that the test passes although the library has the bug.
var errSurvived = errors.New("the mutant survived")

// kill returns nil if the test of the mutant fails.
func (m mutant) kill(ctx context.Context, root string) error {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return err
	}
	v, err := runTests(ctx, root, m.where(), pattern(m.test), "-overlay="+overlay)
	switch {
	case err != nil:
		return err
	case !v.failed:
		return cmp.Or(v.check(), errSurvived)
	}
	return nil
}

// baseline runs the tests of all mutants on the library as it is. Were one of them to fail, it would prove nothing.
func baseline(ctx context.Context, root string, mutants []mutant) error {
	patterns := make(map[where][]string)
	for _, m := range mutants {
		patterns[m.where()] = append(patterns[m.where()], pattern(m.test))
	}
	for w, p := range patterns {
		v, err := runTests(ctx, root, w, strings.Join(p, "|"))
		if err == nil && v.failed {
			err = errors.New("without a mutant, the tests fail:\n" + v.output)
		}
		if err := cmp.Or(err, v.check()); err != nil {
			return fmt.Errorf("%s: %w", w.dir, err)
		}
	}
	return nil
}

// check returns an error if the tests have shown nothing.
func (v verdict) check() error {
	switch {
	case !v.ran:
		return errors.New("there is no such test")
	case v.skipped != "":
		return fmt.Errorf("%s was skipped: .ci/setup installs what it needs", v.skipped)
	}
	return nil
}

// pattern returns what -run takes for a test and its subtests.
func pattern(test string) string {
	var parts []string
	for part := range strings.SplitSeq(test, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}

// mostTime bounds the tests of a mutant, which may hang, and all tests together without one.
const mostTime = "2m"

// runTests runs tests of a package. The error says that nothing was run.
func runTests(ctx context.Context, root string, w where, pattern string, flags ...string) (verdict, error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout=" + mostTime, "-run=" + pattern}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, w.dir)...)
	cmd.Dir, cmd.Env = root, os.Environ()
	if w.redis != "" {
		cmd.Env = append(cmd.Env, "IDEMPOTENCY_REDIS="+w.redis)
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}
	v, built := judge(out)
	_, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited || !built || exited && !v.failed {
		return v, fmt.Errorf("go test: %w\n%s%s", err, &stderr, v.output)
	}
	return v, nil
}

// judge reads what "go test -json" has written, and reports whether the test was built.
func judge(out []byte) (v verdict, built bool) {
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
		v.ran = v.ran || event.Action == "run"
		v.failed = v.failed || event.Action == "fail"
		if event.Action == "skip" && event.Test != "" {
			v.skipped = cmp.Or(v.skipped, event.Test)
		}
	}
	v.failed = v.failed && v.ran
	v.output = text.String()
	return v, built
}
