package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shop is a repository with a library in the root, one beside it, a command and a module that is never published. Their
// go.mod files have the replace directives of a developer.
func shop(t *testing.T, version string) *workspace {
	t.Helper()
	const name = "example.com/shop"
	root, till := name+" "+version, name+"/till "+version
	w := newWorkspace(t, map[string]string{
		"go.mod":       requiring(name),
		"shop.go":      "package shop\n\nfunc Open() string { return \"open\" }\n",
		"till/go.mod":  requiring(name+"/till", root) + "\nreplace " + name + " => ../\n",
		"till/till.go": "package till\n\nimport \"" + name + "\"\n\nfunc Ring() string { return shop.Open() }\n",
		"cmd/tool/go.mod": requiring(name+"/cmd/tool", root, till) +
			"\nreplace " + name + " => ../..\n\nreplace " + name + "/till => ../../till\n",
		"cmd/tool/main.go": "package main\n\nimport (\n\t\"" + name + "\"\n\t\"" + name + "/till\"\n)\n\n" +
			"func main() { println(shop.Open(), till.Ring()) }\n",
		"examples/go.mod":               requiring(name+"/examples", root) + "\nreplace " + name + " => ../\n",
		"examples/main.go":              "package main\n\nimport \"" + name + "\"\n\nfunc main() { println(shop.Open()) }\n",
		"LICENSE":                       "Do as you like.\n",
		"README.md":                     "# Shop\n",
		"CHANGELOG.md":                  "# Changelog\n\n## [0.1.0] - 2026-11-23\n\nThe first one.\n",
		listFolder + "/idempotency.txt": "package " + name + "\nfunc Open() string\n",
		listFolder + "/till.txt":        "package " + name + "/till\nfunc Ring() string\n",
		rehearsalFile: "package main\n\nimport \"" + name + "/till\"\n\n" +
			"func main() {\n\tif till.Ring() != \"open\" {\n\t\tpanic(\"closed\")\n\t}\n}\n",
	})
	return w
}

