package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeFiles writes files, and a go.work that uses every directory with a go.mod, the root first.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	var uses []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(files[name]), 0o666))
		if filepath.Base(name) == "go.mod" {
			uses = append(uses, "use ./"+filepath.Dir(name))
		}
	}
	slices.Sort(uses)
	text := "go 1.26.0\n\n" + strings.Join(uses, "\n") + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.work"), []byte(text), 0o666))
	return dir
}

// newWorkspace makes a repository with files, and commits the files.
func newWorkspace(t *testing.T, files map[string]string) *workspace {
	t.Helper()
	dir := writeFiles(t, files)
	mustRunGit(t, dir, "init", "--quiet")
	mustRunGit(t, dir, "config", "user.name", "Tester")
	mustRunGit(t, dir, "config", "user.email", "tester@example.com")
	commitAll(t, dir)
	return reopenWorkspace(t, dir)
}

func reopenWorkspace(t *testing.T, dir string) *workspace {
	t.Helper()
	w, err := openWorkspace(dir)
	require.NoError(t, err)
	return w
}

func commitAll(t *testing.T, dir string) {
	t.Helper()
	mustRunGit(t, dir, "add", ".")
	mustRunGit(t, dir, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message", "a change")
}

func mustRunGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	text, err := runProgram(t.Context(), dir, nil, "git", args...)
	require.NoError(t, err)
	return text
}

func dirsOf(modules []*module) []string {
	var names []string
	for _, m := range modules {
		names = append(names, m.dir)
	}
	return names
}

// goModRequiring returns a go.mod of module name. Each of others is a required module and version, such as
// "example.com/shop v0.1.0".
func goModRequiring(name string, others ...string) string {
	text := "module " + name + "\n\ngo 1.26.0\n"
	for _, other := range others {
		text += "\nrequire " + other + "\n"
	}
	return text
}

func TestModulesOfAWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, map[string]string{
		"a/go.mod":               goModRequiring("example.com/shop/a", "example.com/shop/z v0.1.0", "example.com/shop v0.1.0"),
		"proof/benchmark/go.mod": goModRequiring("example.com/shop/proof/benchmark"),
		"cmd/tool/go.mod":        goModRequiring("example.com/shop/cmd/tool", "example.com/shop/a v0.1.0"),
		"examples/go.mod":        goModRequiring("example.com/shop/examples"),
		"go.mod":                 goModRequiring("example.com/shop"),
		"proof/test/go.mod":      goModRequiring("example.com/shop/proof/test"),
		"z/go.mod":               goModRequiring("example.com/shop/z", "example.com/shop v0.1.0"),
	})
	require.Equal(t, []string{".", "a", "z"}, dirsOf(w.libraries))
	require.Equal(t, []string{"cmd/tool"}, dirsOf(w.commands))
	require.Equal(t, []string{"examples", "proof/benchmark", "proof/test"}, dirsOf(w.privateModules))
	require.Equal(t, "v0.1.0", w.libraries[0].tagName("v0.1.0"))
	require.Equal(t, "cmd/tool/v0.1.0", w.commands[0].tagName("v0.1.0"))
}

func TestModuleThatRequiresAPrivateOne(t *testing.T) {
	t.Parallel()
	_, err := openWorkspace(writeFiles(t, map[string]string{
		"go.mod":         goModRequiring("example.com/shop", "example.com/shop/proof/a v0.1.0"),
		"proof/a/go.mod": goModRequiring("example.com/shop/proof/a"),
	}))
	require.ErrorContains(t, err, "example.com/shop requires example.com/shop/proof/a, which is never published")
}

// An importer of the root module also gets these modules, so the addition of a module must be deliberate.
func TestRootLinksNoMoreThanItDoes(t *testing.T) {
	t.Parallel()
	list := []string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".", "./idempotencytest"}
	lines, err := runProgram(t.Context(), "../..", nil, "go", list...)
	require.NoError(t, err)
	linked := make(map[string]bool)
	for path := range strings.FieldsSeq(lines) {
		linked[path] = true
	}
	require.Equal(t, map[string]bool{
		"github.com/idempotency-go/idempotency": true,
		"github.com/cespare/xxhash/v2":          true,
		"github.com/google/uuid":                true,
		"github.com/redis/go-redis/v9":          true,
		"go.uber.org/atomic":                    true,
		"golang.org/x/sys":                      true,
	}, linked)
}

func TestContributingNamesEveryModule(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	for _, m := range reopenWorkspace(t, "../..").allModules() {
		require.Contains(t, string(text), "`"+m.dir+"`")
	}
}
