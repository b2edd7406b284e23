package documents_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The rows of the page's tables and the entries of shown.tsv match each other. Each entry names existing tests or
// existing cases of a suite. The page itself names no tests.
func TestGuaranteesAreShown(t *testing.T) {
	t.Parallel()
	page := readFile(t, "docs/guarantees.md")
	require.NotRegexp(t, `\b(Test|Fuzz)[A-Z]`, page)
	require.Equal(t, findFirstCells(page), readShownRows(t, "proof/guarantees/shown.tsv"), "in the same order")
}

// readShownRows returns the first column of a file that names, in its second column, the tests of each row. All named
// tests must exist.
func readShownRows(t *testing.T, file string) (rows []string) {
	t.Helper()
	tests := findTests(t)
	for line := range strings.Lines(readFile(t, file)) {
		row, names, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		require.True(t, found, line)
		rows = append(rows, row)
		for name := range strings.SplitSeq(names, ", ") {
			require.True(t, tests[name], "%s: no %q", row, name)
		}
	}
	return rows
}

// The page explains each state of a record.
func TestGuaranteesExplainStates(t *testing.T) {
	t.Parallel()
	cells := findFirstCells(readFile(t, "docs/guarantees.md"))
	states := regexp.MustCompile(`\n\tState\w+ +State = "(\w+)"`).FindAllStringSubmatch(readFile(t, "inspect.go"), -1)
	require.NotEmpty(t, states)
	for _, state := range states {
		require.Contains(t, cells, "`"+state[1]+"`")
	}
}

// The tests that pages name exist.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	tests := findTests(t)
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	count := 0
	for _, page := range append(pages, "CONTRIBUTING.md", "proof/guarantees/README.md", "proof/compat/README.md") {
		names := regexp.MustCompile("`((?:Test|Fuzz|Example)[A-Z].*?)`").FindAllStringSubmatch(readFile(t, page), -1)
		count += len(names)
		for _, name := range names {
			require.True(t, tests[name[1]], "%s: no %s", page, name[1])
		}
	}
	require.NotZero(t, count)
}

// findTests returns the names of all tests of the repository. The cases of the suites in package
// idempotencytest have names like "Run/takeover".
func findTests(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, "_test.go") {
			for _, match := range function.FindAllStringSubmatch(readFile(t, file), -1) {
				names[match[1]] = true
			}
		}
		return err
	})
	require.NoError(t, err)
	for suite, files := range map[string]string{
		"Run":          "claim identity lease fencing settle expiry",
		"RunSteps":     "steps",
		"RunTxSteps":   "txsteps",
		"RunInspector": "inspect listing forget",
	} {
		for file := range strings.FieldsSeq(files) {
			cases := regexp.MustCompile(`(?m)^\tname: "(.*)",$`).FindAllStringSubmatch(readFile(t, "idempotencytest/"+file+".go"), -1)
			require.NotEmpty(t, cases, file)
			for _, match := range cases {
				names[suite+"/"+match[1]] = true
			}
		}
	}
	return names
}

// findFirstCells returns the first cell of each row of the tables in page, without the table heads.
func findFirstCells(page string) (cells []string) {
	isBody := false
	for line := range strings.Lines(page) {
		switch {
		case !strings.HasPrefix(line, "|"):
			isBody = false
		case strings.HasPrefix(line, "|---"):
			isBody = true
		case isBody:
			cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			cells = append(cells, cell)
		}
	}
	return cells
}
