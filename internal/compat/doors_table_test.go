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
	frameworksFile = "../../docs/frameworks.md"
	tableBegin     = "<!-- written by internal/compat -->\n"
	tableEnd       = "<!-- end -->\n"
)

// The table says what TestDoors shows.
func TestFrameworksTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(frameworksFile)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(doc), tableBegin)
	_, after, ends := strings.Cut(rest, tableEnd)
	require.True(t, begins && ends, "the markers are gone")
	want := before + tableBegin + frameworksTable() + tableEnd + after
	if *writeTable {
		require.NoError(t, os.WriteFile(frameworksFile, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(doc), "write the table anew: go test -run TestFrameworksTable -write")
}

// frameworksTable returns a table with one line for each framework, and one with a line for each way.
func frameworksTable() string {
	var table, list strings.Builder
	line(&table, append([]string{"framework"}, names(kinds)...)...)
	line(&table, slices.Repeat([]string{"---"}, len(kinds)+1)...)
	line(&list, "framework", "kind", "way", "a retry")
	line(&list, slices.Repeat([]string{"---"}, 4)...)
	for _, open := range doors {
		d := open()
		cells := []string{d.name}
		for _, k := range kinds {
			cells = append(cells, d.cell(k))
		}
		line(&table, cells...)
		for _, w := range d.ways {
			line(&list, d.name, string(w.kind), "`"+strings.ReplaceAll(w.name, "|", `\|`)+"`", string(w.retry))
		}
	}
	return "\n" + table.String() + "\nEvery way that was tried:\n\n" + list.String() + "\n"
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
