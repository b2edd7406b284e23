package compat_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var writeTable = flag.Bool("write", false, "write the table of docs/frameworks.md")

const (
	tableBegin = "<!-- written by proof/compat -->\n"
	tableEnd   = "<!-- end -->\n"
)

// The table says what TestDoors shows.
func TestFrameworksTable(t *testing.T) {
	t.Parallel()
	requireTable(t, "../../docs/frameworks.md", frameworksTable())
}

// requireTable compares a table with the one that a page has between its markers, or writes it there.
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

// frameworksTable returns a table with one line for each framework.
func frameworksTable() string {
	var table strings.Builder
	line(&table, append([]string{"framework"}, names(kinds)...)...)
	line(&table, slices.Repeat([]string{"---"}, len(kinds)+1)...)
	for _, open := range doors {
		d := open()
		cells := []string{d.name}
		for _, k := range kinds {
			cells = append(cells, d.cell(k))
		}
		line(&table, cells...)
	}
	return "\n" + table.String() + "\n"
}

func line(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

func names[T ~string](values []T) []string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// cell says what becomes of a retry after all the ways of a kind.
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
	case found[runsAgain]:
		return string(runsAgain)
	default:
		return "–"
	}
}
