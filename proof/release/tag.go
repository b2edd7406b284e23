package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// tag checks that a version can be released, and makes its tags. Pushing them publishes it, and is left to a person.
func (w *workspace) tag(ctx context.Context, version string) error {
	if err := w.ready(ctx, version); err != nil {
		return err
	}
	s, err := w.newStage(ctx, version)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.tryModules(ctx); err != nil {
		return err
	}
	fmt.Println("Nothing is pushed. What is published stays published. To publish it:")
	// The forge starts no workflow for tags of which more than three are pushed at once: those of the commands come by themselves.
	for _, modules := range [][]*module{s.libraries, s.commands} {
		push := "git push --atomic origin"
		for _, m := range modules {
			if err := w.takeTag(ctx, s, m.tag(version)); err != nil {
				return err
			}
			push += " " + m.tag(version)
		}
		fmt.Println("\t" + push)
	}
	return nil
}

// takeTag makes a tag of the stage in the repository, which gets the commit of the commands from there.
func (w *workspace) takeTag(ctx context.Context, s *stage, tag string) error {
	if _, err := w.git(ctx, nil, "fetch", "--quiet", "--no-tags", s.workspace.dir, "refs/tags/"+tag); err != nil {
		return err
	}
	_, err := w.git(ctx, nil, "tag", "--annotate", "--message", tag, tag, "FETCH_HEAD")
	return err
}

// ready reports everything that is wrong with a repository that is to be tagged.
func (w *workspace) ready(ctx context.Context, version string) error {
	if err := validVersion(version); err != nil {
		return err
	}
	before, err := w.releaseBefore(ctx, version)
	if err != nil {
		return err
	}
	return errors.Join(w.isClean(ctx), w.requiresOnly(version), w.isAnnounced(version), w.keepsForms(ctx, before),
		w.keepsNames(ctx, before, version))
}

func (w *workspace) isClean(ctx context.Context) error {
	changed, err := w.git(ctx, nil, "status", "--porcelain")
	if err == nil && changed != "" {
		err = errors.New("the working tree has changes that are not committed:\n" + changed)
	}
	return err
}

// isAnnounced reports a changelog that lacks the version, and a README that knows of no version.
func (w *workspace) isAnnounced(version string) error {
	changelog, err := os.ReadFile(filepath.Join(w.dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(w.dir, "README.md"))
	if err != nil {
		return err
	}
	if heading := "## [" + strings.TrimPrefix(version, "v") + "]"; !strings.Contains("\n"+string(changelog), "\n"+heading) {
		return fmt.Errorf("CHANGELOG.md has no %q", heading)
	}
	if unreleased := "No version has been released yet."; strings.Contains(string(readme), unreleased) {
		return fmt.Errorf("README.md says: %s", unreleased)
	}
	return nil
}

// releaseBefore returns the newest release that is older than a version, or an empty string.
func (w *workspace) releaseBefore(ctx context.Context, version string) (string, error) {
	tags, err := w.git(ctx, nil, "tag", "--list", "v*")
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

// keepsForms reports golden files that are not as in the release before: its records may be in a store.
func (w *workspace) keepsForms(ctx context.Context, before string) error {
	if before == "" {
		return nil
	}
	changed, err := w.git(ctx, nil, "diff", "--name-only", "--no-renames", "--diff-filter=DMT", before, "HEAD", "--",
		":(glob)testdata/*.txt", ":(glob)proof/golden/testdata/**/*.txt",
		":(glob)stores/*/testdata/rows*", ":(glob)stores/*/testdata/rows/**", ":(glob)stores/*/testdata/items*")
	if err == nil && changed != "" {
		err = fmt.Errorf("golden files of %s were changed or removed: %s", before, strings.Join(strings.Fields(changed), " "))
	}
	return err
}

var removedLine = regexp.MustCompile(`(?m)^-[^-]`)

// keepsNames compares the lists of exported names with those of the release before. A patch version changes nothing, and a
// minor version from v1.0.0 on only adds lines.
func (w *workspace) keepsNames(ctx context.Context, before, version string) error {
	isPatch := semver.MajorMinor(before) == semver.MajorMinor(version)
	if before == "" || !isPatch && (semver.Major(before) == "v0" || semver.Major(before) != semver.Major(version)) {
		return nil
	}
	diff, err := w.git(ctx, nil, "diff", "--unified=0", before, "HEAD", "--", listFolder)
	if err == nil && (isPatch && diff != "" || removedLine.MatchString(diff)) {
		err = fmt.Errorf("%s cannot change what %s exports:\n%s", version, before, diff)
	}
	return err
}
