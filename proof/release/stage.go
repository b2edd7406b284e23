package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// stage is a release as its users will find it, before it is published: a clone of the repository that has its tags, and the
// environment of a user whose git takes the clone for the repository on GitHub.
type stage struct {
	*workspace // the clone: nothing in it but what is committed

	dir     string
	version string
	userEnv []string
}

// newStage makes a stage of the last commit. Call close to remove it.
func (w *workspace) newStage(ctx context.Context, version string) (*stage, error) {
	if err := validVersion(version); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	s := &stage{dir: dir, version: version}
	if err := s.fill(ctx, w.dir); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) close() { os.RemoveAll(s.dir) }

func (s *stage) fill(ctx context.Context, repository string) error {
	clone := filepath.Join(s.dir, "clone")
	if _, err := output(ctx, "", nil, "git", "clone", "--quiet", "--shared", repository, clone); err != nil {
		return err
	}
	var err error
	if s.workspace, err = open(clone); err != nil {
		return err
	}
	if err := s.requiresOnly(s.version); err != nil {
		return fmt.Errorf("in the last commit %w", err)
	}
	if s.userEnv, err = s.environment(ctx); err != nil {
		return err
	}
	if err := s.tagHead(ctx, s.libraries); err != nil {
		return err
	}
	if err := s.commitCommands(ctx); err != nil {
		return err
	}
	return s.tagHead(ctx, s.commands)
}

// environment is that of a user with an empty module cache. Our modules come from the clone, and others from the module cache
// of this machine, or else from its proxy.
func (s *stage) environment(ctx context.Context) ([]string, error) {
	have, err := output(ctx, "", nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, proxy, _ := strings.Cut(have, "\n")
	root := s.libraries[0].path()
	return []string{
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url.file://" + s.workspace.dir + ".insteadOf",
		"GIT_CONFIG_VALUE_0=https://" + root,
		"GONOPROXY=" + root + "," + root + "/*",
		"GONOSUMDB=" + root + "," + root + "/*", // no database has their sums yet
		"GOPROXY=file://" + filepath.Join(cache, "cache", "download") + "," + proxy,
		"GOMODCACHE=" + filepath.Join(s.dir, "cache"),
		"GOBIN=" + filepath.Join(s.dir, "bin"),
		"GOFLAGS=-modcacherw -trimpath -tags=nomsgpack", // to be removed; to be compiled once, wherever it is; see Makefile
		"GOWORK=off",
	}, nil
}

func (s *stage) tagHead(ctx context.Context, modules []*module) error {
	for _, m := range modules {
		if _, err := s.git(ctx, nil, "tag", "--force", m.tag(s.version)); err != nil {
			return err
		}
	}
	return nil
}

// commitCommands commits what go install asks of a command: no replace directives, and so the sums of the modules that they
// replaced. The commit has the name and time of the one before it, so that it is the same each time.
func (s *stage) commitCommands(ctx context.Context) error {
	for _, m := range s.commands {
		for _, replace := range m.file.Replace {
			if err := s.goMod(ctx, m, nil, "edit", "-dropreplace="+replace.Old.Path); err != nil {
				return err
			}
		}
		if err := s.goMod(ctx, m, s.userEnv, "tidy"); err != nil {
			return err
		}
	}
	who, err := s.git(ctx, nil, "log", "-1", "--format=GIT_AUTHOR_NAME=%cn%nGIT_AUTHOR_EMAIL=%ce%nGIT_AUTHOR_DATE=%cI%n"+
		"GIT_COMMITTER_NAME=%cn%nGIT_COMMITTER_EMAIL=%ce%nGIT_COMMITTER_DATE=%cI")
	if err != nil {
		return err
	}
	if _, err := s.git(ctx, nil, "add", "--all"); err != nil {
		return err
	}
	_, err = s.git(ctx, strings.Split(who, "\n"), "commit", "--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign",
		"--message", "Commands of "+s.version+": require what is released",
		"--message", "Their replace directives are gone, because go install refuses them.")
	return err
}

func (w *workspace) git(ctx context.Context, env []string, args ...string) (string, error) {
	return output(ctx, w.dir, env, "git", args...)
}

// check does, with each published module of the last commit, what its users do with a version of it.
func (w *workspace) check(ctx context.Context, version string) error {
	required, err := w.required()
	if err != nil {
		return err
	}
	s, err := w.newStage(ctx, cmp.Or(version, required))
	if err != nil {
		return err
	}
	defer s.close()
	return s.tryModules(ctx)
}

// tryModules builds a program with each library, installs each command, and runs an example.
func (s *stage) tryModules(ctx context.Context) error {
	for _, m := range s.libraries {
		packages, err := s.listedPackages(m)
		if err != nil {
			return err
		}
		program := "package main\n\nimport (\n\t_ \"" + strings.Join(packages, "\"\n\t_ \"") + "\"\n)\n\nfunc main() {}\n"
		if _, err := s.build(ctx, m.path(), program); err != nil {
			return err
		}
	}
	for _, m := range s.commands {
		fmt.Println("go install", m.path())
		if _, err := output(ctx, s.dir, s.userEnv, "go", "install", m.path()+"@"+s.version); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(filepath.Join(s.workspace.dir, "examples/grpc/main.go"))
	if err != nil {
		return err
	}
	file, err := s.build(ctx, "examples/grpc", string(program))
	if err != nil {
		return err
	}
	_, err = output(ctx, "", nil, file)
	return err
}

// build builds a program with the packages of ours that it imports, in an empty directory, and returns its file.
func (s *stage) build(ctx context.Context, name, program string) (string, error) {
	fmt.Println("go get and go build", name)
	dir := filepath.Join(s.dir, "users", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
		return "", err
	}
	ours := regexp.MustCompile(`"(` + regexp.QuoteMeta(s.libraries[0].path()) + `(?:/[^"]*)?)"`)
	get := []string{"get"}
	for _, match := range ours.FindAllStringSubmatch(program, -1) {
		get = append(get, match[1]+"@"+s.version)
	}
	for _, args := range [][]string{{"mod", "init", "example.com/user"}, get, {"build", "-o", "program", "."}} {
		if _, err := output(ctx, dir, s.userEnv, "go", args...); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	return filepath.Join(dir, "program"), nil
}
