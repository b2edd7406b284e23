package compat_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const comparisonPage = "../../docs/comparison.md"

// readMark ends the names of the rows and columns of docs/comparison.md that were taken from source code or documentation.
const readMark = " (read)"

// measuredCells has a function for each row of docs/comparison.md that the probe measures. The function returns the cell
// for the results of one library by check, all of them with the same options.
var measuredCells = map[string]func(results map[string]measuredRow) string{
	"duplicate while the first runs": func(results map[string]measuredRow) string {
		return results["while-running"].decision("while-running")
	},
	"key belongs to one user": func(results map[string]measuredRow) string {
		return describeStray(results["other-user"], "yes", "no")
	},
	"same key, another path": func(results map[string]measuredRow) string {
		return describeStray(results["other-route"], "new operation", "stored answer")
	},
	"same key, another body": func(results map[string]measuredRow) string {
		return describeStray(results["other-content"], "new operation", "stored answer")
	},
	"a 503 is stored":       describeFailure,
	"client hangs up":       describeHangUp,
	"probe's checks failed": countFailures,
}

// decision returns the decision of that name, or "" if there is none.
func (r measuredRow) decision(name string) string {
	for decision := range strings.SplitSeq(r.decisions, ", ") {
		if value, ok := strings.CutPrefix(decision, name+"="); ok {
			return value
		}
	}
	return ""
}

// describeStray describes what a stray request gets: executed, a status, or with a failed check the stored answer.
func describeStray(row measuredRow, executed, storedAnswer string) string {
	decision := row.decision(row.check)
	switch {
	case row.status == "failed":
		return storedAnswer
	case decision == "executed":
		return executed
	}
	return decision
}

// describeFailure relies on paymentService, which executes a failed request at the second try.
func describeFailure(results map[string]measuredRow) string {
	row := results["failed-request"]
	switch {
	case row.status == "failed":
		return "no, then 409"
	case row.decision(row.check) == "free":
		return "no"
	case row.check == "":
		return ""
	}
	return "yes"
}

// describeHangUp describes what a retry gets after the client left, at once or later.
func describeHangUp(results map[string]measuredRow) string {
	var fates []string
	for _, check := range []string{"cut-after-request", "client-timeout"} {
		row, fate := results[check], "answer stored"
		switch {
		case row.check == "":
			continue
		case strings.Contains(row.finding, "acted"):
			fate = "runs again"
		case strings.Contains(row.finding, "blocked"):
			fate = "409"
		}
		if !slices.Contains(fates, fate) {
			fates = append(fates, fate)
		}
	}
	return strings.Join(fates, ", or ")
}

func countFailures(results map[string]measuredRow) string {
	if results["replay"].check == "" {
		return "" // options with which some checks only were made
	}
	failed := 0
	for _, row := range results {
		if row.status == "failed" {
			failed++
		}
	}
	return fmt.Sprintf("%d of %d", failed, len(results))
}

