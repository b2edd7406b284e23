package documents_test

import (
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The functions on the way of a request are declared in the files that the page names.
func TestContributingNamesFunctions(t *testing.T) {
	t.Parallel()
	page := read(t, "CONTRIBUTING.md")
	files := map[string]string{} // by the names that the page gives to them
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
		source := read(t, files[group[2]])
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(group[1], -1) {
			require.True(t, declares(source, name[1]), "%s in %s", name[1], group[2])
			checked[name[1]] = true
		}
	}
	for _, name := range regexp.MustCompile("`([a-z]\\w*)`").FindAllStringSubmatch(way, -1) {
		require.True(t, checked[name[1]] || declares(read(t, "execution.go"), name[1]), name[1])
	}
}

// declares reports whether a file has a function, or a method, of that name.
func declares(source, name string) bool {
	return regexp.MustCompile(`\nfunc (\(.*?\) )?` + name + `\(`).MatchString(source)
}

// The picture has an arrow for each import of a package by another one that it shows, and no other arrow.
func TestContributingShowsTheImports(t *testing.T) {
	t.Parallel()
	_, picture, found := strings.Cut(read(t, "CONTRIBUTING.md"), "flowchart TD\n")
	require.True(t, found)
	picture, _, _ = strings.Cut(picture, "```")
	const module = "github.com/idempotency-go/idempotency"
	boxes := map[string]string{module: "root"} // by the packages that are in them
	for _, box := range regexp.MustCompile(`(\w+)\["?(.*?)"?\]`).FindAllStringSubmatch(picture, -1) {
		for name := range strings.SplitSeq(box[2], ", ") {
			if box[1] != "root" {
				boxes[path.Join(module, name)] = box[1]
			}
		}
	}
	want := map[string]bool{}
	arrow := regexp.MustCompile(`(?m)^ +(\w+)(?:\[.*?\])? --> (\w+)`)
	for _, found := range arrow.FindAllStringSubmatch(picture, -1) {
		want[found[1]+" --> "+found[2]] = true
	}
	got := map[string]bool{}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "work").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		for _, imported := range words[1:] {
			from, to := boxes[words[0]], boxes[imported]
			if from != "" && to != "" && from != to {
				got[from+" --> "+to] = true
			}
		}
	}
	require.Equal(t, got, want)
}
