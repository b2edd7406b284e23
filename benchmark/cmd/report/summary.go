package main

import (
	"fmt"
	"os"
	"strings"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// summary returns the table that compares the libraries in a few figures.
func (r *results) summary() (head []string, rows [][]string) {
	head = []string{"", "First", "Replay", "Replay of 1 MiB", "Allocations", "Redis round trips", "Leaves out"}
	const fiberLacks = "fingerprint, scope, lease, token; duplicates in other processes execute"
	for _, s := range []struct {
		name            string
		memory, inRedis bm.Subject
		lacks           string
	}{
		{"this library", bm.Memory, bm.Redis, ""},
		{"gofiber/fiber v2", bm.Fiber2, bm.Fiber2Redis, fiberLacks},
		{"gofiber/fiber v3", bm.Fiber3, bm.Fiber3Redis, fiberLacks},
	} {
		rows = append(rows, []string{s.name, r.besideFloor(s.memory, bm.First, bm.Small),
			r.besideFloor(s.memory, bm.Replay, bm.Small), r.besideFloor(s.memory, bm.Replay, bm.Large),
			r.both(s.memory, bm.Allocs), r.both(s.inRedis, bm.RoundTrips), s.lacks})
	}
	for _, q := range quoted {
		large := "refused"
		if q.largeReplay > 0 {
			large = number(q.largeReplay) + " x"
		}
		rows = append(rows, []string{q.name + " " + q.version + " (quoted)", number(q.first) + " x",
			number(q.replay) + " x", large, q.allocs, q.roundTrips, q.lacks})
	}
	return head, rows
}

func (r *results) besideFloor(s bm.Subject, path bm.Path, work bm.Work) string {
	ratio, ok := r.ratio(s, bm.FloorMemory, bm.Scenario{Path: path, Work: work, Workers: 1})
	if !ok {
		return "-"
	}
	return number(ratio.Median) + " x"
}

// both returns an exact figure of a first execution and of a replay.
func (r *results) both(s bm.Subject, of bm.Quantity) string {
	first, ok1 := r.exactly(s, bm.First, bm.Small)
	again, ok2 := r.exactly(s, bm.Replay, bm.Small)
	if !ok1 || !ok2 {
		return "-"
	}
	return fmt.Sprintf("%s / %s", number(of.Of(first)), number(of.Of(again)))
}

// What the report writes into the README stands between these lines.
const (
	sectionBegin = "<!-- benchmarks: written by go run ./benchmark/cmd/report -->\n"
	sectionEnd   = "<!-- /benchmarks -->\n"
)

// section returns what the README shows.
func (r *results) section(dir string) string {
	d := &document{}
	d.line("")
	d.paragraph("![Time of each library relative to the floor](%s/overhead.svg)", dir)
	d.paragraph("Time in memory relative to the floor, the least that the contract could cost; allocations and " +
		"round trips of a first execution / a replay; requests of 256 B, answers of 200 B:")
	d.table(r.summary())
	d.paragraph("%s [All figures](%s/README.md), with what they were measured on.", quotedFrom, dir)
	return d.String()
}

// updateSection puts the section in its place in a file, if there is one.
func updateSection(file, section string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), sectionBegin)
	_, after, ends := strings.Cut(rest, sectionEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no place for the benchmarks", file)
	}
	return os.WriteFile(file, []byte(before+sectionBegin+section+sectionEnd+after), 0o644)
}
