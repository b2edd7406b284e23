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

// notesFile has the text of the next release, which the workflow publishes with the programs.
const notesFile = "proof/release/notes.md"

// tagRelease checks that a version can be released, and makes the tags. A person publishes the version by pushing the tags.
func (w *workspace) tagRelease(ctx context.Context, version string) error {
	if err := w.checkReady(ctx, version); err != nil {
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
	// The forge starts no workflow for a push of more than three tags, so the tags of the commands have a separate push.
	for _, modules := range [][]*module{s.libraries, s.commands} {
		push := "git push --atomic origin"
		for _, m := range modules {
			if err := w.copyTag(ctx, s, m.tagName(version)); err != nil {
				return err
			}
			push += " " + m.tagName(version)
		}
		fmt.Println("\t" + push)
	}
	return nil
}

// copyTag copies a tag of the stage into the repository, with the commit of the commands.
func (w *workspace) copyTag(ctx context.Context, s *stage, tag string) error {
	if _, err := w.runGit(ctx, nil, "fetch", "--quiet", "--no-tags", s.workspace.rootDir, "refs/tags/"+tag); err != nil {
		return err
	}
	_, err := w.runGit(ctx, nil, "tag", "--annotate", "--message", tag, tag, "FETCH_HEAD")
	return err
}

// checkReady returns an error for each reason against tagging the repository.
func (w *workspace) checkReady(ctx context.Context, version string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	before, err := w.findReleaseBefore(ctx, version)
	if err != nil {
		return err
	}
	return errors.Join(w.checkClean(ctx), w.checkRequiredVersion(version), w.checkAnnounced(version), w.checkForms(ctx, before),
		w.checkNames(ctx, before, version))
}

func (w *workspace) checkClean(ctx context.Context) error {
	changed, err := w.runGit(ctx, nil, "status", "--porcelain")
	if err == nil && changed != "" {
		err = errors.New("the working tree has changes that are not committed:\n" + changed)
	}
	return err
}

// checkAnnounced returns an error if the changelog or the release notes lack the version, or if the README denies any release.
func (w *workspace) checkAnnounced(version string) error {
	var missing []error
	for file, heading := range map[string]string{
		"CHANGELOG.md": "## [" + strings.TrimPrefix(version, "v") + "]", notesFile: "# " + version + "\n",
	} {
		text, err := os.ReadFile(filepath.Join(w.rootDir, file))
		if err == nil && !strings.Contains("\n"+string(text), "\n"+heading) {
			err = fmt.Errorf("%s has no %q", file, heading)
		}
		missing = append(missing, err)
	}
	readme, err := os.ReadFile(filepath.Join(w.rootDir, "README.md"))
	if unreleased := "No version has been released yet."; err == nil && strings.Contains(string(readme), unreleased) {
		err = fmt.Errorf("README.md says: %s", unreleased)
	}
	return errors.Join(append(missing, err)...)
}

// findReleaseBefore returns the newest release before version, or an empty string.
func (w *workspace) findReleaseBefore(ctx context.Context, version string) (string, error) {
	tags, err := w.runGit(ctx, nil, "tag", "--list", "v*")
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

// checkForms returns an error if golden files of the previous release were changed or removed, because stores may have records
// of the previous release.
func (w *workspace) checkForms(ctx context.Context, before string) error {
	if before == "" {
		return nil
	}
	changed, err := w.runGit(ctx, nil, "diff", "--name-only", "--no-renames", "--diff-filter=DMT", before, "HEAD", "--",
		":(glob)testdata/*.txt", ":(glob)proof/golden/testdata/**/*.txt",
		":(glob)stores/*/testdata/rows*", ":(glob)stores/*/testdata/rows/**", ":(glob)stores/*/testdata/items*")
	if err == nil && changed != "" {
		err = fmt.Errorf("golden files of %s were changed or removed: %s", before, strings.Join(strings.Fields(changed), " "))
	}
	return err
}

var removedLine = regexp.MustCompile(`(?m)^-[^-]`)

// checkNames compares the lists of exported names with the lists of the previous release. A patch version keeps the lists as
// they are, and a minor version from v1.0.0 on only adds lines.
func (w *workspace) checkNames(ctx context.Context, before, version string) error {
	isPatch := semver.MajorMinor(before) == semver.MajorMinor(version)
	if before == "" || !isPatch && (semver.Major(before) == "v0" || semver.Major(before) != semver.Major(version)) {
		return nil
	}
	diff, err := w.runGit(ctx, nil, "diff", "--unified=0", before, "HEAD", "--", listFolder)
	if err == nil && (isPatch && diff != "" || removedLine.MatchString(diff)) {
		err = fmt.Errorf("%s cannot change what %s exports:\n%s", version, before, diff)
	}
	return err
}
