package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const mostLines = 3 // of a snippet

// The page on frameworks shows what the examples do: each snippet stands in an example or test that its section links to.
func TestFrameworksShowsTheExamples(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/frameworks.md")
	require.NoError(t, err)
	snippets := 0
	for section := range strings.SplitSeq(string(page), "\n### ") {
		shown := snippet.FindAllStringSubmatch(section, -1)
		for _, found := range shown {
			require.Contains(t, linked(t, section), unindented(found[1]))
			require.LessOrEqual(t, strings.Count(found[1], "\n"), mostLines)
		}
		snippets += len(shown)
	}
	require.NotZero(t, snippets)
}

var (
	snippet     = regexp.MustCompile("(?s)```go\n(.*?)```")
	program     = regexp.MustCompile(`\]\((\.\./(?:examples|adapters)/.*?\.go)\)`)
	indentation = regexp.MustCompile(`(?m)^\t+`)
)

// linked returns the programs that a section links to.
func linked(t *testing.T, section string) string {
	t.Helper()
	var programs strings.Builder
	for _, link := range program.FindAllStringSubmatch(section, -1) {
		text, err := os.ReadFile(filepath.FromSlash(link[1]))
		require.NoError(t, err)
		programs.WriteString("\n" + unindented(string(text)))
	}
	return programs.String()
}

func unindented(code string) string { return indentation.ReplaceAllString(code, "") }
