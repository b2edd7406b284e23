package idempotency_test

import (
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/stretchr/testify/require"
)

func TestReadmeSnippetsAreCompiledExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("example_*test.go")
	require.NoError(t, err)
	var examples string
	for _, file := range files {
		examples += unindented(read(t, file))
	}
	pages := read(t, "README.md") + read(t, "docs/stores.md")
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(pages, -1)
	require.NotEmpty(t, snippets)
	for _, snippet := range snippets {
		if strings.HasPrefix(snippet[1], "package main") {
			requireProgram(t, snippet[1])
			continue
		}
		require.Contains(t, examples, "\n"+unindented(snippet[1]))
	}
}

// requireProgram fails if a program is not formatted, or does not compile.
func requireProgram(t *testing.T, program string) {
	t.Helper()
	formatted, err := format.Source([]byte(program))
	require.NoError(t, err)
	require.Equal(t, string(formatted), program)
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The type of a problem is a URL that leads to its row in the README.
func TestReadmeHasAnAnchorForEveryProblem(t *testing.T) {
	t.Parallel()
	codes := regexp.MustCompile(`Code: "(.*?)"`).FindAllStringSubmatch(read(t, "errors.go"), -1)
	require.NotEmpty(t, codes)
	for _, code := range codes {
		require.Regexp(t, `<a name="`+code[1]+`"></a>.*\d{3} .`+code[1], read(t, "README.md"))
	}
}

func TestReadmeListsEveryOption(t *testing.T) {
	t.Parallel()
	for _, option := range reflect.VisibleFields(reflect.TypeFor[idempotency.Options]()) {
		require.Contains(t, read(t, "README.md"), "\n| `"+option.Name+"` |")
	}
}

// What the pages on security and guarantees promise is shown by tests that exist.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	folders := []string{
		".", "cmd/idempotency", "cmd/idempotency-proxy", "examples", "idempotencytest", "internal/*", "internal/proof/*", "mysqlstore", "pgxstore",
		"sqlitestore",
	}
	for _, folder := range folders {
		files, err := filepath.Glob(folder + "/*_test.go")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			tests.WriteString(read(t, file))
		}
	}
	for _, page := range []string{"docs/security.md", "docs/guarantees.md"} {
		names := regexp.MustCompile("`((?:Test|Fuzz|Example)[A-Z].*?)`").FindAllStringSubmatch(read(t, page), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.True(t, strings.Contains(tests.String(), "\nfunc "+name[1]+"("), "no %s", name[1])
		}
	}
}

// Each block of code in the tutorial stands in the file that is named above it.
func TestStoreTutorialShowsTheCode(t *testing.T) {
	t.Parallel()
	blocks := shownCode(t, "docs/store.md", "go|sql")
	require.Len(t, blocks, strings.Count(read(t, "docs/store.md"), "\n```")/2, "a block in another language")
	for _, block := range blocks {
		require.Contains(t, "\n"+read(t, block.file)+"\n", "\n"+block.code, block.file)
	}
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

// What is in italics in the tutorial are cases of the conformance suite.
func TestStoreTutorialNamesCases(t *testing.T) {
	t.Parallel()
	var suite strings.Builder
	files, err := filepath.Glob("idempotencytest/*.go")
	require.NoError(t, err)
	for _, file := range files {
		suite.WriteString(read(t, file))
	}
	names := regexp.MustCompile(`[ (]\*([A-Za-z][^*\n]*)\*[ ,.)]`).FindAllStringSubmatch(read(t, "docs/store.md"), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, suite.String(), `name: "`+name[1]+`"`)
	}
}

// The files that the tutorial has copied into another module can be built there.
func TestStoreTutorialCopiesWhatCanBeBuilt(t *testing.T) {
	t.Parallel()
	files := []string{"internal/sqlstore/row.go", "internal/sqlstore/lease.go"}
	for _, file := range files {
		require.Contains(t, read(t, "docs/store.md"), "(../"+file+")")
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range parsed.Imports {
			require.NotContains(t, imported.Path.Value, "internal")
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"vet"}, files...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// Links of the pages lead to files that are there, and to their headings.
func TestPagesLinkToWhatIsThere(t *testing.T) {
	t.Parallel()
	pages := []string{"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "*/README.md", "*/*/README.md"} {
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
			_, err := os.Stat(file)
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

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

func unindented(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}
