package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is a bug that the library does not have.
type mutant struct {
	name   string
	broken string // what it breaks
	file   string // from the root of the repository
	from   string // a text that the file has once
	to     string // what takes its place
	test   string // which must fail then, perhaps with the names of subtests
	in     string // the package of the test, if it is not that of the file
	needs  server // what the test starts
}

// server is a program that a test starts.
type server string

const (
	redis    server = "redis-server"
	valkey   server = "valkey-server" // in place of redis-server
	postgres server = "postgres"
)

// where is a package, and the servers that its tests are to use.
type where struct{ dir, redis string }

func (m mutant) where() where {
	w := where{dir: "."} // its tests also find what is broken in an internal package
	dir, rest, below := strings.Cut(m.file, "/")
	if dir == "stores" {
		name, _, _ := strings.Cut(rest, "/")
		dir += "/" + name
	}
	if below && dir != "internal" {
		w.dir = "./" + dir
	}
	if m.in != "" {
		w.dir = m.in
	}
	if m.needs == valkey {
		w.redis = string(valkey)
	}
	return w
}

// mutated returns the file with the bug.
func (m mutant) mutated(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.name, err)
	}
	if n := strings.Count(string(text), m.from); n != 1 {
		return "", fmt.Errorf("%s: %s has this %d times, not once: %s", m.name, m.file, n, m.from)
	}
	return strings.Replace(string(text), m.from, m.to, 1), nil
}

// overlay writes into dir what "go test -overlay" takes, and returns its name.
func (m mutant) overlay(root, dir string) (string, error) {
	text, err := m.mutated(root)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): file}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, replace, 0o600)
}
