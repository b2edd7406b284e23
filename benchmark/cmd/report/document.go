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
	d.head(r.machine, a, quick)
	d.goals(r.goals())
	d.gates(r)
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

// table writes a table. Columns but the first are aligned to the right.
func (d *document) table(head []string, rows [][]string) {
	d.line("| %s |", strings.Join(head, " | "))
	d.line("|---%s|", strings.Repeat("|--:", len(head)-1))
	for _, row := range rows {
		d.line("| %s |", strings.Join(row, " | "))
	}
	d.line("")
}

func (d *document) head(m machine, a amount, quick bool) {
	d.paragraph("# Benchmarks")
	d.paragraph("This page is written by `go run ./benchmark/cmd/report`, which runs all of it again. " +
		"[Allocations](allocations.md) " +
		"says what each remaining allocation is for.")
	if quick {
		d.paragraph("**Quick mode: few rounds and small sizes. These figures are a first impression only.**")
	}
	d.table([]string{"", ""}, [][]string{
		{"Date", time.Now().UTC().Format(time.DateOnly)},
		{"Processor", m.cpu},
		{"Memory", m.memory},
		{"Software", goVersion() + ", Redis " + m.redis + ", PostgreSQL " + m.postgres},
		{"Compared", m.modules},
		{"Rounds", fmt.Sprint(a.rounds)},
	})
	d.paragraph("Clients, servers and the subjects share one machine over loopback. A ratio is the median of the ratios " +
		"of two short batches that ran in the same round; the quartiles stand behind it in brackets. Times alone " +
		"depend on the machine and on what else it does. Allocations, commands, round trips and WAL are counted and " +
		"exact. Every batch checks how often the handler ran, and compares replays byte for byte.")
}

func (d *document) goals(goals []goal) {
	d.paragraph("## Goals")
	var rows [][]string
	for _, g := range goals {
		rows = append(rows, []string{g.what, escape(g.want), g.measured, yesNo(g.met)})
	}
	d.table([]string{"Path", "Goal", "Measured", "Met"}, rows)
}

func (d *document) gates(r *results) {
	d.paragraph("## Gates")
	d.paragraph("The tests of the benchmark module fail above the limit; the target is where it is to come down to.")
	var rows [][]string
	for _, g := range bm.Gates {
		measured := "-"
		if exact, ok := r.exactly(g.Subject, g.Path, g.Work); ok {
			measured = number(g.Of.Of(exact))
		}
		what := fmt.Sprintf("%s, %s, %s", g.Subject.Name, g.Path, g.Work)
		rows = append(rows, []string{what, string(g.Of), measured, number(g.Limit), number(g.Target)})
	}
	d.table([]string{"Path", "Quantity", "Measured", "Limit", "Target"}, rows)
}

func (d *document) overhead(r *results) {
	d.paragraph("## Time beside the floor")
	d.paragraph("![Time of each library relative to the floor](overhead.svg)")
	var rows [][]string
	for _, q := range quoted {
		rows = append(rows, []string{q.name + " " + q.version, number(q.first), number(q.replay), q.allocs, q.lacks})
	}
	d.paragraph("Libraries that are not imported here are quoted from a run of the same works with the same method, on " +
		"2026-11-20 on another machine (2 vCPU AMD EPYC, Go 1.26.8):")
	d.table([]string{"Quoted", "First", "Replay", "Allocs first / replay", "Does less"}, rows)
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
			for i := range m.Subjects {
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
		"execution in memory is measured in a store whose maps do not grow, as in one from which as much expires as comes in.")
	var rows [][]string
	for _, row := range r.exact {
		cells := []string{row.subject.Name, string(row.path), row.work.String(), fmt.Sprint(row.Allocs), fmt.Sprint(row.Bytes)}
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
	d.paragraph("Requests arrive at a fixed rate over HTTP, whether or not the server keeps up, and are timed from when " +
		"they were due: time in a queue counts. Each fifth one repeats an earlier key.")
	d.paragraph("![Latency under load](latency.svg)")
	var rows [][]string
	for _, l := range r.loads {
		rows = append(rows, []string{l.subject.Name, fmt.Sprint(l.rate),
			duration(l.P50), duration(l.P99), duration(l.P999), duration(l.Max)})
	}
	d.table([]string{"Subject", "Requests a second", "p50", "p99", "p99.9", "Worst"}, rows)
}

func (d *document) growth(r *results) {
	d.paragraph("## Growth")
	d.paragraph("### Memory store")
	d.paragraph("![Memory store: cost against size](growth-memory.svg)")
	var rows [][]string
	for _, g := range r.memory {
		rows = append(rows, append(growthCells(g), duration(g.Worst), duration(g.Collect), fmt.Sprintf("%.3f s", g.GCSeconds)))
	}
	d.table(append(growthHead, "Slowest insert", "A garbage collection", "Its processor time"), rows)
	d.paragraph("With %d records alive, %d a second coming in and as many expiring:", r.steady.Live, r.steady.Rate)
	s := r.steady
	d.table([]string{"p50", "p99", "p99.9", "p99.99", "Worst", "Processors for garbage collection"}, [][]string{
		{duration(s.P50), duration(s.P99), duration(s.P999), duration(s.P9999), duration(s.Max), number(s.GCShare)}})
	d.grown("Redis", "redis", "The content is what the name and the value of the Redis key hold.", r.redis)
	d.grown("PostgreSQL", "postgres", "With indexes, and with the room that the fill factor leaves. Every commit "+
		"reaches the disk.", r.postgres)
}

var growthHead = []string{"Records", "Bytes a record", "Content", "First", "Replay"}

func (d *document) grown(title, file, note string, all []bm.Growth) {
	d.paragraph("### %s", title)
	d.paragraph("%s", note)
	d.paragraph("![%s: cost against size](growth-%s.svg)", title, file)
	var rows [][]string
	for _, g := range all {
		rows = append(rows, growthCells(g))
	}
	d.table(growthHead, rows)
}

func growthCells(g bm.Growth) []string {
	return []string{fmt.Sprint(g.Records), number(g.Stored), number(g.Content), duration(g.First), duration(g.Replay)}
}

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
