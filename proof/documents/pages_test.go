package documents_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// All files are named as seen from the root of the repository, where the tests and the programs that they start work.
func TestMain(m *testing.M) {
	err := os.Chdir("../..")
	if err == nil {
		root, err = os.Getwd()
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// root is the root of the repository. The go command does not learn of the Chdir in TestMain. It runs these tests again
// after a page has changed only if they open the page by its whole path.
var root string

// What the pages on security and guarantees promise is shown by tests that exist.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, "_test.go") {
			tests.WriteString(read(t, file))
		}
		return err
	})
	require.NoError(t, err)
	for _, page := range []string{"docs/security.md", "docs/guarantees.md"} {
		names := regexp.MustCompile("`((?:Test|Fuzz|Example)[A-Z].*?)`").FindAllStringSubmatch(read(t, page), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.True(t, strings.Contains(tests.String(), "\nfunc "+name[1]+"("), "no %s", name[1])
		}
	}
}

// What people read stays short: what does not fit replaces something. Each page says first whom it is for.
func TestPagesStayShort(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	require.LessOrEqual(t, len(pages), 12)
	lines := 0
	for _, page := range pages {
		text := read(t, page)
		require.Regexp(t, "^# .*\n\nThis page is for ", text[:min(len(text), 200)], page)
		lines += strings.Count(text, "\n")
	}
	require.LessOrEqual(t, lines, 3000)
	require.LessOrEqual(t, strings.Count(read(t, "README.md"), "\n"), 250)
	require.LessOrEqual(t, strings.Count(read(t, "CONTRIBUTING.md"), "\n"), 200)
}

// Links of the pages lead to files that are there, and to their headings.
func TestPagesLinkToWhatIsThere(t *testing.T) {
	t.Parallel()
	pages := []string{"CHANGELOG.md", "CONTRIBUTING.md", ".github/SECURITY.md", ".github/CODE_OF_CONDUCT.md", "README.md"}
	for _, pattern := range []string{"docs/*.md", "proof/benchmark/results/*.md", "*/README.md", "*/*/README.md"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, more)
		pages = append(pages, more...)
	}
	for _, page := range pages {
		links := regexp.MustCompile(`\]\(([^)\s:]*)\)`).FindAllStringSubmatch(withoutCode(read(t, page)), -1)
		for _, link := range links {
			path, heading, _ := strings.Cut(link[1], "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), path)
			}
			_, err := os.Stat(filepath.Join(root, file))
			require.NoError(t, err, page)
			if heading != "" {
				require.Contains(t, anchors(read(t, file)), heading, page)
			}
		}
	}
}

// withoutCode removes blocks of code, in which an index before a call looks like a link.
func withoutCode(page string) string {
	return regexp.MustCompile("(?s)\n```.*?\n```").ReplaceAllString(page, "")
}

// anchors returns what links can lead to within a page.
func anchors(page string) (names []string) {
	for _, name := range regexp.MustCompile(`<a name="(.*?)"`).FindAllStringSubmatch(page, -1) {
		names = append(names, name[1])
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// shownBlock is a block of code in a page, and the file that is linked above it.
type shownBlock struct{ file, code string }

// shownCode returns the blocks of a page in some languages ("go|sql"). It fails if one of them has no link above it.
func shownCode(t *testing.T, page, languages string) (blocks []shownBlock) {
	t.Helper()
	text := read(t, page)
	shown := regexp.MustCompile("(?s)\\[([^]\n]*)\\]\\(\\.\\./([^)\n]*)\\):\n\n```(?:"+languages+")\n(.*?)```\n").
		FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, shown)
	require.Len(t, regexp.MustCompile("(?m)^```(?:"+languages+")$").FindAllString(text, -1), len(shown), "a block names no file")
	for _, block := range shown {
		require.Equal(t, block[1], block[2])
		blocks = append(blocks, shownBlock{block[1], block[3]})
	}
	return blocks
}

// requireShown fails unless each block of a page in some languages stands in the file that is linked above it, but for its
// indentation.
func requireShown(t *testing.T, page, languages string) {
	t.Helper()
	for _, block := range shownCode(t, page, languages) {
		require.Contains(t, "\n"+unindented(read(t, block.file)), "\n"+unindented(block.code), block.file)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}

func unindented(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}
