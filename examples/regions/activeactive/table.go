package activeactive

import (
	"fmt"
	"strings"
	"time"
)

// operationsPerCell is the number of simulated operations for each number of the table.
const operationsPerCell = 100_000

// Table returns the table of README.md.
func Table() string {
	var table strings.Builder
	table.WriteString("| replication takes | cut off | retry after 100 ms | and clocks differ by 2 s " +
		"| retry after 1 s | and clocks differ by 2 s | one home |\n|---|---|---|---|---|---|---|\n")
	for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		for _, partition := range []float64{0, 0.01, 1} {
			cells := formatCells(delay, partition)
			fmt.Fprintf(&table, "| %d ms | %g %% of the time |%s\n", delay.Milliseconds(), 100*partition, cells)
		}
	}
	return table.String()
}

// formatCells returns the numbers of a row.
func formatCells(delay time.Duration, partition float64) (cells string) {
	setting := Setting{ReplicationDelay: delay, PartitionShare: partition}
	for _, setting.RetryDelay = range []time.Duration{100 * time.Millisecond, time.Second} {
		for _, setting.ClockSkew = range []time.Duration{0, 2 * time.Second} {
			cells += fmt.Sprintf(" %d |", CountDoubles(setting, operationsPerCell))
		}
	}
	setting.OneHome = true
	return cells + fmt.Sprintf(" %d |", CountDoubles(setting, operationsPerCell))
}
