package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const maxSnippetLines = 3

// Each snippet on the page about frameworks is short, and is part of an example or test to which the section links.
func TestFrameworksShowsTheExamples(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/frameworks.md")
	require.NoError(t, err)
	snippets := 0
	for section := range strings.SplitSeq(string(page), "\n### ") {
		shown := snippetPattern.FindAllStringSubmatch(section, -1)
		for _, found := range shown {
			require.Contains(t, readLinkedPrograms(t, section), removeIndentation(found[1]))
			require.LessOrEqual(t, strings.Count(found[1], "\n"), maxSnippetLines)
		}
		snippets += len(shown)
	}
	require.NotZero(t, snippets)
}

var (
	snippetPattern     = regexp.MustCompile("(?s)```go\n(.*?)```")
	linkPattern        = regexp.MustCompile(`\]\((\.\./(?:examples|adapters)/.*?\.go)\)`)
	indentationPattern = regexp.MustCompile(`(?m)^\t+`)
)

// readLinkedPrograms returns the source of the programs to which the section links.
func readLinkedPrograms(t *testing.T, section string) string {
	t.Helper()
	var programs strings.Builder
	for _, link := range linkPattern.FindAllStringSubmatch(section, -1) {
		text, err := os.ReadFile(filepath.FromSlash(link[1]))
		require.NoError(t, err)
		programs.WriteString("\n" + removeIndentation(string(text)))
	}
	return programs.String()
}

func removeIndentation(code string) string { return indentationPattern.ReplaceAllString(code, "") }
