package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	modules "golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// validVersion refuses what cannot be a version of these modules, whose paths end in no v2.
func validVersion(version string) error {
	if semver.Canonical(version) != version || modules.CheckPathMajor(version, "") != nil {
		return fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	return nil
}

// set has every module require one version of the published ones.
func (w *workspace) set(ctx context.Context, version string) error {
	if err := validVersion(version); err != nil {
		return err
	}
	for _, m := range w.modules() {
		if err := w.setModule(m, version); err != nil {
			return err
		}
	}
	for _, m := range w.modules() { // only now, because it reads the others' go.mod too
		where := command{dir: filepath.Join(w.dir, m.dir), env: []string{"GOWORK=off"}}
		if _, err := output(ctx, where, "go", "mod", "tidy"); err != nil {
			return fmt.Errorf("%s: %w", m.dir, err)
		}
	}
	return nil
}

func (w *workspace) setModule(m *module, version string) error {
	for _, require := range w.requires(m, w.published) {
		if err := m.file.AddRequire(require.Mod.Path, version); err != nil {
			return err
		}
	}
	return m.write(w.dir)
}

// write writes go.mod below a copy of the workspace.
func (m *module) write(dir string) error {
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, m.dir, "go.mod"), text, 0o666)
}

// required is the version of the published modules that every go.mod requires.
func (w *workspace) required() (string, error) {
	var version string
	for _, m := range w.modules() {
		for _, require := range w.requires(m, w.published) {
			if version == "" {
				version = require.Mod.Version
			}
			if require.Mod.Version != version {
				return "", fmt.Errorf("%s requires %s and not %s; .ci/release set writes it", m.dir, require.Mod, version)
			}
		}
	}
	if version == "" {
		return "", errors.New("no module requires another one")
	}
	return version, nil
}
