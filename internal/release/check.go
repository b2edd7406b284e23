package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// check does, with each published module of the last commit, what its users do with a version of it. They start in an
// empty directory.
func (w *workspace) check(ctx context.Context, version string) error {
	required, err := w.required()
	if err != nil {
		return err
	}
	version = cmp.Or(version, required)
	if err := validVersion(version); err != nil {
		return err
	}
	s, err := w.stage(ctx, version)
	if err != nil {
		return err
	}
	defer s.close()
	return s.try(ctx)
}

// try uses each module, and then some together.
func (s *stage) try(ctx context.Context) error {
	for _, m := range s.published {
		began := time.Now()
		try, verb := s.tryLibrary, "go get"
		if m.command() {
			try, verb = s.tryCommand, "go install"
		}
		if err := try(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
		fmt.Printf("%s %s@%s: %.0f s\n", verb, m.path(), s.version, time.Since(began).Seconds())
	}
	return s.rehearse(ctx)
}

// tryLibrary builds a program that uses all functions of a module.
func (s *stage) tryLibrary(ctx context.Context, m *module) error {
	list, err := os.ReadFile(filepath.Join(s.workspace.dir, m.listFile()))
	if err != nil {
		return fmt.Errorf("%w; .ci/release api writes it", err)
	}
	packages := parseAPI(string(list))
	if len(packages) == 0 {
		return fmt.Errorf("%s lists no package", m.listFile())
	}
	_, err = s.build(ctx, strings.ReplaceAll(path.Clean(m.dir), "/", "-"), programOf(packages), packages)
	return err
}

// build does what a user does, in an empty directory: go mod init, go get, go build. It returns the directory, in which
// the program is named "program".
func (s *stage) build(ctx context.Context, name, program string, uses []apiPackage, flags ...string) (string, error) {
	dir := filepath.Join(s.dir, "users", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	here := command{dir: dir, env: s.user}
	if _, err := output(ctx, here, "go", "mod", "init", "example.com/user"); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
		return "", err
	}
	get := []string{"get"}
	for _, p := range uses {
		get = append(get, p.path+"@"+s.version)
	}
	if len(uses) > 0 {
		if _, err := output(ctx, here, "go", get...); err != nil {
			return "", err
		}
	}
	_, err := output(ctx, here, "go", append(append([]string{"build", "-o", "program"}, flags...), ".")...)
	return dir, err
}

// programOf is a program that names every function of some packages.
func programOf(packages []apiPackage) string {
	var imports, uses strings.Builder
	for i, p := range packages {
		name := "_"
		if len(p.functions) > 0 {
			name = fmt.Sprintf("p%d", i)
		}
		fmt.Fprintf(&imports, "\t%s %q\n", name, p.path)
		for _, function := range p.functions {
			fmt.Fprintf(&uses, "\t%s.%s,\n", name, function)
		}
	}
	return "package main\n\nimport (\n" + imports.String() + ")\n\nvar used = []any{\n" + uses.String() +
		"}\n\nfunc main() { println(len(used)) }\n"
}

// tryCommand installs a command.
func (s *stage) tryCommand(ctx context.Context, m *module) error {
	empty := filepath.Join(s.dir, "users", path.Base(m.dir))
	if err := os.MkdirAll(empty, 0o777); err != nil {
		return err
	}
	here := command{dir: empty, env: s.user}
	if _, err := output(ctx, here, "go", "install", m.path()+"@"+s.version); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(filepath.Join(s.dir, "bin", path.Base(m.dir)))
	if err != nil {
		return err
	}
	if info.Main.Version != s.version {
		return fmt.Errorf("the program says that it is %s", info.Main.Version)
	}
	return nil
}
