package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The page with the table of counts, the plot on that page, and the lines around the table.
const (
	pagePath   = "proof/guarantees/README.md"
	plotPath   = "docs/soak.svg"
	tableStart = "<!-- The table is written by: go run ./proof/guarantees/cmd/prove -write -->\n"
	tableEnd   = "<!-- End of the table. -->\n"
)

const tableHead = "| proof | what it tries | what was done | minutes |\n|---|---|---|---|\n"

// formatTable returns the results as a table in Markdown.
func formatTable(results []*result) string {
	var text strings.Builder
	text.WriteString(tableHead)
	for _, r := range results {
		text.WriteString(r.formatRow())
	}
	return text.String()
}

func (r *result) formatRow() string {
	done := r.tally.String()
	if r.err != nil {
		done = "FAILED"
	}
	return fmt.Sprintf("| %s | %s | %s | %.1f |\n", r.name, r.summary, done, r.runTime.Minutes())
}

// writePage replaces the rows of results in the page.
func writePage(root string, results []*result) error {
	file := filepath.Join(root, pagePath)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := replaceRows(string(text), results)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// replaceRows returns the text of the page with new rows for results. Proofs without a result keep their rows.
func replaceRows(text string, results []*result) (string, error) {
	head, rest, begins := strings.Cut(text, tableStart)
	old, tail, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return "", fmt.Errorf("%s: the table has no beginning or no end", pagePath)
	}
	rows := make(map[string]string)
	for line := range strings.Lines(old) {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			rows[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	for _, r := range results {
		rows[r.name] = r.formatRow()
	}
	table := tableHead
	for _, p := range allProofs {
		table += rows[p.name]
	}
	return head + tableStart + "\n" + table + "\n" + tableEnd + tail, nil
}
