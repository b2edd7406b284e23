package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	tablePath = "proof/guarantees/last_run.tsv" // the last run of each proof
	plotPath  = "docs/soak.svg"
)

const tableHead = "proof\twhat it tries\twhat was done\tminutes\n"

// formatTable returns the results as tab-separated values.
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
	return fmt.Sprintf("%s\t%s\t%s\t%.1f\n", r.name, r.summary, done, r.runTime.Minutes())
}

// writeTable replaces the rows of results in the file at tablePath.
func writeTable(root string, results []*result) error {
	file := filepath.Join(root, tablePath)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(replaceRows(string(text), results)), 0o644)
}

// replaceRows returns the table with new rows for results. Proofs without a result keep their rows.
func replaceRows(table string, results []*result) string {
	rows := make(map[string]string)
	for line := range strings.Lines(table) {
		name, _, _ := strings.Cut(line, "\t")
		rows[name] = line
	}
	for _, r := range results {
		rows[r.name] = r.formatRow()
	}
	replaced := tableHead
	for _, p := range allProofs {
		replaced += rows[p.name]
	}
	return replaced
}