// TestComparisonTable shows that both tables of other libraries in docs/comparison.md have the measured versions and results,
// or writes them if -write is set. Other cells stay as they are.
func TestComparisonTable(t *testing.T) {
	t.Parallel()
	rows := readMeasuredRows(t)
	page, err := os.ReadFile(comparisonPage)
	require.NoError(t, err)
	want := changeTable(t, string(page), "| | this library |", func(lines []string) { fillColumns(t, rows, lines) })
	want = changeTable(t, want, "| | a crash blocks", func(lines []string) { fillLines(t, rows, lines) })
	if *writeTable {
		require.NoError(t, os.WriteFile(comparisonPage, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "write the table anew: go test -run TestComparisonTable -write")
}

// changeTable returns page after change has changed the lines of the table that begins with start.
func changeTable(t *testing.T, page, start string, change func(lines []string)) string {
	t.Helper()
	before, rest, found := strings.Cut(page, "\n"+start)
	require.True(t, found, start)
	table, after, found := strings.Cut(start+rest, "\n\n")
	require.True(t, found, start)
	lines := strings.Split(table, "\n")
	change(lines)
	return before + "\n" + strings.Join(lines, "\n") + "\n\n" + after
}

// fillColumns writes the measured cells of the table that has a column for each library.
func fillColumns(t *testing.T, rows []measuredRow, lines []string) {
	t.Helper()
	header := splitCells(lines[0])
	libraries := []string{"", "this library"}
	for i, cell := range header[2:] {
		named, library := nameVersion(t, rows, cell)
		header[2+i] = named
		libraries = append(libraries, library)
	}
	lines[0] = joinCells(header)
	measured := 0
	for i, line := range lines[2:] {
		cells := splitCells(line)
		describe, isMeasured := measuredCells[cells[0]]
		assert.True(t, isMeasured || strings.HasSuffix(cells[0], readMark), "%s was not measured", cells[0])
		for column := range cells {
			if isMeasured && column > 0 && findVersion(rows, libraries[column]) != "" {
				cells[column] = describeWithOptions(rows, libraries[column], describe)
			}
		}
		if isMeasured {
			measured++
		}
		lines[2+i] = joinCells(cells)
	}
	assert.Equal(t, len(measuredCells), measured, "each measured row is in the table")
}

// fillLines writes the measured cells of the table that has a line for each library.
func fillLines(t *testing.T, rows []measuredRow, lines []string) {
	t.Helper()
	header := splitCells(lines[0])
	for i, line := range lines[2:] {
		cells := splitCells(line)
		named, library := nameVersion(t, rows, cells[0])
		cells[0] = named
		for column, title := range header[1:] {
			describe, isMeasured := measuredCells[title]
			assert.True(t, isMeasured || strings.HasSuffix(title, readMark), "%s was not measured", title)
			if isMeasured && findVersion(rows, library) != "" {
				cells[1+column] = describeWithOptions(rows, library, describe)
			}
		}
		lines[2+i] = joinCells(cells)
	}
}

// nameVersion returns cell with the version that was measured, and the library, which is the first word of cell. The cell of a
// library that was not measured stays as it is, and must end with readMark.
func nameVersion(t *testing.T, rows []measuredRow, cell string) (named, library string) {
	t.Helper()
	library, _, _ = strings.Cut(cell, " ")
	if version := findVersion(rows, library); version != "" {
		return library + " " + version, library
	}
	assert.True(t, strings.HasSuffix(cell, readMark), "%s was not measured", cell)
	return cell, library
}

// describeWithOptions returns the cell for the defaults of a library, and what its options change.
func describeWithOptions(rows []measuredRow, library string, describe func(map[string]measuredRow) string) string {
	var cell string
	resultsByOptions := make(map[string]map[string]measuredRow)
	var order []string
	for _, row := range rows {
		if row.library != library || row.status == "not made" {
			continue
		}
		if resultsByOptions[row.options] == nil {
			resultsByOptions[row.options] = make(map[string]measuredRow)
			order = append(order, row.options)
		}
		name := row.check
		if row.instances != "1" {
			name += " with " + row.instances
		}
		resultsByOptions[row.options][name] = row
	}
	for _, options := range order {
		described := describe(resultsByOptions[options])
		switch {
		case options == "":
			cell = described
		case described != "" && described != cell:
			cell += fmt.Sprintf("; %s with `%s`", described, options)
		}
	}
	return cell
}

// findVersion returns the version of a library that was measured, or "".
func findVersion(rows []measuredRow, library string) string {
	for _, row := range rows {
		if row.library == library {
			return row.version
		}
	}
	return ""
}

func splitCells(line string) (cells []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		cells = append(cells, strings.TrimSpace(cell))
	}
	return cells
}

func joinCells(cells []string) string {
	return strings.ReplaceAll("| "+strings.Join(cells, " | ")+" |", "|  |", "| |")
}
