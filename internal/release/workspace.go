package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// never are the directories whose modules are not published: nobody can require them, and they have no tags. Every other
// module of go.work is published.
var never = []string{"benchmark", "examples", "internal"}

// workspace is a repository with its modules.
type workspace struct {
	dir       string
	root      string    // the path of the module in dir
	published []*module // each after those that it requires
	private   []*module
}

// module is one module of the workspace.
type module struct {
	dir  string // relative to the workspace, with slashes; "." is the root
	file *modfile.File
}

func (m *module) path() string { return m.file.Module.Mod.Path }

// tag is the name of the tag that makes a version of the module.
func (m *module) tag(version string) string { return path.Join(m.dir, version) }

// subdir is the directory as the tools for versions of modules want it: empty for the root.
func (m *module) subdir() string { return strings.TrimPrefix(m.dir, ".") }

// command tells whether the module is a program, which users install, and not a library.
func (m *module) command() bool { return strings.HasPrefix(m.dir, "cmd/") }

// open reads go.work and every go.mod that it names.
func open(dir string) (*workspace, error) {
	file := filepath.Join(dir, "go.work")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork(file, text, nil)
	if err != nil {
		return nil, err
	}
	w := &workspace{dir: dir}
	for _, use := range work.Use {
		m, err := openModule(dir, use.Path)
		if err != nil {
			return nil, err
		}
		w.add(m)
	}
	if w.root == "" {
		return nil, errors.New("go.work does not use its own directory")
	}
	return w, w.sort()
}

func openModule(root, dir string) (*module, error) {
	name := filepath.Join(root, dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return nil, err
	}
	return &module{dir: path.Clean(filepath.ToSlash(dir)), file: file}, nil
}

func (w *workspace) add(m *module) {
	if m.dir == "." {
		w.root = m.path()
	}
	first, _, _ := strings.Cut(m.dir, "/")
	if slices.Contains(never, first) {
		w.private = append(w.private, m)
		return
	}
	w.published = append(w.published, m)
}

// sort puts each published module after those that it requires.
func (w *workspace) sort() error {
	for _, m := range w.published {
		if private := w.requires(m, w.private); len(private) > 0 {
			return fmt.Errorf("%s requires %s, which is never published", m.path(), private[0].Mod.Path)
		}
	}
	var sorted []*module
	left := slices.Clone(w.published)
	for len(left) > 0 {
		next := slices.IndexFunc(left, func(m *module) bool { return len(w.requires(m, left)) == 0 })
		if next < 0 {
			return fmt.Errorf("modules require each other: %s", left[0].path())
		}
		sorted = append(sorted, left[next])
		left = slices.Delete(left, next, next+1)
	}
	w.published = sorted
	return nil
}

// requires returns those lines of a go.mod that require one of some modules.
func (w *workspace) requires(m *module, of []*module) []*modfile.Require {
	var found []*modfile.Require
	for _, require := range m.file.Require {
		ours := func(other *module) bool { return other.path() == require.Mod.Path }
		if slices.ContainsFunc(of, ours) {
			found = append(found, require)
		}
	}
	return found
}

// modules are all of them.
func (w *workspace) modules() []*module { return slices.Concat(w.published, w.private) }

func (w *workspace) list() error {
	for _, m := range w.published {
		fmt.Println("published:", m.dir)
	}
	for _, m := range w.private {
		fmt.Println("never:", m.dir)
	}
	return nil
}
