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

// stage is an unpublished release, in the form that users will get: a clone of the repository with the tags of the release,
// and the environment of a user. In the environment, git uses the clone in place of the repository on GitHub.
type stage struct {
	*workspace // the clone, with committed files only

	tempDir string
	version string
	userEnv []string
}

// newStage makes a stage of the last commit. The caller removes the stage with close.
func (w *workspace) newStage(ctx context.Context, version string) (*stage, error) {
	if err := checkVersion(version); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	s := &stage{tempDir: dir, version: version}
	if err := s.prepareClone(ctx, w.rootDir); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) close() { os.RemoveAll(s.tempDir) }

func (s *stage) prepareClone(ctx context.Context, repository string) error {
	clone := filepath.Join(s.tempDir, "clone")
	if _, err := runProgram(ctx, "", nil, "git", "clone", "--quiet", "--shared", repository, clone); err != nil {
		return err
	}
	var err error
	if s.workspace, err = openWorkspace(clone); err != nil {
		return err
	}
	if err := s.checkRequiredVersion(s.version); err != nil {
		return fmt.Errorf("in the last commit %w", err)
	}
	if s.userEnv, err = s.buildUserEnv(ctx); err != nil {
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

// buildUserEnv returns the environment of a user with an empty module cache. The modules of the workspace come from the clone.
// Third-party modules come from the module cache of this machine, or from the module proxy.
func (s *stage) buildUserEnv(ctx context.Context) ([]string, error) {
	goEnv, err := runProgram(ctx, "", nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, proxy, _ := strings.Cut(goEnv, "\n")
	root := s.libraries[0].modulePath()
	return []string{
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url.file://" + s.workspace.rootDir + ".insteadOf",
		"GIT_CONFIG_VALUE_0=https://" + root,
		"GONOPROXY=" + root + "," + root + "/*",
		"GONOSUMDB=" + root + "," + root + "/*", // the checksum database lacks the sums of an unpublished version
		"GOPROXY=file://" + filepath.Join(cache, "cache", "download") + "," + proxy,
		"GOMODCACHE=" + filepath.Join(s.tempDir, "cache"),
		"GOBIN=" + filepath.Join(s.tempDir, "bin"),
		// modcacherw lets close remove the cache, trimpath compiles packages once for all directories, and the Makefile
		// explains nomsgpack.
		"GOFLAGS=-modcacherw -trimpath -tags=nomsgpack",
		"GOWORK=off",
	}, nil
}

func (s *stage) tagHead(ctx context.Context, modules []*module) error {
	for _, m := range modules {
		if _, err := s.runGit(ctx, nil, "tag", "--force", m.tagName(s.version)); err != nil {
			return err
		}
	}
	return nil
}

// commitCommands removes the replace directives of the commands, because go install refuses the directives, and adds the sums
// of the replaced modules. The commit has the name and time of the previous commit, so the hash is the same each time.
func (s *stage) commitCommands(ctx context.Context) error {
	for _, m := range s.commands {
		for _, replace := range m.modFile.Replace {
			if err := s.runGoMod(ctx, m, nil, "edit", "-dropreplace="+replace.Old.Path); err != nil {
				return err
			}
		}
		if err := s.runGoMod(ctx, m, s.userEnv, "tidy"); err != nil {
			return err
		}
	}
	identity, err := s.runGit(ctx, nil, "log", "-1", "--format=GIT_AUTHOR_NAME=%cn%nGIT_AUTHOR_EMAIL=%ce%nGIT_AUTHOR_DATE=%cI%n"+
		"GIT_COMMITTER_NAME=%cn%nGIT_COMMITTER_EMAIL=%ce%nGIT_COMMITTER_DATE=%cI")
	if err != nil {
		return err
	}
	if _, err := s.runGit(ctx, nil, "add", "--all"); err != nil {
		return err
	}
	_, err = s.runGit(ctx, strings.Split(identity, "\n"), "commit", "--quiet", "--allow-empty", "--no-verify", "--no-gpg-sign",
		"--message", "Commands of "+s.version+": require what is released",
		"--message", "Their replace directives are gone, because go install refuses them.")
	return err
}

func (w *workspace) runGit(ctx context.Context, env []string, args ...string) (string, error) {
	return runProgram(ctx, w.rootDir, env, "git", args...)
}

// checkRelease uses each published module of the last commit as a user does. An empty version is the required version.
func (w *workspace) checkRelease(ctx context.Context, version string) error {
	required, err := w.findRequiredVersion()
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
		if _, err := s.buildProgram(ctx, m.modulePath(), program); err != nil {
			return err
		}
	}
	for _, m := range s.commands {
		fmt.Println("go install", m.modulePath())
		if _, err := runProgram(ctx, s.tempDir, s.userEnv, "go", "install", m.modulePath()+"@"+s.version); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(filepath.Join(s.workspace.rootDir, "examples/grpc/main.go"))
	if err != nil {
		return err
	}
	file, err := s.buildProgram(ctx, "examples/grpc", string(program))
	if err != nil {
		return err
	}
	_, err = runProgram(ctx, "", nil, file)
	return err
}

// buildProgram builds a program in an empty directory, gets the imported packages of the workspace, and returns the path of
// the binary.
func (s *stage) buildProgram(ctx context.Context, name, program string) (string, error) {
	fmt.Println("go get and go build", name)
	dir := filepath.Join(s.tempDir, "users", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
		return "", err
	}
	importPattern := regexp.MustCompile(`"(` + regexp.QuoteMeta(s.libraries[0].modulePath()) + `(?:/[^"]*)?)"`)
	getCommand := []string{"get"}
	for _, match := range importPattern.FindAllStringSubmatch(program, -1) {
		getCommand = append(getCommand, match[1]+"@"+s.version)
	}
	for _, args := range [][]string{{"mod", "init", "example.com/user"}, getCommand, {"build", "-o", "program", "."}} {
		if _, err := runProgram(ctx, dir, s.userEnv, "go", args...); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	return filepath.Join(dir, "program"), nil
}
