package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newShop makes a repository with a library in the root, one beside it, a command and a module that is never published. Their
// go.mod files have the replace directives of a developer.
func newShop(t *testing.T, version string) *workspace {
	t.Helper()
	const name = "github.com/example/shop"
	root, till := name+" "+version, name+"/till "+version
	return newWorkspace(t, map[string]string{
		"go.mod":       requiring(name),
		"shop.go":      "package shop\n\nfunc Open() string { return \"open\" }\n",
		"till/go.mod":  requiring(name+"/till", root) + "\nreplace " + name + " => ../\n",
		"till/till.go": "package till\n\nimport \"" + name + "\"\n\nfunc Ring() string { return shop.Open() }\n",
		"cmd/tool/go.mod": requiring(name+"/cmd/tool", root, till) +
			"\nreplace " + name + " => ../..\n\nreplace " + name + "/till => ../../till\n",
		"cmd/tool/main.go": "package main\n\nimport (\n\t\"" + name + "\"\n\t\"" + name + "/till\"\n)\n\n" +
			"func main() { println(shop.Open(), till.Ring()) }\n",
		"examples/go.mod": requiring(name+"/examples", root) + "\nreplace " + name + " => ../\n",
		"examples/grpc/main.go": "package main\n\nimport \"" + name + "\"\n\n" +
			"func main() {\n\tif shop.Open() != \"open\" {\n\t\tpanic(\"closed\")\n\t}\n}\n",
		"LICENSE":                       "Do as you like.\n",
		"README.md":                     "# Shop\n",
		"CHANGELOG.md":                  "# Changelog\n\n## [0.1.0] - 2026-11-23\n\nThe first one.\n",
		listFolder + "/idempotency.txt": "package " + name + "\nfunc Open() string\n",
		listFolder + "/till.txt":        "package " + name + "/till\nfunc Ring() string\n",
	})
}

func TestUsersCanHaveARelease(t *testing.T) {
	t.Parallel()
	w := newShop(t, "v0.1.0")
	head := git(t, w.dir, "rev-parse", "HEAD")

	require.NoError(t, w.check(t.Context(), ""))
	require.Empty(t, git(t, w.dir, "tag"), "to check is not to tag")

	require.NoError(t, w.tag(t.Context(), "v0.1.0"))
	require.Equal(t, "cmd/tool/v0.1.0\ntill/v0.1.0\nv0.1.0", git(t, w.dir, "tag"))
	require.Equal(t, head, git(t, w.dir, "rev-parse", "v0.1.0^{commit}"))
	require.Equal(t, head, git(t, w.dir, "rev-parse", "till/v0.1.0^{commit}"))
	require.Equal(t, head, git(t, w.dir, "rev-parse", "cmd/tool/v0.1.0^{commit}^"))
	require.Equal(t, "cmd/tool/go.mod\ncmd/tool/go.sum", git(t, w.dir, "diff", "--name-only", head, "cmd/tool/v0.1.0"))
	require.NotContains(t, git(t, w.dir, "show", "cmd/tool/v0.1.0:cmd/tool/go.mod"), "replace")
	require.Contains(t, git(t, w.dir, "show", "cmd/tool/v0.1.0:cmd/tool/go.sum"), "github.com/example/shop/till v0.1.0 h1:")
	require.Equal(t, head, git(t, w.dir, "rev-parse", "HEAD"))
	require.Empty(t, git(t, w.dir, "status", "--porcelain"))

	require.ErrorContains(t, w.tag(t.Context(), "v0.1.0"), "already exists")
}

// Each change makes a release that users could not have, or that says the wrong thing about itself.
func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		file      string
		text      string
		unsaved   bool // not committed
		complaint string
	}{
		{"dirty", "shop.go", "package shop\n\nfunc Open() string { return \"closed\" }\n", true, "not committed"},
		{"another version", "till/go.mod",
			requiring("github.com/example/shop/till", "github.com/example/shop v0.0.9") + "\nreplace github.com/example/shop => ../\n",
			false, "v0.0.9"},
		{"not released by its README", "README.md", "# Shop\n\nNo version has been released yet.\n", false, "README.md"},
		{"no changelog", "CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\nThe 0.1.0 to be: ## [0.1.0]\n", false, "CHANGELOG.md"},
		{"does not compile", "till/till.go", "package till\n\nfunc Ring() string { return shop.Open() }\n", false, "undefined: shop"},
		{"lacks a package that is listed", listFolder + "/till.txt", "package github.com/example/shop/till/drawer\n", false, "till/drawer"},
		{"fails when it is used", "examples/grpc/main.go",
			"package main\n\nimport _ \"github.com/example/shop\"\n\nfunc main() { panic(\"closed today\") }\n", false, "closed today"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newShop(t, "v0.1.0")
			require.NoError(t, os.WriteFile(filepath.Join(w.dir, test.file), []byte(test.text), 0o666))
			if !test.unsaved {
				commit(t, w.dir)
			}
			err := reopen(t, w.dir).tag(t.Context(), "v0.1.0")
			require.ErrorContains(t, err, test.complaint)
			require.Empty(t, git(t, w.dir, "tag"))
		})
	}
}

