package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newShop makes a repository with a library in the root, a second library, a command, and a module that is never published.
// The go.mod files have the replace directives of a developer.
func newShop(t *testing.T, version string) *workspace {
	t.Helper()
	const name = "github.com/example/shop"
	root, till := name+" "+version, name+"/till "+version
	return newWorkspace(t, map[string]string{
		"go.mod":       goModRequiring(name),
		"shop.go":      "package shop\n\nfunc Open() string { return \"open\" }\n",
		"till/go.mod":  goModRequiring(name+"/till", root) + "\nreplace " + name + " => ../\n",
		"till/till.go": "package till\n\nimport \"" + name + "\"\n\nfunc Ring() string { return shop.Open() }\n",
		"cmd/tool/go.mod": goModRequiring(name+"/cmd/tool", root, till) +
			"\nreplace " + name + " => ../..\n\nreplace " + name + "/till => ../../till\n",
		"cmd/tool/main.go": "package main\n\nimport (\n\t\"" + name + "\"\n\t\"" + name + "/till\"\n)\n\n" +
			"func main() { println(shop.Open(), till.Ring()) }\n",
		"examples/go.mod": goModRequiring(name+"/examples", root) + "\nreplace " + name + " => ../\n",
		"examples/grpc/main.go": "package main\n\nimport \"" + name + "\"\n\n" +
			"func main() {\n\tif shop.Open() != \"open\" {\n\t\tpanic(\"closed\")\n\t}\n}\n",
		"LICENSE":                       "Do as you like.\n",
		"README.md":                     "# Shop\n",
		"CHANGELOG.md":                  "# Changelog\n\n## [0.1.0] - 2026-11-23\n\nThe first one.\n",
		notesFile:                       "# v0.1.0\n\nThe first one.\n",
		listFolder + "/idempotency.txt": "package " + name + "\nfunc Open() string\n",
		listFolder + "/till.txt":        "package " + name + "/till\nfunc Ring() string\n",
	})
}

func TestUsersCanHaveARelease(t *testing.T) {
	t.Parallel()
	w := newShop(t, "v0.1.0")
	head := mustRunGit(t, w.rootDir, "rev-parse", "HEAD")

	require.NoError(t, w.checkRelease(t.Context(), ""))
	require.Empty(t, mustRunGit(t, w.rootDir, "tag"), "to check is not to tag")

	require.NoError(t, w.tagRelease(t.Context(), "v0.1.0"))
	require.Equal(t, "cmd/tool/v0.1.0\ntill/v0.1.0\nv0.1.0", mustRunGit(t, w.rootDir, "tag"))
	require.Equal(t, head, mustRunGit(t, w.rootDir, "rev-parse", "v0.1.0^{commit}"))
	require.Equal(t, head, mustRunGit(t, w.rootDir, "rev-parse", "till/v0.1.0^{commit}"))
	require.Equal(t, head, mustRunGit(t, w.rootDir, "rev-parse", "cmd/tool/v0.1.0^{commit}^"))
	require.Equal(t, "cmd/tool/go.mod\ncmd/tool/go.sum", mustRunGit(t, w.rootDir, "diff", "--name-only", head, "cmd/tool/v0.1.0"))
	require.NotContains(t, mustRunGit(t, w.rootDir, "show", "cmd/tool/v0.1.0:cmd/tool/go.mod"), "replace")
	require.Contains(t, mustRunGit(t, w.rootDir, "show", "cmd/tool/v0.1.0:cmd/tool/go.sum"), "github.com/example/shop/till v0.1.0 h1:")
	require.Equal(t, head, mustRunGit(t, w.rootDir, "rev-parse", "HEAD"))
	require.Empty(t, mustRunGit(t, w.rootDir, "status", "--porcelain"))

	require.ErrorContains(t, w.tagRelease(t.Context(), "v0.1.0"), "already exists")
}

// With each change, users cannot get the release, or the files of the release contradict the version.
func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name          string
		file          string
		text          string
		isUncommitted bool // written without a commit
		wantError     string
	}{
		{"dirty", "shop.go", "package shop\n\nfunc Open() string { return \"closed\" }\n", true, "not committed"},
		{"another version", "till/go.mod",
			goModRequiring("github.com/example/shop/till", "github.com/example/shop v0.0.9") +
				"\nreplace github.com/example/shop => ../\n",
			false, "v0.0.9"},
		{"not released by its README", "README.md", "# Shop\n\nNo version has been released yet.\n", false, "README.md"},
		{"no changelog", "CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\nThe 0.1.0 to be: ## [0.1.0]\n", false, "CHANGELOG.md"},
		{"notes of another version", notesFile, "# v0.0.9\n\nAs before v0.1.0.\n", false, notesFile},
		{"does not compile", "till/till.go", "package till\n\nfunc Ring() string { return shop.Open() }\n", false, "undefined: shop"},
		{"lacks a package that is listed", listFolder + "/till.txt", "package github.com/example/shop/till/drawer\n", false,
			"till/drawer"},
		{"fails when it is used", "examples/grpc/main.go",
			"package main\n\nimport _ \"github.com/example/shop\"\n\nfunc main() { panic(\"closed today\") }\n", false, "closed today"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newShop(t, "v0.1.0")
			require.NoError(t, os.WriteFile(filepath.Join(w.rootDir, test.file), []byte(test.text), 0o666))
			if !test.isUncommitted {
				commitAll(t, w.rootDir)
			}
			err := reopenWorkspace(t, w.rootDir).tagRelease(t.Context(), "v0.1.0")
			require.ErrorContains(t, err, test.wantError)
			require.Empty(t, mustRunGit(t, w.rootDir, "tag"))
		})
	}
}

