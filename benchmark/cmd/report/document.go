package main

import (
	"fmt"
	"strings"
	"time"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// document returns the report as Markdown.
func (r *results) document(a amount, quick bool) string {
	d := &document{}
	d.head(r, a, quick)
	d.goals(r)
	d.overhead(r)
	d.comparisons(r)
	d.exact(r)
	d.completions(r)
	d.latency(r)
	d.growth(r)
	d.subjects()
	return d.String()
}

// document is Markdown in the making.
type document struct{ strings.Builder }

func (d *document) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// paragraph is a line with an empty one behind it.
func (d *document) paragraph(format string, args ...any) { d.line(format+"\n", args...) }

// table writes a table, unless there is nothing in it.
func (d *document) table(head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	d.line("| %s |", strings.Join(head, " | "))
	d.line("|%s", strings.Repeat("---|", len(head)))
	for _, row := range rows {
		d.line("| %s |", strings.Join(row, " | "))
	}
	d.line("")
}

func (d *document) head(r *results, a amount, quick bool) {
	d.paragraph("# Benchmarks")
	d.paragraph("This page, its plots and the [profiles](profiles.md) are written by")
	d.paragraph("    go run ./benchmark/cmd/report")
	d.paragraph("which measures everything again, on private servers that it starts. [Allocations](allocations.md) " +
		"says what each remaining allocation is for.")
	if quick {
		d.paragraph("**Quick mode: few rounds and small sizes. These figures are a first impression only.**")
	}
	d.table([]string{"", ""}, [][]string{
		{"Date", time.Now().UTC().Format(time.DateOnly)},
		{"Processor", r.machine.cpu},
		{"Memory", r.machine.memory},
		{"Software", goVersion() + ", Redis " + r.machine.redis + ", PostgreSQL " + r.machine.postgres},
		{"Compared", r.machine.modules},
		{"Rounds", fmt.Sprint(a.rounds)},
		{"The run took", r.took.Round(time.Second).String()},
	})
	d.paragraph("Clients, servers and the subjects share one machine over loopback. A ratio is the median of the " +
		"ratios of two short batches that ran in the same round; the quartiles stand behind it in brackets. Times " +
		"alone depend on the machine and on what else it does; those here are the shortest of all rounds. Allocations, " +
		"commands, round trips and WAL are counted and exact. Every batch checks how often the handler ran, and " +
		"compares replays byte for byte.")
}

func (d *document) goals(r *results) {
	d.paragraph("## Goals")
	d.paragraph("Requests of 256 B and answers of 200 B where nothing else is said. Tests hold the exact figures; " +
		"no test depends on time.")
	var rows [][]string
	for _, g := range goals {
		if row, ok := g.row(r); ok {
			rows = append(rows, row)
		}
	}
	d.table([]string{"Path", "Goal", "Measured", "Met"}, rows)
}

func (d *document) overhead(r *results) {
	d.paragraph("## In memory, beside the floor")
	d.paragraph("The floor is the least that the contract could cost: read and hash the body, claim the key in a " +
		"sharded map, record the answer, send it.")
	d.paragraph("![Time of each library relative to the floor](overhead.svg)")
	d.table(r.summary())
	d.paragraph("%s", quotedFrom)
}

func (d *document) comparisons(r *results) {
	d.paragraph("## Comparisons")
	for _, m := range bm.Matrices {
		d.paragraph("### %s", m.Title)
		d.paragraph("%s", m.Note)
		head := []string{"Scenario"}
		for _, s := range m.Subjects {
			head = append(head, s.Name)
		}
		var rows [][]string
		for _, c := range r.comparisons {
			if c.matrix.Title != m.Title {
				continue
			}
			row := []string{c.scenario.String()}
			for i := range c.matrix.Subjects {
				row = append(row, c.cell(i))
			}
			rows = append(rows, row)
		}
		d.table(head, rows)
	}
}

// cell is the ratio and the best time, or rate.
func (c comparison) cell(i int) string {
	best, ratio := c.Best(i), c.Ratio(i, 0)
	value := duration(best)
	if c.matrix.Rate {
		value = rate(best)
		ratio = bm.Ratio{Median: 1 / ratio.Median, Low: 1 / ratio.High, High: 1 / ratio.Low}
	}
	if i == 0 {
		return "1 · " + value
	}
	return fmt.Sprintf("**%s** (%s-%s) · %s", number(ratio.Median), number(ratio.Low), number(ratio.High), value)
}

func (d *document) exact(r *results) {
	d.paragraph("## Allocations, commands, round trips, WAL")
	d.paragraph("For one request. The handler allocates nothing; the client of the store is included. A first " +
		"execution in memory is measured in a store whose maps do not grow, as in one from which as much expires as " +
		"comes in.")
	var rows [][]string
	for _, row := range r.exact {
		cells := []string{
			row.subject.Name, string(row.path), row.work.String(), fmt.Sprint(row.Allocs), fmt.Sprint(row.Bytes),
		}
		if row.subject.Store == bm.InMemory {
			cells = append(cells, "", "", "")
		} else {
			cells = append(cells, number(row.Commands), number(row.RoundTrips), number(row.WAL))
		}
		if row.subject.Store == bm.InPostgres {
			cells[5] = ""
		}
		if row.subject.Store == bm.InRedis {
			cells[7] = ""
		}
		rows = append(rows, cells)
	}
	d.table([]string{"Subject", "Path", "Work", "Allocs", "Bytes", "Redis commands", "Round trips", "WAL bytes"}, rows)
}

func (d *document) completions(r *results) {
	d.paragraph("## Completion in Redis")
	d.paragraph("Storing an answer under its token, compared with a SET of as many bytes that looks at nothing.")
	var rows [][]string
	for _, c := range r.completions {
		rows = append(rows, []string{c.Work.String(), number(c.Ratio), duration(c.Server)})
	}
	d.table([]string{"Answer", "Time beside SET", "Server, a call"}, rows)
}

func (d *document) latency(r *results) {
	d.paragraph("## Latency under load")
	d.paragraph("Requests arrive at a fixed rate over HTTP, whether or not the server keeps up, and are timed from " +
		"when they were due: time in a queue counts. Each fifth one repeats an earlier key.")
	d.paragraph("![Latency under load](latency.svg)")
	var rows [][]string
	for _, l := range r.loads {
		rows = append(rows, []string{l.subject.Name, fmt.Sprint(l.rate),
			duration(l.P50), duration(l.P99), duration(l.P999), duration(l.Max)})
	}
	d.table([]string{"Subject", "Requests a second", "p50", "p99", "p99.9", "Worst"}, rows)
}

// subjects says what those that are compared leave out.
func (d *document) subjects() {
	d.paragraph("## What others leave out")
	var rows [][]string
	seen := make(map[string]bool)
	for _, m := range bm.Matrices {
		for _, s := range m.Subjects {
			if s.Lacks != "" && !seen[s.Name] {
				seen[s.Name] = true
				rows = append(rows, []string{s.Name, s.Lacks})
			}
		}
	}
	d.table([]string{"Subject", "Does less"}, rows)
}
