package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The page, the plot that it shows, and what stands before and after the table of counts there.
const (
	page   = "proof/guarantees/README.md"
	plot   = "docs/soak.svg"
	before = "<!-- The table is written by: go run ./proof/guarantees/cmd/prove -write -->\n"
	after  = "<!-- End of the table. -->\n"
)

const tableHead = "| proof | what it tries | what was done | minutes |\n|---|---|---|---|\n"

// table returns the results in Markdown.
func table(results []*result) string {
	var text strings.Builder
	text.WriteString(tableHead)
	for _, r := range results {
		text.WriteString(r.row())
	}
	return text.String()
}

func (r *result) row() string {
	done := r.tally.String()
	if r.err != nil {
		done = "FAILED"
	}
	return fmt.Sprintf("| %s | %s | %s | %.1f |\n", r.name, r.what, done, r.took.Minutes())
}

// writePage writes the results into the page.
func writePage(root string, results []*result) error {
	file := filepath.Join(root, page)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := update(string(text), results)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// update returns the text of the page with the rows of these results. Proofs that have not run keep theirs.
func update(text string, results []*result) (string, error) {
	head, rest, begins := strings.Cut(text, before)
	old, tail, ends := strings.Cut(rest, after)
	if !begins || !ends {
		return "", fmt.Errorf("%s: the table has no beginning or no end", page)
	}
	rows := make(map[string]string)
	for line := range strings.Lines(old) {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			rows[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	for _, r := range results {
		rows[r.name] = r.row()
	}
	table := tableHead
	for _, p := range all {
		table += rows[p.name]
	}
	return head + before + "\n" + table + "\n" + after + tail, nil
}
