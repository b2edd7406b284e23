package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tag checks that a version can be released, and makes its tags. Pushing them publishes it, and is left to a person.
func (w *workspace) tag(ctx context.Context, version string) error {
	if err := w.ready(ctx, version); err != nil {
		return err
	}
	s, err := w.stage(ctx, version)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.try(ctx); err != nil {
		return err
	}
	here := command{dir: w.dir}
	// The repository gets the commit of the commands from the clone.
	if _, err := output(ctx, here, "git", "fetch", "--quiet", "--no-tags", s.workspace.dir, s.commands); err != nil {
		return err
	}
	libraries, commands := "git push --atomic origin", "git push --atomic origin"
	for _, m := range s.published {
		tag := m.tag(version)
		if _, err := output(ctx, here, "git", "tag", "--annotate", "--message", tag, tag, s.commitOf(m)); err != nil {
			return err
		}
		fmt.Println("tagged", tag)
		if m.command() {
			commands += " " + tag
		} else {
			libraries += " " + tag
		}
	}
	// The forge starts no workflow for tags of which more than three are pushed at once: those of the commands come by themselves.
	fmt.Println("\nNothing is pushed. What is published stays published. To publish it:\n\n\t" + libraries + "\n\t" + commands)
	return nil
}

// ready reports everything that is wrong with a repository that is to be tagged.
func (w *workspace) ready(ctx context.Context, version string) error {
	if err := validVersion(version); err != nil {
		return err
	}
	return errors.Join(w.isClean(ctx), w.isFree(ctx, version), w.requiresOnly(version), w.isInChangelog(version), w.isInReadme(),
		w.changesFit(ctx, version), w.formsAreKept(ctx, version))
}

func (w *workspace) isClean(ctx context.Context) error {
	changed, err := output(ctx, command{dir: w.dir}, "git", "status", "--porcelain")
	if err == nil && changed != "" {
		err = errors.New("the working tree has changes that are not committed:\n" + changed)
	}
	return err
}

func (w *workspace) isFree(ctx context.Context, version string) error {
	var taken []string
	for _, m := range w.published {
		have, err := output(ctx, command{dir: w.dir}, "git", "tag", "--list", m.tag(version))
		if err != nil {
			return err
		}
		if have != "" {
			taken = append(taken, have)
		}
	}
	if len(taken) > 0 {
		return errors.New("there are tags already: " + strings.Join(taken, " "))
	}
	return nil
}

func (w *workspace) requiresOnly(version string) error {
	required, err := w.required()
	if err == nil && required != version {
		err = fmt.Errorf("the go.mod files require %s; .ci/release set %s changes them", required, version)
	}
	return err
}

func (w *workspace) isInChangelog(version string) error {
	text, err := os.ReadFile(filepath.Join(w.dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if heading := "## [" + strings.TrimPrefix(version, "v") + "]"; !strings.Contains("\n"+string(text), "\n"+heading) {
		return fmt.Errorf("CHANGELOG.md has no %q", heading)
	}
	return nil
}

func (w *workspace) isInReadme() error {
	text, err := os.ReadFile(filepath.Join(w.dir, "README.md"))
	if err != nil {
		return err
	}
	if unreleased := "No version has been released yet."; strings.Contains(string(text), unreleased) {
		return fmt.Errorf("README.md says: %s", unreleased)
	}
	return nil
}
