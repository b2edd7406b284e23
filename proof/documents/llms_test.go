package documents_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The file llms.txt has the form of llmstxt.org: a title, a quotation, text, and lists of links with a description each. The
// lists have every page of docs once, and lead to existing files.
func TestLLMsListsEveryPage(t *testing.T) {
	t.Parallel()
	text := readFile(t, "llms.txt")
	head, lists, found := strings.Cut(text, "\n\n## ")
	require.True(t, found)
	require.Regexp(t, `^# .+\n\n(> .+\n)+\n(.+\n)*.+$`, head)
	listed := map[string]bool{}
	link := regexp.MustCompile(`^- \[[^]]+\]\(([\w./-]+)\): (\S.*)$`)
	for section := range strings.SplitSeq(lists, "\n\n## ") {
		title, items, _ := strings.Cut(section, "\n\n")
		require.NotContains(t, title, "\n")
		for item := range strings.SplitSeq(strings.TrimSpace(items), "\n") {
			parts := link.FindStringSubmatch(item)
			require.NotNil(t, parts, item)
			require.FileExists(t, filepath.Join(root, parts[1]))
			require.False(t, listed[parts[1]], item)
			require.LessOrEqual(t, len(strings.Fields(parts[2])), 15, item)
			listed[parts[1]] = true
		}
	}
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		require.True(t, listed[page], page)
	}
}
