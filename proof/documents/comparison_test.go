package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each table has a cell for each library in each row, and figures of time stand in the page of the benchmark.
func TestComparisonIsComplete(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/migrating.md")
	_, libraries, found := strings.Cut(page, "\n| library |")
	require.True(t, found)
	libraries, _, _ = strings.Cut(libraries, "\n\n")
	names := regexp.MustCompile(`(?m)^\| \[?([\w' -]+)`).FindAllStringSubmatch(libraries, -1)
	require.Len(t, names, 7)
	tables := regexp.MustCompile(`(?m)^\| \| (.*)\n((?:\|.*\n)+)`).FindAllStringSubmatch(page, -1)
	require.Len(t, tables, 4)
	for _, table := range tables {
		for i, name := range strings.Split(strings.Trim(table[1], " |"), " | ") {
			require.True(t, strings.HasPrefix(names[i][1], name), name)
		}
		for row := range strings.Lines(table[2]) {
			require.Equal(t, 1+len(names), strings.Count(row, "|")-1, row)
		}
	}
	figures := regexp.MustCompile(`\d+\.\d+ ms`).FindAllString(page, -1)
	require.Len(t, figures, 2)
	for _, figure := range figures {
		require.Contains(t, read(t, "proof/benchmark/results/README.md"), figure)
	}
}