// Each release has a number that says what its users have to change.
func TestVersionsTellWhatChanges(t *testing.T) {
	t.Parallel()
	const was = "package example.com/shop\nfunc Open() string\ntype Door interface{Close()}\n"
	for name, test := range map[string]struct {
		is      string
		refused []string // versions
	}{
		"nothing":             {was, nil},
		"a new name":          {was + "func Shut() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new package":       {was + "package example.com/shop/yard\nfunc Open() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new interface":     {was + "type Gate interface{Close()}\n", []string{"v0.1.1", "v1.1.1"}},
		"a name is gone":      {strings.Replace(was, "func Open() string\n", "", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"another signature":   {strings.Replace(was, "Open()", "Open(n int)", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"an interface's more": {strings.Replace(was, "Close()", "Close(); Lock()", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"a module is gone":    {"", []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, map[string]string{"go.mod": requiring("example.com/shop"), listFolder + "/idempotency.txt": was})
			for _, tag := range []string{"v0.1.0", "v0.1.1-rc.1", "v1.1.0", "v1.9.0", "vain"} {
				git(t, w.dir, "tag", tag)
			}
			file := w.listFile(w.libraries[0])
			require.NoError(t, os.WriteFile(file, []byte(test.is), 0o666))
			if test.is == "" {
				require.NoError(t, os.Remove(file))
			}
			commit(t, w.dir)
			for _, version := range []string{"v0.0.9", "v0.1.1", "v0.2.0", "v1.0.0", "v1.1.1", "v1.2.0"} {
				before, err := w.releaseBefore(t.Context(), version)
				require.NoError(t, err)
				err = w.keepsNames(t.Context(), before, version)
				require.Equal(t, slices.Contains(test.refused, version), err != nil, "%s: %v", version, err)
			}
		})
	}
}

// A golden file of a release is never changed. That of a new form is new.
func TestFormsAreKept(t *testing.T) {
	t.Parallel()
	const old, row = "proof/golden/testdata/redis/v1/done.txt", "stores/tillstore/testdata/rows_v1.sql"
	w := newWorkspace(t, map[string]string{
		"go.mod": requiring("example.com/shop"), "proof/golden/testdata/README.md": "", old: "a record\n", row: "a row\n",
	})
	require.NoError(t, w.keepsForms(t.Context(), ""), "there is no release yet")
	git(t, w.dir, "tag", "v0.1.0")
	write := func(file, text string) {
		file = filepath.Join(w.dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
		commit(t, w.dir)
	}
	write("proof/golden/testdata/redis/v2/done.txt", "another record\n")
	write("proof/golden/testdata/README.md", "There are two forms.\n")
	require.NoError(t, w.keepsForms(t.Context(), "v0.1.0"))
	write(row, "another row\n")
	require.ErrorContains(t, w.keepsForms(t.Context(), "v0.1.0"), "golden files of v0.1.0 were changed or removed: "+row)
	write(row, "a row\n")
	require.NoError(t, os.Remove(filepath.Join(w.dir, old)))
	commit(t, w.dir)
	require.ErrorContains(t, w.keepsForms(t.Context(), "v0.1.0"), old)
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, valid := range map[string]bool{
		"v0.1.0": true, "v1.0.0-rc.1": true, "": false, "0.1.0": false, "v0.1": false, "v2.0.0": false, "v0.1.0+meta": false,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, valid, validVersion(version) == nil)
		})
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	w := newShop(t, "v0.0.0")
	require.ErrorContains(t, w.check(t.Context(), "v0.1.0"), "in the last commit the go.mod files require v0.0.0")

	require.NoError(t, w.set(t.Context(), "v0.1.0"))
	w = reopen(t, w.dir)
	required, err := w.required()
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", required)
	for _, m := range w.modules() {
		require.Len(t, m.file.Replace, len(requires(m, w.published())), "what is replaced stays so")
	}
	require.ErrorContains(t, w.check(t.Context(), ""), "in the last commit the go.mod files require v0.0.0")
	commit(t, w.dir)
	require.NoError(t, w.check(t.Context(), ""))
}
