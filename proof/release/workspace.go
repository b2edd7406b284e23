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

// never are the directories whose modules are not published: nobody can require them, and they have no tags. Every other
// module of go.work is published.
var never = []string{"examples", "proof"}

// workspace is a repository with the modules of its go.work.
type workspace struct {
	dir                          string
	libraries, commands, private []*module // the first library is that of the root
}

// module is one module of the workspace.
type module struct {
	dir  string // relative to the workspace, with slashes; "." is the root
	file *modfile.File
}

func (m *module) path() string { return m.file.Module.Mod.Path }

// tag is the name of the tag that makes a version of the module.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// open reads go.work and every go.mod that it names.
func open(dir string) (*workspace, error) {
	text, err := os.ReadFile(filepath.Join(dir, "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	w := &workspace{dir: dir}
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
		w.add(&module{dir: path.Clean(filepath.ToSlash(use.Path)), file: file})
	}
	for _, m := range w.published() {
		if private := requires(m, w.private); len(private) > 0 {
			return nil, fmt.Errorf("%s requires %s, which is never published", m.path(), private[0].Mod.Path)
		}
	}
	return w, nil
}

func (w *workspace) add(m *module) {
	first, _, _ := strings.Cut(m.dir, "/")
	switch {
	case slices.Contains(never, first):
		w.private = append(w.private, m)
	case first == "cmd": // users install it
		w.commands = append(w.commands, m)
	default:
		w.libraries = append(w.libraries, m)
	}
}

func (w *workspace) published() []*module { return slices.Concat(w.libraries, w.commands) }

func (w *workspace) modules() []*module { return slices.Concat(w.published(), w.private) }

func (w *workspace) list() {
	for _, m := range w.published() {
		fmt.Println("published:", m.dir)
	}
	for _, m := range w.private {
		fmt.Println("never:", m.dir)
	}
}

// requires returns those lines of a go.mod that require one of others.
func requires(m *module, others []*module) []*modfile.Require {
	return slices.DeleteFunc(slices.Clone(m.file.Require), func(require *modfile.Require) bool {
		return !slices.ContainsFunc(others, func(other *module) bool { return other.path() == require.Mod.Path })
	})
}

// required returns the version of the published modules that every go.mod requires.
func (w *workspace) required() (string, error) {
	var version string
	for _, m := range w.modules() {
		for _, require := range requires(m, w.published()) {
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

func (w *workspace) requiresOnly(version string) error {
	required, err := w.required()
	if err == nil && required != version {
		err = fmt.Errorf("the go.mod files require %s; .ci/release set %s changes them", required, version)
	}
	return err
}

// validVersion refuses what cannot be a version of these modules, whose paths end in no v2.
func validVersion(version string) error {
	if semver.Canonical(version) != version || modules.CheckPathMajor(version, "") != nil {
		return fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	return nil
}

// set makes every module require one version of the published ones.
func (w *workspace) set(ctx context.Context, version string) error {
	if err := validVersion(version); err != nil {
		return err
	}
	for _, m := range w.modules() {
		for _, require := range requires(m, w.published()) {
			if err := w.goMod(ctx, m, nil, "edit", "-require="+require.Mod.Path+"@"+version); err != nil {
				return err
			}
		}
	}
	for _, m := range w.modules() { // only now, because tidy reads the other go.mod files, too
		if err := w.goMod(ctx, m, nil, "tidy"); err != nil {
			return err
		}
	}
	return nil
}

// goMod runs "go mod" in the directory of a module.
func (w *workspace) goMod(ctx context.Context, m *module, env []string, args ...string) error {
	env = append(slices.Clone(env), "GOWORK=off")
	_, err := output(ctx, filepath.Join(w.dir, m.dir), env, "go", append([]string{"mod"}, args...)...)
	return err
}
