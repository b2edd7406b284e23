package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is a bug for one file of the library, and the test that must notice the bug.
type mutant struct {
	name        string
	broken      string // how the library behaves with the bug
	file        string // relative to the root of the repository
	from        string // the text to replace; the file has this text exactly once
	to          string // the replacement
	test        string // the test that must fail, with the names of subtests separated by slashes
	testPackage string // the package of the test; empty: the package of file
	needs       server // the server that the test starts
}

// server is the name of a program that a test starts.
type server string

const (
	redis    server = "redis-server"
	valkey   server = "valkey-server" // the test uses valkey-server instead of redis-server
	postgres server = "postgres"
)

// testTarget is a package, and the program that its tests start as Redis server.
type testTarget struct {
	packageDir   string
	redisProgram string // empty: the default
}

// findTarget returns the package of the test of m.
func (m mutant) findTarget() testTarget {
	target := testTarget{packageDir: "."} // the tests of the root also find the bugs of internal packages
	dir, rest, below := strings.Cut(m.file, "/")
	if dir == "stores" {
		name, _, _ := strings.Cut(rest, "/")
		dir += "/" + name
	}
	if below && dir != "internal" {
		target.packageDir = "./" + dir
	}
	if m.testPackage != "" {
		target.packageDir = m.testPackage
	}
	if m.needs == valkey {
		target.redisProgram = string(valkey)
	}
	return target
}

// applyBug returns the text of the file with the bug.
func (m mutant) applyBug(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.name, err)
	}
	if n := strings.Count(string(text), m.from); n != 1 {
		return "", fmt.Errorf("%s: %s has this %d times, not once: %s", m.name, m.file, n, m.from)
	}
	return strings.Replace(string(text), m.from, m.to, 1), nil
}

// writeOverlay writes the file with the bug, and the JSON file for "go test -overlay", into dir. The result is the name
// of the JSON file.
func (m mutant) writeOverlay(root, dir string) (string, error) {
	text, err := m.applyBug(root)
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
	overlayFile := filepath.Join(dir, "overlay.json")
	return overlayFile, os.WriteFile(overlayFile, replace, 0o600)
}
