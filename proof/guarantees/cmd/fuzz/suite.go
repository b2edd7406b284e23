package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// suite is the test program of a package that has fuzz targets.
type suite struct {
	pkg, dir string
	program  string // built for fuzzing
	cache    string // where go keeps the inputs that it has found
}

// find builds the test programs of all modules in go.work that have fuzz targets, in the directory dir, and returns the
// targets. It fails if there are none, since some are known to be there.
func find(ctx context.Context, dir string) (targets []target, err error) {
	suites, err := suites(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return nil, err
	}
	for i, s := range suites {
		s.program, s.cache = filepath.Join(dir, fmt.Sprint(i)), filepath.Join(strings.TrimSpace(cache), "fuzz")
		if _, err := output(ctx, "go", "test", "-c", "-fuzz=.", "-o", s.program, s.pkg); err != nil {
			return nil, err
		}
		list, err := output(ctx, s.program, "-test.list=^Fuzz")
		if err != nil {
			return nil, err
		}
		for name := range strings.FieldsSeq(list) {
			targets = append(targets, target{s, name})
		}
	}
	if len(targets) == 0 {
		return nil, errors.New("there are no fuzz targets")
	}
	return targets, nil
}

// suites returns the packages whose tests have fuzz targets: to build the tests of all others would take a minute.
func suites(ctx context.Context) (found []suite, err error) {
	out, err := output(ctx, "go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "work")
	if err != nil {
		return nil, err
	}
	for packages := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := packages.Decode(&p); err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(slices.Concat(p.TestGoFiles, p.XTestGoFiles), func(file string) bool {
			text, failed := os.ReadFile(filepath.Join(p.Dir, file))
			return failed != nil || hasTarget.Match(text)
		}) {
			found = append(found, suite{pkg: p.ImportPath, dir: p.Dir})
		}
	}
}

var hasTarget = regexp.MustCompile(`(?m)^func Fuzz`)

// output returns what a program writes, unless it fails.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", cmd, err, failure.Bytes(), out)
	}
	return string(out), nil
}
