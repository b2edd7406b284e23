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

// The tests, and the programs that they start, work in the root of the repository. All file names are relative to
// the root.
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

// root is the absolute path of the root of the repository. Tests open pages by absolute paths because the go
// command does not know of the Chdir in TestMain: with relative paths, the command would reuse cached results after
// a page has changed.
var root string

// The pages stay short, so new text must replace old text.
func TestPagesStayShort(t *testing.T) {
	t.Parallel()
	docs, all := 0, 0
	for _, file := range findPages(t) {
		n := len(strings.Fields(readFile(t, file)))
		all += n
		switch {
		case strings.HasPrefix(file, "docs/"):
			docs += n
		case file == "README.md":
			require.LessOrEqual(t, n, 900)
		case strings.HasSuffix(file, "/README.md") && !strings.HasPrefix(file, "proof/"):
			require.LessOrEqual(t, n, 600, file)
		}
	}
	require.Greater(t, docs, 10_000)
	require.LessOrEqual(t, docs, 22_000)
	require.LessOrEqual(t, all, 40_000)
}

// findPages returns all Markdown files of the repository.
func findPages(t *testing.T) (pages []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if err == nil && strings.HasSuffix(file, ".md") {
			pages = append(pages, file)
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return pages
}

// A page of docs begins with what the reader can do after it, and a table cell has at most 15 words.
func TestPagesAreReadable(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	link := regexp.MustCompile(`\[(.*?)\]\(\S*\)`)
	for _, page := range append(pages, "README.md") {
		text := readFile(t, page)
		require.Regexp(t, "^# .*\n\n(.+\n){1,5}\n", text, page)
		for line := range strings.Lines(removeCode(text)) {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			for cell := range strings.SplitSeq(link.ReplaceAllString(line, "$1"), "|") {
				require.LessOrEqual(t, len(strings.Fields(cell)), 15, "%s: %s", page, cell)
			}
		}
	}
}

// Links and pictures of the pages lead to existing files and existing headings.
func TestPagesLinkToWhatIsThere(t *testing.T) {
	t.Parallel()
	linkOrPicture := regexp.MustCompile(`\]\(([^)\s:]*)\)|src(?:set)?="([^":]*)"`)
	for _, page := range findPages(t) {
		for _, link := range linkOrPicture.FindAllStringSubmatch(removeCode(readFile(t, page)), -1) {
			path, heading, _ := strings.Cut(link[1]+link[2], "#")
			file := page
			if path != "" {
				file = filepath.Join(filepath.Dir(page), path)
			}
			_, err := os.Stat(filepath.Join(root, file))
			require.NoError(t, err, page)
			if heading != "" {
				require.Contains(t, findAnchors(readFile(t, file)), heading, page)
			}
		}
	}
}

// removeCode removes code blocks, because an index before a call looks like a link.
func removeCode(page string) string {
	return regexp.MustCompile("(?s)\n```.*?\n```").ReplaceAllString(page, "")
}

// findAnchors returns the names that links within page can have as targets.
func findAnchors(page string) (names []string) {
	for _, name := range regexp.MustCompile(`<a name="(.*?)"`).FindAllStringSubmatch(page, -1) {
		names = append(names, name[1])
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// Each code block of a page is found in the file that is linked above the block, with any indentation.
func TestPagesShowTheCode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		page, languages string
		onlyCode        bool // every block of the page shows code of a file
	}{
		{"docs/clients.md", "go", false},
		{"docs/bodies.md", "go", true},
		{"docs/handlers.md", "go", true},
		{"docs/mounting.md", "go", true},
		{"docs/users.md", "go", true},
		{"docs/migrating.md", "go|sql", true},
		{"docs/postgres.md", "go|sql", true},
		{"docs/redis.md", "go", false},
		{"docs/steps.md", "go", false},
		{"docs/store.md", "go|sql", true},
	} {
		page := readFile(t, test.page)
		blocks := regexp.MustCompile("(?s)\\[([^]\n]*)\\]\\(\\.\\./([^)\n]*)\\):\n\n```(?:"+test.languages+")\n(.*?)```\n").
			FindAllStringSubmatch(page, -1)
		require.NotEmpty(t, blocks, test.page)
		opening := "(?m)^```(?:" + test.languages + ")$"
		if test.onlyCode {
			opening = "(?m)^```.+$"
		}
		require.Len(t, regexp.MustCompile(opening).FindAllString(page, -1), len(blocks), "a block of %s names no file", test.page)
		for _, block := range blocks {
			require.Equal(t, block[1], block[2])
			file, code := "\n"+removeIndentation(readFile(t, block[2])), "\n"+removeIndentation(block[3])
			closed := strings.TrimSuffix(code, "\n") + "`" // the end of SQL in a Go file
			require.True(t, strings.Contains(file, code) || strings.Contains(file, closed), "%s shows what %s lacks:%s",
				test.page, block[2], code)
		}
	}
}

// Each design decision names the files of its code at its end, and the files exist.
func TestDesignNamesFiles(t *testing.T) {
	t.Parallel()
	decisions := strings.Split(readFile(t, "docs/design.md"), "\n## ")[1:]
	require.NotEmpty(t, decisions)
	for _, decision := range decisions {
		_, code, _ := strings.Cut(decision, "\nCode: ")
		files := regexp.MustCompile("`([a-z_A-Z0-9/-]+\\.(?:go|md|lua|sql))`").FindAllStringSubmatch(code, -1)
		require.NotEmpty(t, files, decision)
		for _, file := range files {
			readFile(t, file[1])
		}
	}
}

// The figures of a page are also in the results of the benchmark.
func TestFiguresAreMeasured(t *testing.T) {
	t.Parallel()
	results := readFile(t, "proof/benchmark/results/README.md")
	for _, test := range []struct {
		text, figure, measured string
		count                  int
	}{
		{readFile(t, "README.md"), `(\d+\.\d+) ms`, `\| $1 \|`, 6},
		{readFile(t, "docs/comparison.md"), `(\d+\.\d+) ms`, `\| $1 \|`, 2},
		{readFile(t, "docs/operating.md"), `(?m)^\| (\w+)[^|]* \| ([\d,]+) B \|`, `\n\| $1 \| [\d,]+ \| $2 \|`, 6},
	} {
		figure := regexp.MustCompile(test.figure)
		places := figure.FindAllStringSubmatchIndex(test.text, -1)
		require.Len(t, places, test.count, test.figure)
		for _, place := range places {
			measured := string(figure.ExpandString(nil, test.measured, test.text, place))
			require.Regexp(t, strings.NewReplacer("MySQL", "MariaDB", ".", `\.`).Replace(measured), results)
		}
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}

func removeIndentation(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}
