package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	modules "golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// neverPublished has the directories of the unpublished modules, which have no tags and cannot be required. All modules of
// go.work outside these directories are published.
var neverPublished = []string{"examples", "proof"}

// workspace is a repository with the modules of its go.work.
type workspace struct {
	rootDir                             string
	libraries, commands, privateModules []*module // the first library is the root module
}

// module is one module of the workspace.
type module struct {
	dir     string // relative to the workspace, with slashes; "." is the root
	modFile *modfile.File
}

func (m *module) modulePath() string { return m.modFile.Module.Mod.Path }

// tagName returns the name of the tag for a version of the module.
func (m *module) tagName(version string) string { return path.Join(m.dir, version) }

// openWorkspace reads go.work and the go.mod files of all listed modules.
func openWorkspace(dir string) (*workspace, error) {
	text, err := os.ReadFile(filepath.Join(dir, "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	w := &workspace{rootDir: dir}
	for _, use := range work.Use {
		name := filepath.Join(dir, use.Path, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		w.addModule(&module{dir: path.Clean(filepath.ToSlash(use.Path)), modFile: file})
	}
	for _, m := range w.publishedModules() {
		if private := findRequires(m, w.privateModules); len(private) > 0 {
			return nil, fmt.Errorf("%s requires %s, which is never published", m.modulePath(), private[0].Mod.Path)
		}
	}
	return w, nil
}

func (w *workspace) addModule(m *module) {
	first, _, _ := strings.Cut(m.dir, "/")
	switch {
	case slices.Contains(neverPublished, first):
		w.privateModules = append(w.privateModules, m)
	case first == "cmd": // for go install
		w.commands = append(w.commands, m)
	default:
		w.libraries = append(w.libraries, m)
	}
}

func (w *workspace) publishedModules() []*module { return slices.Concat(w.libraries, w.commands) }

func (w *workspace) allModules() []*module {
	return slices.Concat(w.publishedModules(), w.privateModules)
}

func (w *workspace) printModules() {
	for _, m := range w.publishedModules() {
		fmt.Println("published:", m.dir)
	}
	for _, m := range w.privateModules {
		fmt.Println("never:", m.dir)
	}
}

// findRequires returns the require lines of m for modules in others.
func findRequires(m *module, others []*module) []*modfile.Require {
	return slices.DeleteFunc(slices.Clone(m.modFile.Require), func(require *modfile.Require) bool {
		return !slices.ContainsFunc(others, func(other *module) bool { return other.modulePath() == require.Mod.Path })
	})
}

// findRequiredVersion returns the version of the published modules in the go.mod files, which must agree.
func (w *workspace) findRequiredVersion() (string, error) {
	var version string
	for _, m := range w.allModules() {
		for _, require := range findRequires(m, w.publishedModules()) {
			if version == "" {
				version = require.Mod.Version
			}
			if require.Mod.Version != version {
				return "", fmt.Errorf("%s requires %s and not %s; .ci/release set writes it", m.dir, require.Mod, version)
			}
		}
	}
	return version, nil
}

func (w *workspace) checkRequiredVersion(version string) error {
	required, err := w.findRequiredVersion()
	if err == nil && required != version {
		err = fmt.Errorf("the go.mod files require %s; .ci/release set %s changes them", required, version)
	}
	return err
}

// checkVersion returns an error unless version is canonical, with major version 0 or 1, because the module paths lack a major
// version suffix.
func checkVersion(version string) error {
	if semver.Canonical(version) != version || modules.CheckPathMajor(version, "") != nil {
		return fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	return nil
}

// setVersion sets the version of the published modules in every go.mod.
func (w *workspace) setVersion(ctx context.Context, version string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	for _, m := range w.allModules() {
		for _, require := range findRequires(m, w.publishedModules()) {
			if err := w.runGoMod(ctx, m, nil, "edit", "-require="+require.Mod.Path+"@"+version); err != nil {
				return err
			}
		}
	}
	for _, m := range w.allModules() { // after all edits, because tidy also reads the edited go.mod files
		if err := w.runGoMod(ctx, m, nil, "tidy"); err != nil {
			return err
		}
	}
	return nil
}

// runGoMod runs "go mod" in the directory of a module.
func (w *workspace) runGoMod(ctx context.Context, m *module, env []string, args ...string) error {
	env = append(slices.Clone(env), "GOWORK=off")
	_, err := runProgram(ctx, filepath.Join(w.rootDir, m.dir), env, "go", append([]string{"mod"}, args...)...)
	return err
}
