package main

import (
	"fmt"
	"slices"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

func (d *document) growth(r *results) {
	d.paragraph("## Growth")
	d.memory(r.memory)
	d.steady(r.steady)
	d.server("Redis", "growth-redis.svg", "The content is what name and value of the Redis key hold. Redis needs at "+
		"least 90 B more: two entries of its hash tables, their pointers, an object and the heads of two strings.", r.redis)
	d.server("PostgreSQL", "growth-postgres.svg", "With indexes, and with the room that the fill factor leaves. Every "+
		"commit reaches the disk.", r.postgres)
}

var growthHead = []string{"Records", "Bytes a record", "Content", "First", "Replay"}

func growthCells(g bm.Growth) []string {
	content := number(g.Content)
	if g.Least > 0 {
		content += fmt.Sprintf(" (at least %s)", number(g.Least))
	}
	return []string{fmt.Sprint(g.Records), number(g.Stored), content, duration(g.First), duration(g.Replay)}
}

func (d *document) memory(all []bm.Growth) {
	d.paragraph("### Memory store")
	d.paragraph("The slowest insert is told twice: by the clock, which also runs while the machine does something else, " +
		"and by the processor time of its own thread, the part of it that is the store's.")
	d.paragraph("![Memory store: cost against size](growth-memory.svg)")
	var rows [][]string
	for _, g := range all {
		rows = append(rows, append(growthCells(g), duration(g.Worst.Clock), duration(g.Worst.Processor),
			duration(g.Collect), fmt.Sprintf("%.3f s", g.GCSeconds)))
	}
	head := []string{"Slowest insert", "its processor time", "A garbage collection", "its processor time"}
	d.table(slices.Concat(growthHead, head), rows)
}

func (d *document) steady(s bm.Steady) {
	if s.Live == 0 {
		return
	}
	d.paragraph("With %d records alive, %d a second coming in and as many expiring, beside the same loop with a ring of as "+
		"many pieces of memory of the same size in place of the store. What that one shows is due to the machine, "+
		"which has to find the memory, and to the loop. A backlog after a stall is dropped.",
		s.Live, s.Rate)
	row := func(name string, p bm.Paced) []string {
		return []string{name, duration(p.P50), duration(p.P99), duration(p.P999), duration(p.P9999),
			duration(p.Worst.Clock), duration(p.Worst.Processor), number(p.GCShare), fmt.Sprintf("%.1f %%", 100*p.Kept)}
	}
	d.table([]string{"", "p50", "p99", "p99.9", "p99.99", "Worst", "its processor time", "Processors collecting garbage",
		"Rate kept"}, [][]string{row("store", s.Store), row("ring", s.Control)})
}

func (d *document) server(title, plot, note string, all []bm.Growth) {
	d.paragraph("### %s", title)
	d.paragraph("%s The smallest size is filled by requests, larger ones by copies made in the server, which leave no "+
		"dead rows. Requests are sent one after another; beside them is a round trip with nothing to do.", note)
	d.paragraph("![%s: cost against size](%s)", title, plot)
	var rows [][]string
	for _, g := range all {
		rows = append(rows, append(growthCells(g), duration(g.RoundTrip)))
	}
	d.table(append(slices.Clone(growthHead), "Round trip"), rows)
}
