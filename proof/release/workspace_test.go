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

// newFiles writes some files, and a go.work that uses every directory with a go.mod, the root first.
func newFiles(t *testing.T, files map[string]string) string {
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

// newWorkspace makes a repository of some files, and commits them.
func newWorkspace(t *testing.T, files map[string]string) *workspace {
	t.Helper()
	dir := newFiles(t, files)
	git(t, dir, "init", "--quiet")
	git(t, dir, "config", "user.name", "Tester")
	git(t, dir, "config", "user.email", "tester@example.com")
	commit(t, dir)
	return reopen(t, dir)
}

func reopen(t *testing.T, dir string) *workspace {
	t.Helper()
	w, err := open(dir)
	require.NoError(t, err)
	return w
}

func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message", "a change")
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	text, err := output(t.Context(), dir, nil, "git", args...)
	require.NoError(t, err)
	return text
}

func dirs(modules []*module) []string {
	var names []string
	for _, m := range modules {
		names = append(names, m.dir)
	}
	return names
}

// requiring returns a go.mod that requires versions of other modules, written "module version".
func requiring(name string, others ...string) string {
	text := "module " + name + "\n\ngo 1.26.0\n"
	for _, other := range others {
		text += "\nrequire " + other + "\n"
	}
	return text
}

func TestModulesOfAWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t, map[string]string{
		"a/go.mod":               requiring("example.com/shop/a", "example.com/shop/z v0.1.0", "example.com/shop v0.1.0"),
		"proof/benchmark/go.mod": requiring("example.com/shop/proof/benchmark"),
		"cmd/tool/go.mod":        requiring("example.com/shop/cmd/tool", "example.com/shop/a v0.1.0"),
		"examples/go.mod":        requiring("example.com/shop/examples"),
		"go.mod":                 requiring("example.com/shop"),
		"proof/test/go.mod":      requiring("example.com/shop/proof/test"),
		"z/go.mod":               requiring("example.com/shop/z", "example.com/shop v0.1.0"),
	})
	require.Equal(t, []string{".", "a", "z"}, dirs(w.libraries))
	require.Equal(t, []string{"cmd/tool"}, dirs(w.commands))
	require.Equal(t, []string{"examples", "proof/benchmark", "proof/test"}, dirs(w.private))
	require.Equal(t, "v0.1.0", w.libraries[0].tag("v0.1.0"))
	require.Equal(t, "cmd/tool/v0.1.0", w.commands[0].tag("v0.1.0"))
}

func TestModuleThatRequiresAPrivateOne(t *testing.T) {
	t.Parallel()
	_, err := open(newFiles(t, map[string]string{
		"go.mod":         requiring("example.com/shop", "example.com/shop/proof/a v0.1.0"),
		"proof/a/go.mod": requiring("example.com/shop/proof/a"),
	}))
	require.ErrorContains(t, err, "example.com/shop requires example.com/shop/proof/a, which is never published")
}

// Whoever imports the root gets these modules, too. One more is a decision, and no accident.
func TestRootLinksNoMoreThanItDoes(t *testing.T) {
	t.Parallel()
	list := []string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".", "./idempotencytest"}
	lines, err := output(t.Context(), "../..", nil, "go", list...)
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
	for _, m := range reopen(t, "../..").modules() {
		require.Contains(t, string(text), "`"+m.dir+"`")
	}
}
