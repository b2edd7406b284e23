package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// changesFit reports what is exported otherwise than in the release before, unless the number of a version says so: a patch
// version changes nothing, and a minor version from v1.0.0 on only adds.
func (w *workspace) changesFit(ctx context.Context, version string) error {
	before, err := w.releaseBefore(ctx, version)
	if before == "" || err != nil {
		return err
	}
	patch := semver.MajorMinor(before) == semver.MajorMinor(version)
	if !patch && semver.Major(version) == "v0" || semver.Major(before) != semver.Major(version) {
		return nil
	}
	was, err := w.exportedIn(ctx, before)
	if err != nil {
		return err
	}
	is, err := w.exportedNow()
	if err != nil {
		return err
	}
	var faults []error
	for _, line := range missing(was, is) {
		faults = append(faults, fmt.Errorf("%s cannot be without what %s exports: %s", version, before, line))
	}
	for _, line := range missing(is, was) {
		if patch || asksForMore(line, was) {
			faults = append(faults, fmt.Errorf("%s cannot export what %s does not: %s", version, before, line))
		}
	}
	return errors.Join(faults...)
}

// forms are the files that have records as releases have written them.
var forms = []string{
	":(glob)testdata/*.txt", ":(glob)internal/golden/testdata/**/*.txt", ":(glob)*store/testdata/rows*", ":(glob)*store/testdata/rows/**",
	":(glob)*store/testdata/items*",
}

// formsAreKept reports files of forms that are not as in the release before: its records may be in a store.
func (w *workspace) formsAreKept(ctx context.Context, version string) error {
	before, err := w.releaseBefore(ctx, version)
	if before == "" || err != nil {
		return err
	}
	diff := append([]string{"diff", "--name-only", "--no-renames", "--diff-filter=DMT", before, "HEAD", "--"}, forms...)
	changed, err := output(ctx, command{dir: w.dir}, "git", diff...)
	if err == nil && changed != "" {
		err = fmt.Errorf("golden files of %s were changed or removed: %s", before, strings.Join(strings.Fields(changed), " "))
	}
	return err
}

// releaseBefore is the newest release that is older than a version, or empty.
func (w *workspace) releaseBefore(ctx context.Context, version string) (string, error) {
	tags, err := output(ctx, command{dir: w.dir}, "git", "tag", "--list", "v*")
	if err != nil {
		return "", err
	}
	older := []string{""}
	for tag := range strings.FieldsSeq(tags) {
		if semver.IsValid(tag) && semver.Prerelease(tag) == "" && semver.Compare(tag, version) < 0 {
			older = append(older, tag)
		}
	}
	return slices.MaxFunc(older, semver.Compare), nil
}

// exportedIn is all that the modules of a release export.
func (w *workspace) exportedIn(ctx context.Context, release string) ([]string, error) {
	here := command{dir: w.dir}
	files, err := output(ctx, here, "git", "ls-tree", "--name-only", release, listFolder+"/")
	if err != nil {
		return nil, err
	}
	var lines []string
	for file := range strings.FieldsSeq(files) {
		list, err := output(ctx, here, "git", "show", release+":"+file)
		if err != nil {
			return nil, err
		}
		lines = append(lines, withPackages(list)...)
	}
	return lines, nil
}

// exportedNow is all that the modules export, as the lists have it.
func (w *workspace) exportedNow() ([]string, error) {
	var lines []string
	for _, m := range w.published {
		if m.command() {
			continue
		}
		list, err := os.ReadFile(filepath.Join(w.dir, m.listFile()))
		if err != nil {
			return nil, err
		}
		lines = append(lines, withPackages(string(list))...)
	}
	return lines, nil
}

// withPackages are the lines of a list, each with the package that it is of.
func withPackages(list string) []string {
	var lines []string
	var of string
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if path, ok := strings.CutPrefix(line, "package "); ok {
			of = path
		}
		lines = append(lines, of+": "+line)
	}
	return lines
}

// missing are those lines that others lack.
func missing(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(others, line) })
}

// asksForMore tells whether a new line is a method of an interface that was there: whoever implements it lacks the method.
func asksForMore(line string, was []string) bool {
	name, _, ok := strings.Cut(line, " interface, ")
	return ok && slices.Contains(was, name+" interface")
}
