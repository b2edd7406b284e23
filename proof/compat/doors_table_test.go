package compat_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var writeTable = flag.Bool("write", false, "write the tables of docs, and testdata/peers.tsv")

const (
	tableBegin = "<!-- written by proof/compat -->\n"
	tableEnd   = "<!-- end -->\n"
)

// The table has the results of TestDoors.
func TestFrameworksTable(t *testing.T) {
	t.Parallel()
	requireTable(t, "../../docs/frameworks.md", frameworksTable())
}

// requireTable compares table with the table between the markers of a page, or writes table there if -write is set.
func requireTable(t *testing.T, file, table string) {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(page), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	require.True(t, begins && ends, "the markers are gone")
	want := before + tableBegin + table + tableEnd + after
	if *writeTable {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "write the table anew: go test -run %s -write", t.Name())
}

// frameworksTable returns a table with one line for all kinds of answers with the same fate of a retry.
func frameworksTable() string {
	var fates []string // in the order of the table's lines
	kindsByFate := make(map[string][]string)
	for _, k := range kinds {
		described := describeFate(k)
		if kindsByFate[described] == nil {
			fates = append(fates, described)
		}
		kindsByFate[described] = append(kindsByFate[described], string(k))
	}
	var table strings.Builder
	line(&table, "the handler's way to answer", "a retry")
	line(&table, "---", "---")
	for _, described := range fates {
		line(&table, strings.Join(kindsByFate[described], ", "), described)
	}
	return "\n" + table.String() + "\n"
}

// describeFate describes the fate of a retry after all ways of kind k: first for most frameworks, and then for each
// framework that differs.
func describeFate(k kind) string {
	frameworksByCell := make(map[string][]string)
	for _, open := range doors {
		if d := open(); d.has(k) {
			name, _, _ := strings.Cut(d.name, ",")
			frameworksByCell[d.cell(k)] = append(frameworksByCell[d.cell(k)], name)
		}
	}
	cells := slices.SortedFunc(maps.Keys(frameworksByCell), func(a, b string) int {
		return cmp.Or(len(frameworksByCell[b])-len(frameworksByCell[a]), cmp.Compare(a, b))
	})
	described := cells[0]
	for _, cell := range cells[1:] {
		described += "; " + cell + " with " + strings.Join(frameworksByCell[cell], ", ")
	}
	return described
}

// has reports whether the framework has a way of kind k.
func (d door) has(k kind) bool {
	return slices.ContainsFunc(d.ways, func(w way) bool { return w.kind == k })
}

func line(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// cell describes the fate of a retry after all ways of kind k. The framework has at least one such way.
func (d door) cell(k kind) string {
	found := make(map[fate]bool)
	for _, w := range d.ways {
		if w.kind == k {
			found[w.retry] = true
		}
	}
	switch {
	case found[replayed] && found[runsAgain]:
		return "by status"
	case found[replayed]:
		return string(replayed)
	default:
		return string(runsAgain)
	}
}
