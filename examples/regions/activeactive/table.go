package activeactive

import (
	"fmt"
	"strings"
	"time"
)

// operations are as many as each number of the table is of.
const operations = 100_000

// Table returns the table of README.md.
func Table() string {
	var table strings.Builder
	table.WriteString("| replication takes | cut off | retry after 100 ms | and clocks differ by 2 s " +
		"| retry after 1 s | and clocks differ by 2 s | one home |\n|---|---|---|---|---|---|---|\n")
	for _, delay := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		for _, partition := range []float64{0, 0.01, 1} {
			fmt.Fprintf(&table, "| %d ms | %g %% of the time |%s\n", delay.Milliseconds(), 100*partition, cells(delay, partition))
		}
	}
	return table.String()
}

func cells(delay time.Duration, partition float64) (cells string) {
	setting := Setting{Delay: delay, Partition: partition}
	for _, setting.Retry = range []time.Duration{100 * time.Millisecond, time.Second} {
		for _, setting.Skew = range []time.Duration{0, 2 * time.Second} {
			cells += fmt.Sprintf(" %d |", Twice(setting, operations))
		}
	}
	setting.OneHome = true
	return cells + fmt.Sprintf(" %d |", Twice(setting, operations))
}