func TestUsersCanHaveARelease(t *testing.T) {
	t.Parallel()
	w := shop(t, "v0.1.0")
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
	require.Contains(t, git(t, w.dir, "show", "cmd/tool/v0.1.0:cmd/tool/go.sum"), "example.com/shop/till v0.1.0 h1:")
	require.Equal(t, head, git(t, w.dir, "rev-parse", "HEAD"))
	require.Empty(t, git(t, w.dir, "status", "--porcelain"))

	require.ErrorContains(t, w.tag(t.Context(), "v0.1.0"), "tags already")
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
			requiring("example.com/shop/till", "example.com/shop v0.0.9") + "\nreplace example.com/shop => ../\n", false,
			"v0.0.9"},
		{"not released by its README", "README.md", "# Shop\n\nNo version has been released yet.\n", false, "README.md"},
		{"no changelog", "CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\nThe 0.1.0 to be: ## [0.1.0]\n", false, "CHANGELOG.md"},
		{"does not compile", "till/till.go", "package till\n\nfunc Ring() string { return shop.Open() }\n", false, "undefined: shop"},
		{"lacks what is listed", "till/till.go",
			"package till\n\nimport \"example.com/shop\"\n\nfunc Rang() string { return shop.Open() }\n", false, "Ring"},
		{"lists no package", listFolder + "/till.txt", "", false, "lists no package"},
		{"is not rehearsed", rehearsalFile, "package main\n\nfunc main() {}\n", false, "uses none of the modules"},
		{"fails when rehearsed", rehearsalFile,
			"package main\n\nimport _ \"example.com/shop\"\n\nfunc main() { panic(\"closed today\") }\n", false, "closed today"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := shop(t, "v0.1.0")
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
	const was = "package example.com/shop\nfunc Open() string\ntype Door interface\ntype Door interface, Close()\n"
	for name, test := range map[string]struct {
		is      string
		refused []string // versions
	}{
		"nothing":             {was, nil},
		"a new name":          {was + "func Shut() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new package":       {was + "package example.com/shop/yard\nfunc Open() string\n", []string{"v0.1.1", "v1.1.1"}},
		"a new interface":     {was + "type Gate interface\ntype Gate interface, Close()\n", []string{"v0.1.1", "v1.1.1"}},
		"a name is gone":      {strings.Replace(was, "func Open() string\n", "", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"another signature":   {strings.Replace(was, "Open()", "Open(n int)", 1), []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
		"an interface's more": {was + "type Door interface, Lock()\n", []string{"v0.1.1", "v1.1.1", "v1.2.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkspace(t, map[string]string{"go.mod": requiring("example.com/shop"), listFolder + "/idempotency.txt": was})
			for _, tag := range []string{"v0.1.0", "v0.1.1-rc.1", "v1.1.0", "v1.9.0", "vain"} {
				git(t, w.dir, "tag", tag)
			}
			require.NoError(t, os.WriteFile(filepath.Join(w.dir, w.published[0].listFile()), []byte(test.is), 0o666))
			for _, version := range []string{"v0.0.9", "v0.1.1", "v0.2.0", "v1.0.0", "v1.1.1", "v1.2.0"} {
				err := w.changesFit(t.Context(), version)
				require.Equal(t, slices.Contains(test.refused, version), err != nil, "%s: %v", version, err)
			}
		})
	}
	gone := newWorkspace(t, map[string]string{
		"go.mod": requiring("example.com/shop"), listFolder + "/idempotency.txt": was, listFolder + "/till.txt": "package till\n",
	})
	git(t, gone.dir, "tag", "v1.1.0")
	require.ErrorContains(t, gone.changesFit(t.Context(), "v1.2.0"), "v1.2.0 cannot be without what v1.1.0 exports: till: package till")
}

// A golden file of a release is never changed. That of a new form is new.
func TestFormsAreKept(t *testing.T) {
	t.Parallel()
	const old, row = "internal/golden/testdata/redis/v1/done.txt", "tillstore/testdata/rows_v1.sql"
	w := newWorkspace(t, map[string]string{
		"go.mod": requiring("example.com/shop"), "internal/golden/testdata/README.md": "", old: "a record\n", row: "a row\n",
	})
	require.NoError(t, w.formsAreKept(t.Context(), "v0.1.0"), "there is no release yet")
	git(t, w.dir, "tag", "v0.1.0")
	write := func(file, text string) {
		file = filepath.Join(w.dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
		commit(t, w.dir)
	}
	write("internal/golden/testdata/redis/v2/done.txt", "another record\n")
	write("internal/golden/testdata/README.md", "There are two forms.\n")
	require.NoError(t, w.formsAreKept(t.Context(), "v0.2.0"))
	write(row, "another row\n")
	require.ErrorContains(t, w.formsAreKept(t.Context(), "v0.2.0"), "golden files of v0.1.0 were changed or removed: "+row)
	write(row, "a row\n")
	require.NoError(t, os.Remove(filepath.Join(w.dir, old)))
	commit(t, w.dir)
	require.ErrorContains(t, w.formsAreKept(t.Context(), "v0.2.0"), old)
}

// Whoever builds a command again gets the same bytes, wherever that is.
func TestBinariesAreReproducible(t *testing.T) {
	t.Parallel()
	w := shop(t, "v0.1.0")
	dir := t.TempDir()
	var programs [2][]byte
	for i := range programs {
		s, m, err := w.stageCommand(t.Context(), "v0.1.0", "cmd/tool")
		require.NoError(t, err)
		t.Cleanup(s.close)
		for _, platform := range []string{"windows/arm64", "linux/amd64"} {
			file, err := s.compile(t.Context(), m, platform, dir)
			require.NoError(t, err)
			program, err := os.ReadFile(file)
			require.NoError(t, err)
			programs[i] = append(programs[i], program...)
		}
	}
	require.Equal(t, sha256.Sum256(programs[0]), sha256.Sum256(programs[1]))
	info, err := buildinfo.ReadFile(filepath.Join(dir, "tool_v0.1.0_windows_arm64.exe"))
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", info.Main.Version)
	require.NotContains(t, info.String(), w.dir)

	require.NoError(t, writeSums(dir))
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	require.NoError(t, err)
	require.Regexp(t, "^[0-9a-f]{64}  tool_v0.1.0_linux_amd64\n[0-9a-f]{64}  tool_v0.1.0_windows_arm64.exe\n$", string(sums))
}

func TestBinariesOfWhatIsNoCommand(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", "till", "cmd/none", "examples"} {
		err := shop(t, "v0.1.0").binaries(t.Context(), "v0.1.0", dir, t.TempDir())
		require.ErrorContains(t, err, "is no command of the workspace")
	}
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
	w := shop(t, "v0.0.0")
	require.ErrorContains(t, w.check(t.Context(), "v0.1.0"), "in the last commit the go.mod files require v0.0.0")

	require.NoError(t, w.set(t.Context(), "v0.1.0"))
	w = reopen(t, w.dir)
	required, err := w.required()
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", required)
	for _, m := range w.modules() {
		require.Len(t, m.file.Replace, len(w.requires(m, w.published)), "what is replaced stays so")
	}
	require.ErrorContains(t, w.check(t.Context(), ""), "in the last commit the go.mod files require v0.0.0")
	commit(t, w.dir)
	require.NoError(t, w.check(t.Context(), ""))
}

func TestSizesAreOfProgramsThatCompile(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/size/*.go")
	require.NoError(t, err)
	require.Len(t, files, len(sizes))
	for _, of := range sizes {
		t.Run(of.program, func(t *testing.T) {
			t.Parallel()
			_, err := output(t.Context(), command{}, "go", "vet", filepath.Join("testdata/size", of.program+".go"))
			require.NoError(t, err)
		})
	}
}
