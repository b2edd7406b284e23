package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// stage is a release as its users will find it, before it is published: copies of the modules in a directory that the go
// command reads as a proxy, and a module cache that has none of them.
type stage struct {
	*workspace // a clone of the repository: nothing in it but what is committed

	dir       string
	version   string
	libraries string // the commit of the libraries
	commands  string // the commit of the commands
	user      []string
}

// stage makes a stage of the last commit. Call close to remove it.
func (w *workspace) stage(ctx context.Context, version string) (*stage, error) {
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
	if _, err := output(ctx, command{}, "git", "clone", "--quiet", "--shared", repository, clone); err != nil {
		return err
	}
	var err error
	if s.workspace, err = open(clone); err != nil {
		return err
	}
	if err := s.requiresOnly(s.version); err != nil {
		return fmt.Errorf("in the last commit %w", err)
	}
	if s.user, err = s.environment(ctx); err != nil {
		return err
	}
	if s.libraries, err = s.head(ctx); err != nil {
		return err
	}
	for _, m := range s.published {
		if m.command() {
			continue
		}
		if err := s.publish(ctx, m, s.libraries); err != nil {
			return err
		}
	}
	return s.fillCommands(ctx)
}

func (s *stage) fillCommands(ctx context.Context) error {
	var err error
	if s.commands, err = s.commitCommands(ctx); err != nil {
		return err
	}
	for _, m := range s.published {
		if !m.command() {
			continue
		}
		if err := s.publish(ctx, m, s.commands); err != nil {
			return err
		}
	}
	return nil
}

// commitOf is the commit at which a module is released.
func (s *stage) commitOf(m *module) string {
	if m.command() {
		return s.commands
	}
	return s.libraries
}

func (s *stage) head(ctx context.Context) (string, error) {
	return s.git(ctx, "rev-parse", "HEAD")
}

func (s *stage) git(ctx context.Context, args ...string) (string, error) {
	return output(ctx, command{dir: s.workspace.dir}, "git", args...)
}

// environment is that of a user. Our modules come from the stage only: "direct" is left out of GOPROXY, so that nobody
// asks GitHub for them. Other modules come from the module cache of this machine, or else from its proxy.
func (s *stage) environment(ctx context.Context) ([]string, error) {
	have, err := output(ctx, command{}, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, rest, _ := strings.Cut(have, "\n")
	proxies := []string{"file://" + s.proxy(), "file://" + filepath.Join(cache, "cache", "download")}
	for proxy := range strings.FieldsFuncSeq(rest, func(r rune) bool { return r == ',' || r == '|' }) {
		if proxy != "direct" && proxy != "off" {
			proxies = append(proxies, proxy)
		}
	}
	return []string{
		"GOWORK=off",
		"GOPROXY=" + strings.Join(proxies, ","),
		"GOMODCACHE=" + filepath.Join(s.dir, "cache"),
		"GOBIN=" + filepath.Join(s.dir, "bin"),
		"GOPRIVATE=", "GONOPROXY=",
		"GONOSUMDB=" + s.root + "," + s.root + "/*",     // no database has their sums yet
		"GOFLAGS=-modcacherw -trimpath -tags=nomsgpack", // to be removed; to be compiled once, wherever it is; see Makefile
	}, nil
}

// commitCommands commits, to the clone, what go install asks of a command: no replace directives, and so the sums of the
// modules that they replaced. The commit has the name and time of the one before it, so that it is the same each time.
func (s *stage) commitCommands(ctx context.Context) (string, error) {
	var files []string
	for _, m := range s.published {
		if !m.command() {
			continue
		}
		if err := s.dropReplaces(ctx, m); err != nil {
			return "", fmt.Errorf("%s: %w", m.dir, err)
		}
		files = append(files, m.dir)
	}
	if len(files) == 0 {
		return s.libraries, nil
	}
	if err := s.commit(ctx, files); err != nil {
		return "", err
	}
	return s.head(ctx)
}

func (s *stage) dropReplaces(ctx context.Context, m *module) error {
	for _, replace := range m.file.Replace {
		if err := m.file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
			return err
		}
	}
	m.file.Cleanup()
	if err := m.write(s.workspace.dir); err != nil {
		return err
	}
	_, err := output(ctx, command{dir: filepath.Join(s.workspace.dir, m.dir), env: s.user}, "go", "mod", "tidy")
	return err
}

// commit commits what has changed in some directories, if anything has.
func (s *stage) commit(ctx context.Context, files []string) error {
	if _, err := s.git(ctx, append([]string{"add"}, files...)...); err != nil {
		return err
	}
	changed, err := s.git(ctx, "status", "--porcelain")
	if err != nil || changed == "" {
		return err
	}
	who, err := s.git(ctx, "log", "-1", "--format=%cn%n%ce%n%cI")
	if err != nil {
		return err
	}
	is := strings.Split(who, "\n")
	where := command{dir: s.workspace.dir, env: []string{
		"GIT_AUTHOR_NAME=" + is[0], "GIT_AUTHOR_EMAIL=" + is[1], "GIT_AUTHOR_DATE=" + is[2],
		"GIT_COMMITTER_NAME=" + is[0], "GIT_COMMITTER_EMAIL=" + is[1], "GIT_COMMITTER_DATE=" + is[2],
	}}
	subject := "Commands of " + s.version + ": require what is released"
	body := "Their replace directives are gone, because go install refuses them."
	_, err = output(ctx, where, "git", "commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", subject, "-m", body)
	return err
}
