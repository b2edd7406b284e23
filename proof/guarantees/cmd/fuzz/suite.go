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

// suite is the test program of a package with fuzz targets.
type suite struct {
	importPath, packageDir string
	testProgram            string // the path of the program, instrumented for fuzzing
	inputCache             string // the directory in the build cache where go keeps interesting inputs
}

// buildTargets writes the test programs with fuzz targets of all modules in go.work to the directory dir, and returns the
// targets. Zero targets are an error, because the workspace is known to have some.
func buildTargets(ctx context.Context, dir string) (targets []target, err error) {
	suites, err := listSuites(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := captureOutput(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return nil, err
	}
	for i, s := range suites {
		s.testProgram, s.inputCache = filepath.Join(dir, fmt.Sprint(i)), filepath.Join(strings.TrimSpace(cache), "fuzz")
		if _, err := captureOutput(ctx, "go", "test", "-c", "-fuzz=.", "-o", s.testProgram, s.importPath); err != nil {
			return nil, err
		}
		list, err := captureOutput(ctx, s.testProgram, "-test.list=^Fuzz")
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

// listSuites returns the packages whose tests have fuzz targets. Building the tests of all other packages would take a minute.
func listSuites(ctx context.Context) (found []suite, err error) {
	out, err := captureOutput(ctx, "go", "list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "work")
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
			return failed != nil || fuzzFunction.Match(text)
		}) {
			found = append(found, suite{importPath: p.ImportPath, packageDir: p.Dir})
		}
	}
}

var fuzzFunction = regexp.MustCompile(`(?m)^func Fuzz`)

// captureOutput runs a program, and returns its standard output. The error of a failed program includes its whole output.
func captureOutput(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", cmd, err, failure.Bytes(), out)
	}
	return string(out), nil
}
