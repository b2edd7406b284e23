package documents_test

import (
	"cmp"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files that the page names declare the functions on the way of a request.
func TestContributingNamesFunctions(t *testing.T) {
	t.Parallel()
	page := readFile(t, "CONTRIBUTING.md")
	files := map[string]string{} // by the link texts of the page
	for _, link := range regexp.MustCompile(`\[([\w./-]+\.(?:go|lua))\]\((\S+?)\)`).FindAllStringSubmatch(page, -1) {
		files[link[1]] = link[2]
	}
	_, way, found := strings.Cut(page, "\n## The way of a request\n")
	require.True(t, found)
	way, _, _ = strings.Cut(way, "\n## ")
	named := regexp.MustCompile("((?:`\\w+`(?:, | and ))*`\\w+`) of \\[?([\\w./-]+\\.go)").FindAllStringSubmatch(way, -1)
	require.Greater(t, len(named), 20)
	checked := map[string]bool{}
	for _, group := range named {
		require.Contains(t, files, group[2])
		source := readFile(t, files[group[2]])
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(group[1], -1) {
			require.True(t, declares(source, name[1]), "%s in %s", name[1], group[2])
			checked[name[1]] = true
		}
	}
	for _, name := range regexp.MustCompile("`([a-z]\\w*)`").FindAllStringSubmatch(way, -1) {
		require.True(t, checked[name[1]] || declares(readFile(t, "settlement.go"), name[1]), name[1])
	}
}

// declares reports whether source has a function or a method called name.
func declares(source, name string) bool {
	return regexp.MustCompile(`\nfunc (\(.*?\) )?` + name + `\(`).MatchString(source)
}

// The picture has an arrow for each import between packages of the picture, and no other arrow.
func TestContributingShowsTheImports(t *testing.T) {
	t.Parallel()
	_, picture, found := strings.Cut(readFile(t, "CONTRIBUTING.md"), "flowchart TD\n")
	require.True(t, found)
	picture, _, _ = strings.Cut(picture, "```")
	boxes := map[string]string{".": "root"} // the boxes by the packages inside
	for _, box := range regexp.MustCompile(`(\w+)\["?(.*?)"?\]`).FindAllStringSubmatch(picture, -1) {
		for name := range strings.SplitSeq(box[2], ", ") {
			if box[1] != "root" {
				boxes[name] = box[1]
			}
		}
	}
	want := map[string]bool{}
	arrow := regexp.MustCompile(`(?m)^ +(\w+)(?:\[.*?\])? --> (\w+)`)
	for _, found := range arrow.FindAllStringSubmatch(picture, -1) {
		want[found[1]+" --> "+found[2]] = true
	}
	got := map[string]bool{}
	for name, from := range boxes {
		for _, imported := range findImports(t, name) {
			if to := boxes[imported]; to != "" && to != from {
				got[from+" --> "+to] = true
			}
		}
	}
	require.Equal(t, got, want)
}

// findImports returns the directories of the packages of this repository that the package in dir imports, apart from
// the imports of its tests.
func findImports(t *testing.T, dir string) (imports []string) {
	t.Helper()
	const module = "github.com/idempotency-go/idempotency"
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, dir)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range parsed.Imports {
			if name, ok := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), module); ok {
				imports = append(imports, cmp.Or(strings.TrimPrefix(name, "/"), "."))
			}
		}
	}
	return imports
}