// The version number of a release tells users which kind of change to expect.
func TestVersionsTellWhatChanges(t *testing.T) {
	t.Parallel()
	const oldList = "package example.com/shop\nfunc Open() string\ntype Door interface{Close()}\n"
	for name, test := range map[string]struct {
		newList         string
		refusedVersions []string
	}{
		"nothing":             {oldList, nil},
		"a new name":          {oldList + "func Shut() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new package":       {oldList + "package example.com/shop/yard\nfunc Open() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new interface":     {oldList + "type Gate interface{Close()}\n", []string{"v0.1.1", "v1.1.1"}},
		"a name is gone":      {strings.Replace(oldList, "func Open() string\n", "", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"another signature":   {strings.Replace(oldList, "Open()", "Open(n int)", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"an interface's more": {strings.Replace(oldList, "Close()", "Close(); Lock()", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"a module is gone":    {"", []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, map[string]string{"go.mod": goModRequiring("example.com/shop"), listFolder + "/idempotency.txt": oldList})
			for _, tag := range []string{"v0.1.0", "v0.1.1-rc.1", "v1.1.0", "v1.9.0", "vain"} {
				mustRunGit(t, w.rootDir, "tag", tag)
			}
			file := w.listFile(w.libraries[0])
			require.NoError(t, os.WriteFile(file, []byte(test.newList), 0o666))
			if test.newList == "" {
				require.NoError(t, os.Remove(file))
			}
			commitAll(t, w.rootDir)
			for _, version := range []string{"v0.0.9", "v0.1.1", "v0.2.0", "v1.0.0", "v1.1.1", "v1.2.0"} {
				before, err := w.findReleaseBefore(t.Context(), version)
				require.NoError(t, err)
				err = w.checkNames(t.Context(), before, version)
				require.Equal(t, slices.Contains(test.refusedVersions, version), err != nil, "%s: %v", version, err)
			}
		})
	}
}

// A golden file of a release stays unchanged. A new form has a new golden file.
func TestFormsAreKept(t *testing.T) {
	t.Parallel()
	const old, row = "proof/golden/testdata/redis/v1/done.txt", "stores/tillstore/testdata/rows_v1.sql"
	w := newWorkspace(t, map[string]string{
		"go.mod": goModRequiring("example.com/shop"), "proof/golden/testdata/README.md": "", old: "a record\n", row: "a row\n",
	})
	require.NoError(t, w.checkForms(t.Context(), ""), "there is no release yet")
	mustRunGit(t, w.rootDir, "tag", "v0.1.0")
	write := func(file, text string) {
		file = filepath.Join(w.rootDir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
		commitAll(t, w.rootDir)
	}
	write("proof/golden/testdata/redis/v2/done.txt", "another record\n")
	write("proof/golden/testdata/README.md", "There are two forms.\n")
	require.NoError(t, w.checkForms(t.Context(), "v0.1.0"))
	write(row, "another row\n")
	require.ErrorContains(t, w.checkForms(t.Context(), "v0.1.0"), "golden files of v0.1.0 were changed or removed: "+row)
	write(row, "a row\n")
	require.NoError(t, os.Remove(filepath.Join(w.rootDir, old)))
	commitAll(t, w.rootDir)
	require.ErrorContains(t, w.checkForms(t.Context(), "v0.1.0"), old)
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, valid := range map[string]bool{
		"v0.1.0": true, "v1.0.0-rc.1": true, "": false, "0.1.0": false, "v0.1": false, "v2.0.0": false, "v0.1.0+meta": false,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, valid, checkVersion(version) == nil)
		})
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	w := newShop(t, "v0.0.0")
	require.ErrorContains(t, w.checkRelease(t.Context(), "v0.1.0"), "in the last commit the go.mod files require v0.0.0")

	require.NoError(t, w.setVersion(t.Context(), "v0.1.0"))
	w = reopenWorkspace(t, w.rootDir)
	required, err := w.findRequiredVersion()
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", required)
	for _, m := range w.allModules() {
		require.Len(t, m.modFile.Replace, len(findRequires(m, w.publishedModules())), "what is replaced stays so")
	}
	require.ErrorContains(t, w.checkRelease(t.Context(), ""), "in the last commit the go.mod files require v0.0.0")
	commitAll(t, w.rootDir)
	require.NoError(t, w.checkRelease(t.Context(), ""))
}
