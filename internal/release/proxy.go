package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	modules "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is the directory in which the go command finds the staged modules.
func (s *stage) proxy() string { return filepath.Join(s.dir, "proxy") }

// publish puts a module into the proxy, as it is in a commit.
func (s *stage) publish(ctx context.Context, m *module, commit string) error {
	escaped, err := modules.EscapePath(m.path())
	if err != nil {
		return err
	}
	dir := filepath.Join(s.proxy(), filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	date, err := s.git(ctx, "log", "-1", "--format=%cI", commit)
	if err != nil {
		return err
	}
	made, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{s.version, made.UTC()})
	if err != nil {
		return err
	}
	file, err := os.ReadFile(filepath.Join(s.workspace.dir, m.dir, "go.mod"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "list"), []byte(s.version+"\n"), 0o666),
		os.WriteFile(filepath.Join(dir, s.version+".info"), info, 0o666),
		os.WriteFile(filepath.Join(dir, s.version+".mod"), file, 0o666),
		s.zip(filepath.Join(dir, s.version+".zip"), m, commit),
	)
}

func (s *stage) zip(name string, m *module, commit string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	version := modules.Version{Path: m.path(), Version: s.version}
	return errors.Join(zip.CreateFromVCS(file, version, s.workspace.dir, commit, m.subdir()), file.Close())
}
